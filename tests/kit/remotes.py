"""Hosts behind SSH on this machine, each with an identity of its own: OpenSSH's server, or one in Python.

What makes them machines of their own is small: a host key, a login environment, and a ``python3`` that shows
another ``/etc/machine-id``. Their roots are folders that a test chooses.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.pythons import find_python
from kit.sshd import Sshd, missing_sshd
from kit.sshserver import SshServer, new_key

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Mapping, Sequence

    from kit.repository import Repository

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

OLD_PYTHONS = ("3.8", "3.9")
"""What runs the agent of the last host, where it is there: the oldest that is supported."""

_SHOWS_ANOTHER_ID = """\
#!{python} -B
import builtins, sys
_open = builtins.open
def _other(path, *words, **more):
    return _open({machine_id!r} if path == "/etc/machine-id" else path, *words, **more)
builtins.open = _other
code = sys.argv[sys.argv.index("-c") + 1]
sys.argv = ["-c"]
exec(compile(code, "<string>", "exec"), {{"__name__": "__main__"}})
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteHost:
    """A running host. ``entry`` is what an ssh_config says of it, but for the alias and the port."""

    name: str
    home: pathlib.Path
    machine_id: str
    host_key: str
    port: int
    entry: str

    def configured(self, port: int | None = None, alias: str | None = None) -> str:
        """Return its entry of an ssh_config, reached at ``port`` (a forwarder's) or its own."""
        return f"Host {alias or self.name}\n  Port {port or self.port}\n{self.entry}\n"


@contextlib.contextmanager
def remote_hosts(
    folder: pathlib.Path, names: Sequence[str], interpreters: Mapping[str, str] | None = None
) -> Iterator[dict[str, RemoteHost]]:
    """Start hosts: OpenSSH's server where there is one, else the kit's own.

    ``interpreters`` says which one, by path, is all that a host has beside the system's; else each has this
    process's, and the last one's agent runs on the oldest that is supported.
    """
    with contextlib.ExitStack() as stack:
        own = os.path.realpath(sys.executable)
        old = next(filter(None, map(find_python, OLD_PYTHONS)), own)
        agents = dict.fromkeys(names, own) | {names[-1]: old} | dict(interpreters or {})
        yield {
            name: _start(stack, folder / name, name, agents[name], (interpreters or {}).get(name, own))
            for name in names
        }


def _start(
    stack: contextlib.ExitStack, folder: pathlib.Path, name: str, python: str, found: str
) -> RemoteHost:
    home = folder / "home"
    (home / "bin").mkdir(parents=True)
    machine_id = hashlib.sha256(name.encode()).hexdigest()[:32]
    (home / "machine-id").write_text(f"{machine_id}\n")
    shown = home / "bin/python3"
    shown.write_text(_SHOWS_ANOTHER_ID.format(python=python, machine_id=str(home / "machine-id")))
    shown.chmod(0o755)
    pythons = os.path.dirname(os.path.realpath(found))  # noqa: PTH120  a part of PATH
    variables = {"PATH": f"{home}/bin:{pythons}:/usr/bin:/bin", "HOME": str(home)}
    start = _with_sshd if missing_sshd() is None else _with_paramiko
    return start(stack, folder, name, machine_id, variables)


def _with_sshd(
    stack: contextlib.ExitStack, folder: pathlib.Path, name: str, machine_id: str, variables: dict[str, str]
) -> RemoteHost:
    words = " ".join(f"{key}={value}" for key, value in variables.items())
    server = stack.enter_context(Sshd(folder / "sshd", f"SetEnv {words}", alias=name, key_types=("ed25519",)))
    told = subprocess.run(
        ["ssh-keygen", "-lf", server.host_keys["ed25519"]], capture_output=True, text=True, check=True
    )
    lines = server.client_entry(name, server.port).splitlines()[1:]
    entry = "\n".join(line for line in lines if not line.strip().startswith("Port "))
    return RemoteHost(
        name=name,
        home=folder / "home",
        machine_id=machine_id,
        host_key=told.stdout.split()[1],
        port=server.port,
        entry=f"{entry}\n  HostKeyAlgorithms ssh-ed25519",
    )


def _with_paramiko(
    stack: contextlib.ExitStack, folder: pathlib.Path, name: str, machine_id: str, variables: dict[str, str]
) -> RemoteHost:
    client = new_key()
    server = stack.enter_context(SshServer(folder / "home", client_key=client, environment=variables))
    client.write_private_key_file(str(folder / "client"))
    digest = hashlib.sha256(server.host_key.asbytes()).digest()
    known = folder / "known_hosts"
    known.write_text(server.known_hosts_line())
    lines = (
        "HostName 127.0.0.1",
        "User tester",
        f"IdentityFile {folder / 'client'}",
        "IdentitiesOnly yes",
        "IdentityAgent none",
        f"UserKnownHostsFile {known}",
        "GlobalKnownHostsFile /dev/null",
        f"HostKeyAlias [127.0.0.1]:{server.port}",
    )
    return RemoteHost(
        name=name,
        home=folder / "home",
        machine_id=machine_id,
        host_key="SHA256:" + base64.b64encode(digest).rstrip(b"=").decode(),
        port=server.port,
        entry="\n".join(f"  {line}" for line in lines),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Remotes:
    """Hosts that a repository knows: writes their specs, the class that they share, and the ssh_config."""

    repository: Repository
    hosts: dict[str, RemoteHost]

    @property
    def _config(self) -> pathlib.Path:
        return self.repository.folder / "ssh_config"

    def install(self) -> dict[str, str]:
        """Put an ``ssh`` first on PATH that reads this folder's configuration; return the variables."""
        folder = self.repository.folder / "client-bin"
        folder.mkdir()
        real = shutil.which("ssh")
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {self._config} "$@"\n')
        (folder / "ssh").chmod(0o755)
        self.reach_by({})
        path = f"{folder}:{self.repository.environment['PATH']}"
        self.repository.environment["PATH"] = path
        return {"PATH": path}

    def reach_by(self, ports: dict[str, int], alias: dict[str, str] | None = None) -> None:
        """Write the ssh_config: ``ports`` are other ways to hosts, ``alias`` says what a name leads to."""
        leads = alias or {}
        entries = [self.hosts[leads.get(name, name)].configured(ports.get(name), name) for name in self.hosts]
        self._config.write_text("".join(entries))

    def root(self, name: str) -> pathlib.Path:
        """Return a host's root."""
        return self.repository.folder / "roots" / name

    def share(self, *requires: str, python: str = PYTHON, arch: str | None = None, env: str = "") -> None:
        """Write the class that every host extends: one lock for all."""
        wanted = ", ".join(json.dumps(each) for each in requires)
        folder = self.repository.path / "envspecs/classes"
        folder.mkdir(exist_ok=True)
        (folder / "kit.toml").write_text(
            f"[env]\nrequires = [{wanted}]\n{env}\n"
            f'[platform]\narch = "{arch or platform.machine()}"\nglibc = "2.17"\npython = "{python}"\n'
        )

    def spec(self, name: str, *, supply: str = "", identity: bool = True, more: str = "") -> None:
        """Write a host's spec."""
        host = self.hosts[name]
        known = f'[identity]\nmachine-id = "{host.machine_id}"\nhost-key = "{host.host_key}"\n'
        (self.repository.path / f"envspecs/{name}.toml").write_text(
            f'extends = "classes/kit"\n[host]\nroot = "{self.root(name)}"\n{known if identity else ""}'
            f'[supply]\n{supply}\n[build]\nmin-free = "1MiB"\n{more}\n'
        )
