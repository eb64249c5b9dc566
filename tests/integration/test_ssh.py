"""Hosts behind SSH, on a server in this process: what is refused, what is lost, and that nothing stays."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import paramiko
import pytest

from hostenv.agent.stream import Unit
from hostenv.errors import RefusedError, UnreachableError
from hostenv.machine.agent import agent_on
from hostenv.machine.ssh import Address, open_ssh
from kit.forwarder import Forwarder
from kit.pythons import FAR_SIDES, find_python
from kit.sshserver import SshServer, new_key, write_client_config

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def client_key() -> Any:
    return new_key()


@pytest.fixture
def server(tmp_path: pathlib.Path, client_key: Any) -> Iterator[SshServer]:
    home = tmp_path / "home"
    home.mkdir()
    with SshServer(home, client_key=client_key) as started:
        yield started


class Client:
    """Writes what the operator's machine knows, and opens hosts with it."""

    def __init__(self, folder: pathlib.Path, key: Any) -> None:
        self.folder = folder
        self.key = key
        self.known = ""
        self.hosts = ""

    def host(self, alias: str, port: int, *lines: str) -> None:
        inner = "".join(f"  {line}\n" for line in lines)
        self.hosts += f"Host {alias}\n  HostName 127.0.0.1\n  Port {port}\n{inner}"

    def open(self, alias: str, **arguments: Any) -> Any:
        config = write_client_config(self.folder, self.key, self.hosts, self.known)
        return open_ssh(alias, Address(alias=alias, ssh_config=config), **arguments)


@pytest.fixture
def client(tmp_path: pathlib.Path, client_key: Any, server: SshServer) -> Client:
    folder = tmp_path / "client"
    folder.mkdir()
    made = Client(folder, client_key)
    made.host("here", server.port)
    made.known = server.known_hosts_line()
    return made


def fingerprint(folder: pathlib.Path, line: str) -> str:
    """Return what ``ssh-keygen -l`` says of a known_hosts line."""
    file = folder / "one_line"
    file.write_text(line)
    answer = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True)
    found = re.search(r"SHA256:\S+", answer.stdout)
    assert found
    return found[0]


def test_a_known_host_answers(client: Client, server: SshServer) -> None:
    with client.open("here") as transport, agent_on(transport) as agent:
        assert agent.call("echo", value={"é": 1}) == {"é": 1}
        assert transport.host_key == fingerprint(client.folder, server.known_hosts_line())
    assert server.accepted == 1


def test_an_unknown_key_is_refused_before_any_login(client: Client, server: SshServer) -> None:
    client.known = ""
    shown = fingerprint(client.folder, server.known_hosts_line())
    with (
        client.open("here") as transport,
        pytest.raises(RefusedError, match="unknown host key") as refused,
    ):
        transport.connect()
    assert shown in refused.value.message
    assert server.accepted == 0
    command = re.search(r"echo .* >> \S+", str(refused.value))
    assert command
    subprocess.run(["sh", "-c", command[0]], check=True)
    client.known = (client.folder / "known_hosts").read_text()
    assert client.known == server.known_hosts_line()
    with client.open("here") as transport:
        transport.connect()


def test_a_changed_key_is_refused_with_both_fingerprints(client: Client, server: SshServer) -> None:
    old = server.known_hosts_line(new_key())
    client.known = old
    with (
        client.open("here") as transport,
        pytest.raises(RefusedError, match="CHANGED host key") as refused,
    ):
        transport.connect()
    assert fingerprint(client.folder, old) in str(refused.value)
    assert fingerprint(client.folder, server.known_hosts_line()) in str(refused.value)
    assert server.accepted == 0


def test_strict_checking_cannot_be_configured_away(client: Client, server: SshServer) -> None:
    client.known = ""
    client.host("lax", server.port, "StrictHostKeyChecking no")
    with client.open("lax") as transport, pytest.raises(RefusedError, match="unknown"):
        transport.connect()


def test_the_pinned_key_wins_over_known_hosts(client: Client, server: SshServer) -> None:
    shown = fingerprint(client.folder, server.known_hosts_line())
    client.known = server.known_hosts_line(new_key())
    with client.open("here", host_key=shown) as transport:
        transport.connect()
    client.known = server.known_hosts_line()
    pinned = "SHA256:" + "A" * 43
    with (
        client.open("here", host_key=pinned, owners={shown: "ct129"}) as transport,
        pytest.raises(RefusedError, match="wrong host key: this is ct129") as refused,
    ):
        transport.connect()
    assert pinned in str(refused.value)
    assert shown in str(refused.value)


