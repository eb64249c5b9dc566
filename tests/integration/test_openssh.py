"""Hosts behind OpenSSH's own server: ciphers, key types, certificates, and cuts."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.errors import RefusedError, UnreachableError
from hostenv.machine import bulk
from hostenv.machine.agent import agent_on
from hostenv.machine.reach import Reach
from hostenv.machine.ssh import Address, open_ssh
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.probe import ProbeOptions, probe
from kit.forwarder import Forwarder
from kit.sshd import Sshd, make_key, missing_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.spec.spec import Spec

pytestmark = pytest.mark.skipif(bool(missing_sshd()), reason=missing_sshd() or "")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    authority = make_key(folder / "authority")
    with Sshd(folder / "host", f"TrustedUserCAKeys {authority}.pub") as started:
        yield started


def opened(sshd: Sshd, **arguments: Any) -> Any:
    return open_ssh("here", Address(alias="here", ssh_config=sshd.client_config), **arguments)


def fingerprint(sshd: Sshd, kind: str) -> str:
    public = sshd.folder / f"host_{kind}.pub"
    told = subprocess.run(["ssh-keygen", "-lf", public], check=True, capture_output=True, text=True)
    return told.stdout.split()[1]


def test_bulk_goes_through_aes_gcm(sshd: Sshd) -> None:
    with opened(sshd) as transport:
        transport.connect()
        assert transport._connection.transport.remote_cipher == "aes128-gcm@openssh.com"


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_type_of_key_that_is_known_is_asked_for(sshd: Sshd, kind: str) -> None:
    sshd.trust(kind)
    with opened(sshd) as transport:
        assert transport.host_key == fingerprint(sshd, kind)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_type_of_key_that_is_pinned_is_found(sshd: Sshd, kind: str) -> None:
    sshd.trust()
    with opened(sshd, host_key=fingerprint(sshd, kind)) as transport:
        assert transport.host_key == fingerprint(sshd, kind)
    with opened(sshd, host_key="SHA256:" + "A" * 43) as transport, pytest.raises(RefusedError) as refused:
        transport.connect()
    assert fingerprint(sshd, "ed25519") in str(refused.value)


def test_a_certificate_logs_in(sshd: Sshd, tmp_path: pathlib.Path) -> None:
    sshd.trust("ed25519")
    key = make_key(tmp_path / "signed")
    authority = sshd.folder.parent / "authority"
    user = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "operator", "-n", user, f"{key}.pub"]
    subprocess.run(sign, check=True)
    config = tmp_path / "ssh_config"
    config.write_text(
        sshd.client_entry("here", sshd.port).replace(str(sshd.client_key), str(key)),
    )
    with open_ssh("here", Address(alias="here", ssh_config=config)) as transport:
        transport.connect()
    elsewhere = tmp_path / "certificate.pub"
    pathlib.Path(f"{key}-cert.pub").rename(elsewhere)
    with (
        open_ssh("here", Address(alias="here", ssh_config=config)) as transport,
        pytest.raises(UnreachableError, match="no key was accepted"),
    ):
        transport.connect()
    config.write_text(config.read_text() + f"  CertificateFile {elsewhere}\n")
    with open_ssh("here", Address(alias="here", ssh_config=config)) as transport:
        transport.connect()


def make_files(folder: pathlib.Path) -> list[bulk.File]:
    files = []
    for index in range(40):
        content = os.urandom(200_000)
        path = folder / f"{index % 4}" / f"{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(bulk.File(path=str(path.relative_to(folder)), size=len(content), sha256=digest))
    return files


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_transfer_that_is_cut_leaves_whole_files_and_the_next_finishes(
    sshd: Sshd, tmp_path: pathlib.Path
) -> None:
    sshd.trust("ed25519")
    source, destination = tmp_path / "source", tmp_path / "destination"
    files = make_files(source)
    wanted = contents(source)
    with Forwarder(("127.0.0.1", sshd.port)) as link:
        entry = sshd.client_entry("cut", link.port)
        config = tmp_path / "ssh_config"
        config.write_text(entry)
        for share in (0.02, 0.4, 0.9):
            link.forwarded, link.cut_after = 0, int(share * 8e6)
            with (
                pytest.raises(UnreachableError, match=r"^cut: "),
                open_ssh("cut", Address(alias="cut", ssh_config=config)) as transport,
                agent_on(transport, python=sys.executable) as agent,
            ):
                bulk.send_files([agent], source, str(destination), files)
            found = contents(destination) if destination.exists() else {}
            whole = {name: data for name, data in found.items() if not name.startswith(".incoming-")}
            assert whole.items() <= wanted.items()
        link.cut_after = None
        with (
            open_ssh("cut", Address(alias="cut", ssh_config=config)) as transport,
            agent_on(transport, python=sys.executable) as agent,
        ):
            bulk.send_files([agent], source, str(destination), files)
    assert contents(destination) == wanted


def spec_of(folder: pathlib.Path, connections: int) -> Spec:
    (folder / "far.toml").write_text(
        f'[host]\naddress = "far"\nroot = "/r"\nconnections = {connections}\n'
        '[env]\nrequires = ["x"]\n[platform]\nglibc = "2.34"\npython = "3.12"\n'
    )
    return load_fleet(folder).specs["far"]


def test_a_long_link_gets_the_connections_that_the_spec_allows(sshd: Sshd, tmp_path: pathlib.Path) -> None:
    sshd.trust("ed25519")
    with Forwarder(("127.0.0.1", sshd.port), delay=0.01) as link:
        config = tmp_path / "ssh_config"
        config.write_text(sshd.client_entry("far", link.port) + sshd.client_entry("near", sshd.port))
        for connections, expected in ((1, 1), (3, 3)):
            spec = spec_of(tmp_path, connections)
            with Reach(spec, ssh_config=config, python=sys.executable) as reach:
                assert reach.host_key == fingerprint(sshd, "ed25519")
                assert len(reach.streams(1 << 30)) == expected
                assert len(reach.streams(1 << 20)) == 1


def test_a_container_may_have_the_name_by_which_its_parent_is_reached(
    sshd: Sshd, tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "config"
    config.write_text("".join(sshd.client_entry(alias, sshd.port) for alias in ("iron", "iron-box")))
    folder = tmp_path / "envspecs"
    folder.mkdir()
    (folder / "iron.toml").write_text(
        '[host]\naddress = "iron-box"\nroot = "~/hostenv"\nmode = "observe"\n'
        '[host.container]\nkind = "lxc"\nid = "200"\nparent = "iron"\n'
    )
    fleet = load_fleet(folder)
    report = probe(fleet, fleet.select(["iron"]), ProbeOptions(ssh_config=config))
    assert {host.name: host.error for host in report.hosts} == {"iron": None, "ssh:iron": None}
    told = [note.message for note in report.hosts[0].notes if note.rule == "container-differs"]
    assert any("container on ssh:iron" in message for message in told)
