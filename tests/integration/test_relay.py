"""Supply by way of a relay: what it fetches, what it is sent, and what it may not do."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import socket
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from hostenv.machine.reach import Reach
from hostenv.spec.environment import PythonArchive
from hostenv.spec.fleet import load_fleet
from hostenv.steps import supply_uv
from hostenv.steps.depot import Depot
from hostenv.steps.supply_python import BringPython
from hostenv.steps.supply_relay import ByRelay, Way
from kit.archives import another_python, pack_python, version_of
from kit.forwarder import Forwarder
from kit.offline import without_network
from kit.repository import done

if TYPE_CHECKING:
    from kit.remotes import RemoteHost, Remotes
    from kit.repository import Repository

OFFLINE = "offline = true"


@pytest.fixture
def relay(remotes: Remotes, hosts: dict[str, RemoteHost]) -> pathlib.Path:
    """Let the host ``r`` reach ``a`` and ``c`` by its own ssh; return its wheelhouse."""
    home = hosts["r"].home
    (home / "ssh_config").write_text(hosts["a"].configured() + hosts["c"].configured())
    (home / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {home}/ssh_config "$@"\n')
    (home / "bin/ssh").chmod(0o755)
    shutil.rmtree(home / ".cache", ignore_errors=True)
    remotes.spec("a", supply=f'{OFFLINE}\nvia = "r"')
    return home / ".cache/hostenv/wheelhouse"


def test_bytes_pass_through_the_relay_and_not_through_here(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost], relay: pathlib.Path
) -> None:
    repository.wheel("demo", "2.0", {"demo/blob": os.urandom(3 << 20)})
    remotes.share("demo==2.0")
    done(repository.run("lock", hosts=["a"]))
    with Forwarder(("127.0.0.1", hosts["a"].port)) as to_a, Forwarder(("127.0.0.1", hosts["r"].port)) as to_r:
        remotes.reach_by({"a": to_a.port, "r": to_r.port})
        done(repository.run("fetch", hosts=["a"]))
        assert to_a.forwarded + to_r.forwarded < 2 << 20
    assert not (repository.folder / "home/.cache/hostenv").exists()
    assert len(list(relay.glob("*/demo-2.0*.whl"))) == 1
    assert len(list(remotes.root("a").glob("wheelhouse/*/demo-2.0*.whl"))) == 1


def test_uv_goes_to_the_relay_once_and_from_there_to_every_host(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost], relay: pathlib.Path
) -> None:
    remotes.spec("c", supply=f'{OFFLINE}\nvia = "r"')
    done(repository.run("lock", hosts=["a"]))
    uv = supply_uv.own_binary()
    with contextlib.ExitStack() as stack:
        links = {
            name: stack.enter_context(Forwarder(("127.0.0.1", hosts[name].port))) for name in ("a", "c", "r")
        }
        remotes.reach_by({name: link.port for name, link in links.items()})
        built = done(repository.run("build_env", hosts=["a", "c"]))
        crossed = {name: link.forwarded for name, link in links.items()}
    assert crossed["a"] + crossed["c"] < 4 << 20 < uv.size
    assert uv.size < crossed["r"] < uv.size * 3 // 2
    assert built["a"]["fingerprint"] == built["c"]["fingerprint"]
    assert not any(each["notes"] for each in built.values())
    for root in (relay.parent, remotes.root("a"), remotes.root("c")):
        place = pathlib.Path(uv.place(str(root)))
        assert hashlib.sha256(place.read_bytes()).hexdigest() == uv.sha256
        assert os.access(place, os.X_OK)


def test_overlays_go_to_the_relay_once_and_from_there_to_every_host(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost], relay: pathlib.Path
) -> None:
    content = os.urandom(4 << 20)
    repository.wheel("kernel", "1.0", {"kernel/__init__.py": ""})
    repository.spec("kernel==1.0")
    repository.build()
    (site,) = repository.current.glob("lib/python3*/site-packages")
    (site / "kernel/ops.bin").write_bytes(content)
    done(repository.run("overlay", hosts=["local", "ours", "kernel"]))
    remotes.share("demo==1.0", "kernel==1.0")
    for name in ("a", "c"):
        remotes.spec(name, supply=f'{OFFLINE}\nvia = "r"')
    done(repository.run("lock", hosts=["a"]))
    done(repository.run("build_env", hosts=["a", "c"]))  # so that uv and wheels are there
    for name in ("a", "c"):
        remotes.spec(name, supply=f'{OFFLINE}\nvia = "r"', more='[[overlays]]\nname = "ours"\n')
    with contextlib.ExitStack() as stack:
        links = {
            name: stack.enter_context(Forwarder(("127.0.0.1", hosts[name].port))) for name in ("a", "c", "r")
        }
        remotes.reach_by({name: link.port for name, link in links.items()})
        done(repository.run("build_env", hosts=["a", "c"]))
        crossed = {name: link.forwarded for name, link in links.items()}
    assert crossed["a"] + crossed["c"] < len(content) < crossed["r"] < 2 * len(content)
    digest = hashlib.sha256(content).hexdigest()
    for root in (relay.parent, remotes.root("a"), remotes.root("c")):
        assert (root / "store" / digest[:2] / digest).read_bytes() == content
    for name in ("a", "c"):
        (laid,) = (
            (remotes.root(name) / "current/env").resolve().glob("lib/python3*/site-packages/kernel/ops.bin")
        )
        assert laid.read_bytes() == content


def test_what_a_relay_cannot_fetch_is_sent_to_it_and_told(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost], relay: pathlib.Path
) -> None:
    done(repository.run("lock", hosts=["a"]))
    with without_network(hosts["r"]):
        fetched_by = done(repository.run("fetch", hosts=["a"]))["a"]
    (note,) = fetched_by["notes"]
    assert "the relay r could not fetch" in note
    assert "Network is unreachable" in note
    for place in (
        relay,
        remotes.root("a") / "wheelhouse",
        repository.folder / "home/.cache/hostenv/wheelhouse",
    ):
        assert len(list(place.glob("*/*.whl"))) == 2
    assert done(repository.run("fetch", hosts=["a"]))["a"]["changed"] is False


def test_a_relay_that_is_down_is_named_with_what_may_be_done(
    remotes: Remotes, repository: Repository, relay: pathlib.Path
) -> None:
    done(repository.run("lock", hosts=["a"]))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    remotes.reach_by({"r": port})
    ran = repository.run("build_env", hosts=["a"])
    assert ran.host["outcome"] == "unreachable"
    assert "relay r: " in ran.message
    assert 'take supply.via = "r" out of the spec' in ran.message
    assert not relay.exists()


def test_a_relay_fetches_the_interpreter_of_a_host(
    remotes: Remotes,
    repository: Repository,
    hosts: dict[str, RemoteHost],
    relay: pathlib.Path,
) -> None:
    minor, python = another_python()
    archive = repository.registry.folder / f"cpython-{minor}-install_only.tar.gz"
    pack_python(python, minor, archive)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    # A spec takes https only, for which a test would need an authority that everybody trusts.
    wanted = PythonArchive(
        file=archive.name,
        sha256=digest,
        version=Version(version_of(python)),
        url=repository.registry.file_url(archive.name),
    )
    fleet = load_fleet(repository.path / "envspecs")
    depot, notes, who = Depot(), list[str](), {"by": "somebody@desk", "session": "build_env"}
    root = str(remotes.root("a"))
    with (
        Forwarder(("127.0.0.1", hosts["a"].port)) as to_a,
        Forwarder(("127.0.0.1", hosts["r"].port)) as to_r,
    ):
        remotes.reach_by({"a": to_a.port, "r": to_r.port})
        with Reach(fleet.specs["a"]) as reach:
            way = Way(
                root=root,
                spec=fleet.specs["a"],
                specs=tuple(fleet.specs.values()),
                via="r",
                depot=depot,
                who=who,
            )
            step = BringPython(archive=wanted, root=root, path=None)
            sender = ByRelay(way=way, agent=reach.agent, notes=notes)
            made = step.apply(sender, depot, who, on_progress=lambda _: None)
        assert to_a.forwarded + to_r.forwarded < 4 << 20 < archive.stat().st_size
    assert notes == []
    assert made.version == version_of(python)
    assert (relay / digest / archive.name).is_file()
    assert not depot.folder.exists()


def test_a_relay_that_reaches_another_machine_writes_nothing_there(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost], relay: pathlib.Path
) -> None:
    (hosts["r"].home / "ssh_config").write_text(hosts["c"].configured(alias="a"))
    done(repository.run("lock", hosts=["a"]))
    ran = repository.run("fetch", hosts=["a"])
    assert ran.host["outcome"] == "refused"
    assert hosts["c"].machine_id in ran.message
    assert not list(remotes.root("a").glob("wheelhouse/*/*.whl"))
    assert list(relay.glob("*/*.whl"))


def test_a_relay_without_a_key_for_the_host_says_what_ssh_said(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost], relay: pathlib.Path
) -> None:
    del relay
    entry = hosts["a"].configured()
    known = next(line for line in entry.splitlines() if "UserKnownHostsFile" in line)
    (hosts["r"].home / "ssh_config").write_text(entry.replace(known, "  UserKnownHostsFile /dev/null"))
    done(repository.run("lock", hosts=["a"]))
    ran = repository.run("fetch", hosts=["a"])
    assert "Host key verification failed" in ran.message
    assert not list(remotes.root("a").glob("wheelhouse/*/*.whl"))