def test_a_line_of_a_certificate_authority_is_read_past(client: Client, server: SshServer) -> None:
    _, key_type, blob = server.known_hosts_line(new_key()).split()
    client.known = f"@cert-authority * {key_type} {blob}\n{server.known_hosts_line()}"
    with client.open("here") as transport:
        transport.connect()


def test_hashed_names_are_known(client: Client, server: SshServer) -> None:
    del server
    client.open("here")
    file = client.folder / "known_hosts"
    subprocess.run(["ssh-keygen", "-H", "-f", file], check=True, capture_output=True)
    client.known = file.read_text()
    assert client.known.startswith("|1|")
    with client.open("here") as transport:
        transport.connect()


def test_a_revoked_key_is_refused_although_it_is_known(client: Client, server: SshServer) -> None:
    client.known = f"{server.known_hosts_line()}@revoked {server.known_hosts_line()}"
    with client.open("here") as transport, pytest.raises(RefusedError, match="is revoked in"):
        transport.connect()


def test_a_host_key_alias_is_looked_up(client: Client, server: SshServer) -> None:
    client.host("other", server.port, "HostKeyAlias the-machine")
    _, key_type, blob = server.known_hosts_line().split()
    client.known = f"the-machine {key_type} {blob}\n"
    with client.open("other") as transport:
        transport.connect()


def test_a_gateway_is_used_and_its_key_is_checked(
    client: Client, server: SshServer, tmp_path: pathlib.Path, client_key: Any
) -> None:
    with SshServer(tmp_path, client_key=client_key) as gateway:
        client.host("gate", gateway.port)
        client.host("inner", server.port, "ProxyJump gate")
        with (
            client.open("inner") as transport,
            pytest.raises(RefusedError, match=r"inner \(gateway gate\): unknown host key"),
        ):
            transport.connect()
        assert server.accepted == 0
        client.known += gateway.known_hosts_line()
        with client.open("inner") as transport, agent_on(transport) as agent:
            assert agent.call("echo", value=1) == 1
            another = transport.another()
            with another, agent_on(another) as second:
                assert second.call("echo", value=2) == 2
            assert agent.call("echo", value=3) == 3
        assert gateway.accepted == 1
        assert server.accepted == 2


def test_a_proxy_command_is_run_with_its_tokens(client: Client, server: SshServer) -> None:
    relay = (
        "import os,socket,sys,threading\\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\\n"
        "def up():\\n"
        " while 1:\\n  b=os.read(0,65536)\\n  s.sendall(b) if b else os._exit(0)\\n"
        "threading.Thread(target=up).start()\\n"
        "while 1:\\n b=s.recv(65536)\\n os.write(1,b) if b else os._exit(0)"
    )
    script = client.folder / "relay.py"
    script.write_text(relay.replace("\\n", "\n"))
    client.host("proxied", server.port, f"ProxyCommand {sys.executable} {script} %h %p")
    with client.open("proxied") as transport, agent_on(transport) as agent:
        assert agent.call("echo", value=1) == 1


def test_a_key_that_is_not_accepted_is_an_error_and_asks_nothing(
    tmp_path: pathlib.Path, server: SshServer
) -> None:
    stranger = Client(tmp_path, new_key())
    stranger.host("here", server.port)
    stranger.known = server.known_hosts_line()
    with (
        stranger.open("here") as transport,
        pytest.raises(UnreachableError, match=r"cannot log in as tester: no key was accepted \(tried key"),
    ):
        transport.connect()


@pytest.mark.parametrize("kind", [("ed25519",), ("rsa",), ("rsa", "-m", "PEM")])
def test_a_key_with_a_passphrase_is_named(client: Client, kind: tuple[str, ...], server: SshServer) -> None:
    del server
    key = client.folder / "id_ecdsa"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", *kind, "-N", "secret", "-f", key], check=True, capture_output=True
    )
    with (
        client.open("here") as transport,
        pytest.raises(UnreachableError, match=f"ssh-add {re.escape(str(key))}"),
    ):
        transport.connect()


