"""OpenSSH's own server on a high port of loopback, without rights that the caller lacks."""

from __future__ import annotations

import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_TYPES = ("ed25519", "ecdsa", "rsa")


def missing_sshd() -> str | None:
    """Say why there can be no OpenSSH server here; ``None`` where there can."""
    return None if find_sshd() and shutil.which("ssh-keygen") else "no sshd: install openssh-server"


def find_sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def make_key(path: pathlib.Path, key_type: str = "ed25519") -> pathlib.Path:
    subprocess.run(["ssh-keygen", "-q", "-t", key_type, "-N", "", "-f", path], check=True)
    return path


class Sshd:
    """A running sshd with a host key of each of ``key_types``.

    ``options`` are lines of sshd_config that win over the kit's.
    ``client_config`` is an ssh_config that knows the host as ``alias``, with key and known_hosts.
    """

    def __init__(
        self, folder: pathlib.Path, *options: str, alias: str = "here", key_types: Sequence[str] = KEY_TYPES
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.host_keys = {kind: make_key(folder / f"host_{kind}", kind) for kind in key_types}
        self.client_key = make_key(folder / "client")
        shutil.copy(folder / "client.pub", folder / "authorized_keys")
        self.port = free_port()
        self._process = self._start(options)
        self.client_config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.trust(*key_types)
        self.client_config.write_text(self.client_entry(alias, self.port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def client_entry(self, alias: str, port: int, *lines: str) -> str:
        """Return an entry of ssh_config for this server, reached at ``port``."""
        every = (
            "HostName 127.0.0.1",
            f"Port {port}",
            f"User {getpass.getuser()}",
            f"IdentityFile {self.client_key}",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null",
            f"HostKeyAlias sshd-{self.port}",
            *lines,
        )
        return f"Host {alias}\n" + "".join(f"  {line}\n" for line in every)

    def trust(self, *kinds: str) -> None:
        """Write known_hosts with the host keys of these types."""
        lines = [(self.folder / f"host_{kind}.pub").read_text() for kind in kinds]
        self.known_hosts.write_text("".join(f"sshd-{self.port} {line}" for line in lines))

    def _start(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        config = self.folder / "sshd_config"
        lines = (
            *options,
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"PidFile {self.folder / 'pid'}",
            *(f"HostKey {key}" for key in self.host_keys.values()),
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
            "PerSourcePenalties no" if takes_penalties() else "",
            "Subsystem sftp internal-sftp",
        )
        config.write_text("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation wants it
        sshd = find_sshd()
        assert sshd
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen([sshd, "-D", "-e", "-f", config], stderr=log)
        wait_for_port(self.port, process)
        return process


def takes_penalties() -> bool:
    """Tell whether this sshd (from 9.8) would lock loopback out after refused logins."""
    told = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    version = told.removeprefix("OpenSSH_").split("p")[0].split(".")
    return tuple(int(part) for part in version[:2]) >= (9, 8)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    message = f"sshd did not start (exit {process.poll()}): see its log"
    raise RuntimeError(message)
