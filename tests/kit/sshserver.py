"""An SSH server on loopback, in this process: paramiko's server side, commands by ``sh -c`` in a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Self

import paramiko

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping


def new_key() -> Any:
    """Return a private key; ECDSA, which takes a millisecond."""
    return paramiko.ECDSAKey.generate()


class SshServer:
    """A host: ``login_shell_noise`` is what its rc files print, ``environment`` what a command sees.

    ``cut`` drops every connection as a pulled cable with a reset would; ``accepted`` counts logins.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        host_key: Any = None,
        client_key: Any = None,
        environment: Mapping[str, str] | None = None,
        login_shell_noise: bytes = b"",
    ) -> None:
        self.folder = folder
        self.host_key = host_key or new_key()
        self.client_key = client_key
        self.environment = dict(environment or {"PATH": os.environ["PATH"], "HOME": str(folder)})
        self.login_shell_noise = login_shell_noise
        self.accepted = 0
        self.commands: list[str] = []
        self._transports: list[Any] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="ssh server", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def known_hosts_line(self, key: Any = None) -> str:
        key = key or self.host_key
        return f"[127.0.0.1]:{self.port} {key.get_name()} {key.get_base64()}\n"

    def cut(self) -> None:
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(self.host_key)
        self._transports.append(transport)
        # A client that refuses the key goes away in the middle of this.
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=make_server(self))


def make_server(server: SshServer) -> Any:
    """Return paramiko's callbacks for one connection to ``server``."""

    class Callbacks(paramiko.ServerInterface):  # type: ignore[misc] # untyped library
        def get_allowed_auths(self, username: str) -> str:
            del username
            return "publickey"

        def check_auth_publickey(self, username: str, key: Any) -> int:
            del username
            if server.client_key and key.asbytes() == server.client_key.asbytes():
                server.accepted += 1
                return int(paramiko.common.AUTH_SUCCESSFUL)
            return int(paramiko.common.AUTH_FAILED)

        def check_channel_request(self, kind: str, chanid: int) -> int:
            del chanid
            return 0 if kind == "session" else 1

        def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
            server.commands.append(command.decode())
            threading.Thread(target=execute, args=(server, channel, command), daemon=True).start()
            return True

        def check_channel_direct_tcpip_request(
            self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
        ) -> int:
            del origin
            threading.Thread(target=tunnel, args=(self.transport, chanid, destination), daemon=True).start()
            return 0

        transport: Any = None

    callbacks = Callbacks()
    # paramiko hands no transport to its callbacks; the newest is this connection's.
    callbacks.transport = server._transports[-1]
    return callbacks


def execute(server: SshServer, channel: Any, command: bytes) -> None:
    """Run a command as sshd does, its three streams joined to the channel."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command.decode()],
        cwd=server.folder,
        env=server.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    with contextlib.suppress(OSError):
        if server.login_shell_noise:
            channel.sendall(server.login_shell_noise)
    copies = [
        threading.Thread(target=copy_out, args=(process.stdout, channel.sendall), daemon=True),
        threading.Thread(target=copy_out, args=(process.stderr, channel.sendall_stderr), daemon=True),
    ]
    threading.Thread(target=copy_in, args=(channel, process), daemon=True).start()
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join()
    status = process.wait()
    with contextlib.suppress(OSError, EOFError):
        if status >= 0:  # a signal has no exit-status message (RFC 4254 6.10)
            channel.send_exit_status(status)
        channel.shutdown_write()
        channel.close()


def copy_out(pipe: Any, send: Any) -> None:
    with pipe, contextlib.suppress(OSError, EOFError):
        while data := pipe.read(65536):
            send(data)


def copy_in(channel: Any, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    with contextlib.suppress(OSError, EOFError):  # recv itself writes: it tells the far side of its window
        while data := channel.recv(65536):
            view = memoryview(data)
            while view:
                view = view[process.stdin.write(view) or 0 :]
    with contextlib.suppress(OSError):
        process.stdin.close()


def tunnel(transport: Any, chanid: int, destination: tuple[str, int]) -> None:
    channel = transport.accept(60)
    if channel is None:  # the client went away before it used the tunnel
        return
    assert channel.get_id() == chanid
    try:
        onward = socket.create_connection(destination)
    except OSError:
        with contextlib.suppress(OSError, EOFError):
            channel.close()
        return
    threading.Thread(target=pump, args=(channel, onward), daemon=True).start()
    pump(onward, channel)


def pump(source: Any, sink: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError, EOFError):
            end.close()


def write_client_config(
    folder: pathlib.Path, client_key: Any, text: str, known_hosts: str = ""
) -> pathlib.Path:
    """Write the client's key, known_hosts and ssh_config; ``text`` names the hosts. Return the config."""
    key = folder / "id_ecdsa"
    if not key.exists():
        client_key.write_private_key_file(str(key))
    (folder / "known_hosts").write_text(known_hosts)
    config = folder / "ssh_config"
    config.write_text(
        f"{text}\nHost *\n  User tester\n  IdentityFile {key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {folder / 'known_hosts'}\n  GlobalKnownHostsFile /dev/null\n"
    )
    return config