def test_an_agent_holds_the_key_that_a_pub_file_names(client: Client, server: SshServer) -> None:
    del server
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", client.folder / "x"], check=True)
    socket = client.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    try:
        assert agent.stdout
        agent.stdout.readline()  # where it listens
        client.open("here")  # writes the key
        key = client.folder / "id_ecdsa"
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        for each in ("x", "id_ecdsa"):
            subprocess.run(
                ["ssh-add", "-q", client.folder / each], check=True, env=environment, capture_output=True
            )
        public = subprocess.run(["ssh-keygen", "-y", "-f", key], check=True, capture_output=True).stdout
        key.with_name("id_ecdsa.pub").write_bytes(public)
        key.rename(client.folder / "elsewhere")
        client.hosts = f"Match all\n  IdentityAgent {socket}\n{client.hosts}"
        config = write_client_config(client.folder, client.key, client.hosts, client.known)
        key.unlink()
        with open_ssh("here", Address(alias="here", ssh_config=config)) as transport:
            transport.connect()
    finally:
        agent.terminate()
        agent.communicate()


def test_nobody_listening_is_unreachable(client: Client, server: SshServer) -> None:
    client.host("closed", 1)
    with client.open("closed") as transport, pytest.raises(UnreachableError, match=r"closed: tester@127\.0"):
        transport.connect()
    del server


def test_a_name_that_does_not_resolve_says_where_to_look(client: Client) -> None:
    """An address with the zone of no interface: the resolver knows by itself that it is no name."""
    client.hosts += "Host nowhere\n  HostName fe80::1%%nosuch\n"
    with client.open("nowhere") as transport, pytest.raises(UnreachableError) as caught:
        transport.connect()
    assert "nowhere: " in caught.value.message
    assert "`ssh -G nowhere` says where the alias leads" in (caught.value.hint or "")


def test_a_host_that_accepts_and_says_nothing_is_given_up(client: Client, server: SshServer) -> None:
    with Forwarder(("127.0.0.1", server.port)) as link:
        link.freeze()
        client.host("silent", link.port, "ConnectTimeout 1")
        begun = time.monotonic()
        with client.open("silent") as transport, pytest.raises(UnreachableError):
            transport.connect()
    assert time.monotonic() - begun < 12  # paramiko itself waits for 15 s


def test_a_host_that_stops_answering_is_given_up(client: Client, server: SshServer) -> None:
    with Forwarder(("127.0.0.1", server.port)) as link:
        client.host("slow", link.port, "ServerAliveInterval 2", "ServerAliveCountMax 1")
        client.known += server.known_hosts_line().replace(str(server.port), str(link.port))
        with client.open("slow") as transport, agent_on(transport) as agent:
            link.freeze()
            begun = time.monotonic()
            with pytest.raises(UnreachableError, match=r"slow: .*: it has not answered for 2 s"):
                agent.call("echo", value=1)
            assert time.monotonic() - begun < 30


def zeros() -> Iterator[bytes]:
    while True:
        yield bytes(1 << 16)


def test_a_connection_dropped_in_the_middle_is_unreachable(client: Client, server: SshServer) -> None:
    with client.open("here") as transport, agent_on(transport) as agent:
        root = str(client.folder / "root")
        agent.call("place.begin", root=root, label="t")
        head = Unit("large", 0o644, 1 << 40, 0, 1 << 40, 0, "").head()
        threading.Timer(0.3, server.cut).start()
        with pytest.raises(UnreachableError, match=r"here: .* the connection was lost"):
            agent.call("place.put", root=root, label="t", data=itertools.chain([head], zeros()))
        with pytest.raises(UnreachableError, match="here: "):
            agent.call("echo", value=1)


