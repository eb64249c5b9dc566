"""What an alias means, as the real ``ssh -G`` answers."""

from __future__ import annotations

import getpass
import os
import pathlib
import pwd

import pytest

from hostenv.errors import InputError
from hostenv.machine.ssh_config import Destination, parse_answer, parse_jump, resolve_alias


def resolve(folder: pathlib.Path, text: str, alias: str = "ct200", **arguments: str) -> Destination:
    config = folder / "ssh_config"
    config.write_text(text)
    return resolve_alias(alias, config=config, **arguments)  # type: ignore[arg-type] # one of each type


def test_an_alias_without_an_entry_is_its_own_name(tmp_path: pathlib.Path) -> None:
    found = resolve(tmp_path, "")
    assert (found.hostname, found.port, found.user) == ("ct200", 22, getpass.getuser())
    assert found.host_key_name == "ct200"
    assert found.proxy_jump == ()
    assert found.connect_timeout == 10
    assert found.keepalive_interval * found.keepalive_count == 45
    assert found.known_hosts_files[0] == pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh/known_hosts")


def test_include_match_and_tokens_are_openssh_s_business(tmp_path: pathlib.Path) -> None:
    (tmp_path / "more").write_text("Host ct*\n  HostName %h.example.org\n  Port 2222\n")
    found = resolve(
        tmp_path,
        f"Include {tmp_path}/more\nMatch host *.example.org\n  User root\n"
        f"Host *\n  IdentityFile {tmp_path}/%h-%r-%n\n  IdentitiesOnly yes\n  ConnectTimeout 3\n"
        "  ServerAliveInterval 5\n  ServerAliveCountMax 2\n  UserKnownHostsFile /a /b\n",
    )
    assert (found.hostname, found.port, found.user) == ("ct200.example.org", 2222, "root")
    assert found.host_key_name == "[ct200.example.org]:2222"
    assert found.identity_files == (tmp_path / "ct200.example.org-root-ct200",)
    assert found.identities_only
    assert (found.connect_timeout, found.keepalive_interval, found.keepalive_count) == (3, 5, 2)
    assert found.known_hosts_files[:2] == (pathlib.Path("/a"), pathlib.Path("/b"))


def test_jumps_and_proxy_commands(tmp_path: pathlib.Path) -> None:
    assert resolve(tmp_path, "Host *\n ProxyJump ops@a:2200,b\n").proxy_jump == ("ops@a:2200", "b")
    found = resolve(tmp_path, "Host *\n ProxyCommand nc -X %% %h %p %r\n User u\n")
    assert found.proxy_command == "nc -X % ct200 22 u"
    assert resolve(tmp_path, "Host *\n ProxyCommand none\n").proxy_command is None


@pytest.mark.parametrize(
    ("hop", "expected"),
    [
        ("a", ("a", None, None)),
        ("u@a:22", ("a", "u", 22)),
        ("ssh://u@a:22", ("a", "u", 22)),
        ("[::1]:22", ("::1", None, 22)),
        ("u@[::1]", ("::1", "u", None)),
        ("::1", ("::1", None, None)),
    ],
)
def test_a_hop_of_proxy_jump(hop: str, expected: tuple[str, str | None, int | None]) -> None:
    assert parse_jump(hop) == expected


def test_the_agent_is_the_configured_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER", "/run/other")
    assert resolve(tmp_path, "").identity_agent == "/run/agent"
    assert resolve(tmp_path, "IdentityAgent none\n").identity_agent is None
    assert resolve(tmp_path, "IdentityAgent /x/%r\nUser u\n").identity_agent == "/x/u"
    assert resolve(tmp_path, "IdentityAgent $OTHER\n").identity_agent == "/run/other"


def test_a_user_that_is_given_wins(tmp_path: pathlib.Path) -> None:
    assert resolve(tmp_path, "User a\n", user="b").user == "b"


@pytest.mark.parametrize("alias", ["", "-oProxyCommand=touch${IFS}x", "-V"])
def test_an_alias_is_never_an_option(tmp_path: pathlib.Path, alias: str) -> None:
    with pytest.raises(InputError, match="is no SSH alias"):
        resolve(tmp_path, "", alias)


def test_a_wrong_configuration_is_shown_with_openssh_s_own_words(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"ct200: ssh -G: .*line 1"):
        resolve(tmp_path, "NoSuchKeyword x\n")


def test_no_ssh_on_the_path_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no ssh on PATH"):
        resolve(tmp_path, "")


def test_an_answer_without_a_host_is_an_error() -> None:
    with pytest.raises(InputError, match="does not understand: 'hostname'"):
        parse_answer("x", "port 22\n")
