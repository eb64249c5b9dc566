"""known_hosts: every form of a line that OpenSSH reads, with OpenSSH's own tools as the oracle."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import RefusedError
from hostenv.machine.hostkeys import HostKey, KnownHost, Trust, read_known_hosts, require_trusted

if TYPE_CHECKING:
    import pathlib

ED25519 = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
    "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU",
)
"""github.com's public key and the fingerprint that its documentation gives."""


def key(folder: pathlib.Path, kind: str = "ed25519") -> tuple[HostKey, str]:
    """Make a key; return it with what ``ssh-keygen -l`` calls its fingerprint."""
    path = folder / f"{kind}_{len(list(folder.iterdir()))}"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    public = path.with_name(f"{path.name}.pub")
    told = subprocess.run(["ssh-keygen", "-lf", public], check=True, capture_output=True, text=True).stdout
    found = re.search(r"SHA256:\S+", told)
    assert found
    entries = known(folder, f"x {public.read_text()}")
    return entries[0].key, found[0]


def known(folder: pathlib.Path, text: str) -> tuple[KnownHost, ...]:
    file = folder / "known_hosts"
    file.write_text(text)
    return read_known_hosts([file, folder / "missing"])


def test_a_fingerprint_is_what_the_documentation_says(tmp_path: pathlib.Path) -> None:
    (entry,) = known(tmp_path, f"github.com {ED25519[0]} comment\n")
    assert entry.key.fingerprint == ED25519[1]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_fingerprint_is_what_ssh_keygen_says(tmp_path: pathlib.Path, kind: str) -> None:
    made, fingerprint = key(tmp_path, kind)
    assert made.fingerprint == fingerprint


@pytest.mark.parametrize(
    ("patterns", "name", "listed"),
    [
        ("host", "host", True),
        ("HOST", "host", True),
        ("other,host", "host", True),
        ("*.example.org", "a.example.org", True),
        ("*.example.org,!a.example.org", "a.example.org", False),
        ("h?st", "host", True),
        ("h?st", "hst", False),
        ("[127.0.0.1]:2222", "[127.0.0.1]:2222", True),
        ("127.0.0.1", "[127.0.0.1]:2222", False),
        ("[127.0.0.1]:*", "[127.0.0.1]:2222", True),
        ("[1]", "1", False),
        ("host", "hosts", False),
    ],
)
def test_patterns(tmp_path: pathlib.Path, patterns: str, name: str, listed: bool) -> None:  # noqa: FBT001  a parameter of the test
    (entry,) = known(tmp_path, f"{patterns} {ED25519[0]}\n")
    assert entry.lists(name) is listed


def test_hashed_names_as_ssh_keygen_hashes_them(tmp_path: pathlib.Path) -> None:
    known(tmp_path, f"[127.0.0.1]:2222 {ED25519[0]}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", tmp_path / "known_hosts"], check=True, capture_output=True)
    (entry,) = known(tmp_path, (tmp_path / "known_hosts").read_text())
    assert entry.lists("[127.0.0.1]:2222")
    assert not entry.lists("127.0.0.1")


def test_lines_that_are_none_make_a_host_unknown_and_nothing_else(tmp_path: pathlib.Path) -> None:
    text = f"# comment\n\nhost\nhost ssh-ed25519 !!!\n|1|x host\nhost {ED25519[0]}\n|1|?|? {ED25519[0]}\n"
    entries = known(tmp_path, text)
    assert [entry.number for entry in entries if entry.lists("host")] == [6]


def test_another_type_of_key_is_a_changed_key(tmp_path: pathlib.Path) -> None:
    listed, _ = key(tmp_path, "rsa")
    shown, _ = key(tmp_path, "ed25519")
    trust = Trust(name="host", known=known(tmp_path, listed.line("host")))
    assert trust.key_types() == ("ssh-rsa",)
    with pytest.raises(RefusedError, match="CHANGED host key"):
        require_trusted("ct129", shown, trust)
    require_trusted("ct129", listed, trust)


def test_a_certificate_authority_trusts_nobody_by_itself(tmp_path: pathlib.Path) -> None:
    shown, _ = key(tmp_path)
    trust = Trust(name="host", known=known(tmp_path, f"@cert-authority {shown.line('*')}"))
    with pytest.raises(RefusedError, match="unknown host key"):
        require_trusted("ct129", shown, trust)


def test_a_pinned_key_that_is_revoked_is_refused(tmp_path: pathlib.Path) -> None:
    shown, fingerprint = key(tmp_path)
    trust = Trust(name="host", known=known(tmp_path, f"@revoked {shown.line('*')}"), pinned=fingerprint)
    with pytest.raises(RefusedError, match="is revoked in"):
        require_trusted("ct129", shown, trust)