def test_a_connection_that_fails_closes_its_channels_before_it_says_so(
    client: Client, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's order: for a moment the channel is closed and the connection is said to stand."""
    closed_only = paramiko.Channel._unlink

    def unlink_and_linger(channel: paramiko.Channel) -> None:
        closed_only(channel)
        time.sleep(0.3)

    with client.open("here") as transport:
        channel = transport.open(("sleep", "60"))
        monkeypatch.setattr(paramiko.Channel, "_unlink", unlink_and_linger)
        threading.Timer(0.1, server.cut).start()
        with pytest.raises(UnreachableError, match=r"here: .* the connection was lost"):
            channel.receive(100)


def test_a_command_that_a_signal_ended_is_told_from_a_lost_connection(client: Client) -> None:
    with client.open("here") as transport:
        channel = transport.open(("sh", "-c", "kill -9 $PPID"))
        assert channel.receive(100) == b""
        assert channel.wait(60) == -1
        channel = transport.open(("sh", "-c", "exit 3"))
        assert channel.wait(60) == 3
        channel = transport.open(("sleep", "60"))
        assert channel.wait(0.01) is None
        channel.close()


def test_arguments_reach_the_command_as_they_are(client: Client) -> None:
    arguments = ("a b", "'", '"', "$HOME", "`id`", "é", "", "line\nbreak", "*")
    with client.open("here") as transport:
        channel = transport.open((sys.executable, "-c", "import sys; print(sys.argv[1:])", *arguments))
        told = b""
        while piece := channel.receive(4096):
            told += piece
    assert told.decode() == f"{list(arguments)}\n"


def test_standard_error_never_blocks_standard_output(client: Client) -> None:
    """Both share one window of 2 MiB."""
    script = "import sys; sys.stderr.write('x' * (5 << 20)); sys.stderr.flush(); print('done')"
    with client.open("here") as transport:
        channel = transport.open((sys.executable, "-c", script))
        assert channel.receive(100) == b"done\n"
        assert channel.wait(60) == 0
        assert channel.stderr_tail() == "x" * 4096


def test_a_login_that_prints_is_read_past(tmp_path: pathlib.Path, client: Client, client_key: Any) -> None:
    noise = b"Welcome!\n\0\xff" * 500
    with SshServer(tmp_path, client_key=client_key, login_shell_noise=noise) as noisy:
        client.host("noisy", noisy.port)
        client.known += noisy.known_hosts_line()
        with client.open("noisy") as transport, agent_on(transport) as agent:
            assert agent.call("echo", value=1) == 1


def bare_path(folder: pathlib.Path, **programs: str) -> dict[str, str]:
    """Return an environment whose PATH holds only the given shell scripts."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "HOME": str(folder)}


def test_a_host_without_python_says_so(tmp_path: pathlib.Path, client: Client, client_key: Any) -> None:
    environment = bare_path(tmp_path / "bin")
    with SshServer(tmp_path, client_key=client_key, environment=environment) as bare:
        client.host("bare", bare.port)
        client.known += bare.known_hosts_line()
        with (
            client.open("bare") as transport,
            pytest.raises(UnreachableError, match=r"bare: .*exit 127.*python3.*\n.*3\.8 or later"),
            agent_on(transport),
        ):
            pass


def test_sudo_that_wants_a_password_says_so(tmp_path: pathlib.Path, client: Client, client_key: Any) -> None:
    environment = bare_path(tmp_path / "bin", sudo="echo 'sudo: a password is required' >&2; exit 1")
    with SshServer(tmp_path, client_key=client_key, environment=environment) as host:
        client.host("user", host.port)
        client.known += host.known_hosts_line()
        with (
            client.open("user") as transport,
            pytest.raises(UnreachableError, match="NOPASSWD"),
            agent_on(transport, prefix=("sudo", "-n", "--")),
        ):
            pass


def tree(folder: pathlib.Path) -> list[tuple[str, int, int, int, int]]:
    """List a folder as it would show any change: path, mode, inode, size and mtime."""
    found = []
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        found.append((str(path), status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns))
    return found


@pytest.mark.parametrize("version", FAR_SIDES)
def test_the_agent_runs_on_every_python_and_leaves_nothing(
    tmp_path: pathlib.Path, client: Client, client_key: Any, version: str
) -> None:
    python = find_python(version)
    if not python:
        pytest.skip(f"no python{version} on this machine")
    home = tmp_path / "far"
    home.mkdir()
    (home / "struct.py").write_text("raise SystemExit('hijacked')\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
    with SshServer(home, client_key=client_key, environment=environment) as host:
        client.host("far", host.port)
        client.known += host.known_hosts_line()
        before = tree(home)
        with client.open("far") as transport, agent_on(transport, python=python) as agent:
            assert agent.call("echo", value=[version]) == [version]
        assert tree(home) == before


def test_fabrics_own_files_and_variables_are_not_read(
    client: Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".fabric.yaml").write_text("user: intruder\nconnect_timeout: 1\ngateway: nowhere\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FABRIC_USER", "intruder")
    monkeypatch.setenv("FABRIC_TIMEOUTS_CONNECT", "nonsense")
    monkeypatch.setenv("INVOKE_RUN_ECHO", "1")
    with client.open("here") as transport:
        transport.connect()


def test_an_agent_that_is_stopped_is_given_up_although_its_connection_answers(client: Client) -> None:
    python = client.folder / "python"
    python.write_text(f'#!/bin/sh\necho $$ > {client.folder}/pid\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with client.open("here") as transport:
        try:
            with agent_on(transport, python=str(python), patience=3.0) as agent:
                agent.call("echo", value=1)
                os.kill(int((client.folder / "pid").read_text()), signal.SIGSTOP)
                with pytest.raises(UnreachableError, match="here: it has not answered for 3 s, while echo"):
                    agent.call("echo", value=1)
            assert transport.lost() is None, "the connection stands"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((client.folder / "pid").read_text()), signal.SIGKILL)
