"""Real hosts on one machine: namespaces with their own sshd, host keys, hostname, machine id and boot id.

A host has its own network (loopback only), mounts, UTS name, processes, IPC and, where the kernel can, boot
clock. Its root is an overlay of this machine's: what it writes lies in ``Host.changes`` and nowhere else.
No address of another network exists: the client reaches a host's port 22 through a forwarder on loopback
whose far end is a socket of the host's network namespace. Everything ends with the host's first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Self

from kit import silentfs
from kit.forwarder import Forwarder
from kit.sshd import find_sshd, make_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SHARED_MEMORY = pathlib.Path("/dev/shm")  # noqa: S108  an overlay's upper folder needs another file system
HOME = "/home/operator"
_CLONE_NEWNET = 0x40000000
_NAMESPACES = ("--fork", "--kill-child", "--pid", "--mount", "--uts", "--net", "--ipc")
_EMPTY = ("tmp", "var/tmp", "run", "home", "root/.ssh")
_START = 60.0

_FIRST_PROCESS = """\
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
{boot_id}
hostname {name}
ip link set lo up
pivot_root . mnt
umount -l /mnt
cd /
{sshd} -e -f /etc/ssh/sshd_config
exec sleep infinity
"""

_SSHD_CONFIG = """\
ListenAddress 127.0.0.1
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin yes
MaxStartups 100
"""


def missing_fleet() -> str | None:
    """Say why no such hosts can be made here; ``None`` where they can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("unshare", "nsenter", "ip", "ssh-keygen", "pivot_root"):
        if not shutil.which(program):
            return f"needs {program} (util-linux, iproute2, openssh-client)"
    if not find_sshd():
        return "needs sshd (openssh-server)"
    mounts = (
        f"mount -t tmpfs t {SHARED_MEMORY} && cd {SHARED_MEMORY} && mkdir u w r && "
        "mount -t overlay o -o lowerdir=/,upperdir=u,workdir=w r"
    )
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "sh", "-c", mounts], check=False, capture_output=True, text=True
    )
    return f"no namespaces or overlays here: {tried.stderr.strip()}" if tried.returncode else None


class Host:
    """One host. ``changes`` is the folder of what differs from this machine; ``link`` the way to it."""

    def __init__(
        self, fleet: Fleet, name: str, *, inside: Host | None = None, files: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.inside = inside
        self.machine_id = hashlib.md5(f"machine {name}".encode(), usedforsecurity=False).hexdigest()
        self._folder = fleet.folder / name
        self.changes = self._folder / "upper"
        self._furnish(fleet, files or {})
        self._process = self._start()
        self.pid = self._first_process()
        self.link = Forwarder(self._connect)

    @property
    def host_key_line(self) -> str:
        """The public host key: type and bytes."""
        return " ".join((self.changes / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])

    @property
    def fingerprint(self) -> str:
        """The host key's fingerprint as ssh-keygen tells it."""
        key = self.changes / "etc/ssh/ssh_host_ed25519_key.pub"
        told = subprocess.run(["ssh-keygen", "-lf", key], check=True, capture_output=True, text=True)
        return told.stdout.split()[1]

    def run(self, *argv: str) -> str:
        """Run a command on the host, past SSH; return what it prints."""
        entered = ["nsenter", "--target", str(self.pid), "--all", *argv]
        return subprocess.run(entered, check=True, capture_output=True, text=True).stdout

    def reaches(self, port: int) -> Forwarder:
        """Let the host reach a port of this machine's loopback, at the same address."""
        listener = self._socket(lambda: socket.create_server(("127.0.0.1", port)))
        return Forwarder(("127.0.0.1", port), listener=listener)

    @contextlib.contextmanager
    def silent_mount(self, place: str, *options: str) -> Iterator[None]:
        """Mount a file system on the host that never answers (:mod:`kit.silentfs`)."""
        self.run("mkdir", "-p", place)
        program = pathlib.Path(silentfs.__file__).read_text(encoding="utf-8")
        argv = ("env", "-i", "PATH=/usr/bin:/bin", "python3", "-c", program, place, *options)
        entered = ["nsenter", "--target", str(self.pid), "--all", *argv]
        process = subprocess.Popen(entered, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout
            assert process.stdout.readline() == b"mounted\n"
            yield
        finally:
            process.communicate()  # it ends, and all that wait for it get an error
            self.run("umount", "-l", place)

    def new_host_key(self) -> None:
        """Give the host another key, as a reinstallation does."""
        key = "/etc/ssh/ssh_host_ed25519_key"
        self.run("rm", key, f"{key}.pub")
        self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        stop = "kill $(cat /run/sshd.pid); while test -e /run/sshd.pid; do sleep 0.01; done"
        started = "until test -s /run/sshd.pid; do sleep 0.01; done"  # the last that a starting sshd writes
        self.run("sh", "-c", f"{stop}; {find_sshd()} -f /etc/ssh/sshd_config; {started}")

    def listing(self) -> list[tuple[str, int, int, int, int]]:
        """List all that the host has changed: path, mode, inode, size and mtime; any write shows."""
        found = []
        for folder, folders, files in os.walk(self.changes):
            for path in (folder, *(f"{folder}/{name}" for name in (*folders, *files))):
                status = os.lstat(path)
                found.append((path, status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns))
        return sorted(set(found))

    def close(self) -> None:
        """End the host and all its processes."""
        self.link.__exit__()
        self._process.kill()
        self._process.wait()

    def _furnish(self, fleet: Fleet, files: Mapping[str, str]) -> None:
        for part in ("upper", "work", "root"):
            (self._folder / part).mkdir(parents=True)
        for path in _EMPTY:
            self._folder_of(path, empty=True)
        make_key(self._folder_of("etc/ssh", empty=True) / "ssh_host_ed25519_key")
        passwd = pathlib.Path("/etc/passwd").read_text().splitlines(keepends=True)
        every = {
            "etc/ssh/sshd_config": _SSHD_CONFIG,
            "etc/ssh/authorized_keys": fleet.client_key.with_suffix(".pub").read_text(),
            "etc/machine-id": f"{self.machine_id}\n",
            "etc/hostname": f"{self.name}\n",
            "etc/passwd": f"root:x:0:0:root:{HOME}:/bin/sh\n" + "".join(passwd[1:]),
            "run/boot_id": f"{boot_id(self)}\n",
            **files,
        }
        for path in ("run/sshd", HOME.removeprefix("/")):
            self._folder_of(path)
        for path, text in every.items():
            parent, _, name = path.rpartition("/")
            place = self._folder_of(parent) / name
            place.write_text(text)
            place.chmod(0o755 if text.startswith("#!") else 0o644)

    def _folder_of(self, path: str, *, empty: bool = False) -> pathlib.Path:
        """Make a folder of the host, in this machine's mode; ``empty`` hides what this machine has in it."""
        place, original = self.changes, pathlib.Path("/")
        for part in pathlib.PurePath(path).parts:
            place, original = place / part, original / part
            if not place.exists():
                place.mkdir()
                place.chmod(original.stat().st_mode & 0o7777 if original.exists() else 0o755)
        if empty:
            os.setxattr(place, "trusted.overlay.opaque", b"y")
        return place

    def _start(self) -> subprocess.Popen[bytes]:
        boot = f"mount --bind {self.changes}/run/boot_id proc/sys/kernel/random/boot_id"
        script = _FIRST_PROCESS.format(
            folder=shlex.quote(str(self._folder)),
            name=shlex.quote(self.name),
            sshd=find_sshd(),
            boot_id=boot,
        )
        entered: Sequence[str] = ("nsenter", "--target", str(self.inside.pid), "--all") if self.inside else ()
        clock = () if self.inside else boot_clock(self.name)
        mortal = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()  # we may be killed
        with (self._folder / "log").open("wb") as log:
            return subprocess.Popen(
                [*mortal, *entered, "unshare", *_NAMESPACES, *clock, "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _first_process(self) -> int:
        """Return the pid, in this machine's eyes, of the host's first process, once its sshd listens."""
        depth = 3 if self.inside else 2
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline and self._process.poll() is None:
            for pid in descendants(self._process.pid):
                inner = namespaced_pids(pid)
                if len(inner) == depth and inner[-1] == 1 and self._is_complete() and listens(pid):
                    return pid
            time.sleep(0.01)
        message = f"host {self.name} did not start: {(self._folder / 'log').read_text()}"
        raise RuntimeError(message)

    def _is_complete(self) -> bool:
        """Tell whether the host's sshd has written its pid: a listing would miss what it writes later."""
        written = self.changes / "run/sshd.pid"
        return written.exists() and written.stat().st_size > 0

    def _connect(self) -> socket.socket:
        """Return a connection to the host's sshd."""
        made = self._socket(lambda: socket.create_connection(("127.0.0.1", 22), 5))
        made.settimeout(None)
        return made

    def _socket(self, make: Callable[[], socket.socket]) -> socket.socket:
        """Make a socket in the host's network: it stays in the namespace that it was made in."""
        made: list[socket.socket | OSError] = []

        def enter_and_make() -> None:
            try:
                with open(f"/proc/{self.pid}/ns/net", "rb") as namespace:  # noqa: PTH123  no path of a file
                    enter_network(namespace.fileno())
                made.append(make())
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=enter_and_make)  # the namespace is a thread's
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]


class Fleet:
    """The hosts of a test, and the client's configuration that knows them by their names."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fleet-", dir=SHARED_MEMORY))
        self._stack.callback(shutil.rmtree, self.folder)
        self.client_key = make_key(self.folder / "client")
        self.client_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.touch()
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, *, inside: Host | None = None, files: Mapping[str, str] | None = None) -> Host:
        """Start a host; ``inside`` makes it a container of another, ``files`` are written to its root."""
        host = Host(self, name, inside=inside, files=files)
        self._stack.callback(host.close)
        self.hosts[name] = host
        with self.known_hosts.open("a") as known:
            known.write(f"{name} {host.host_key_line}\n")
        self.write_config()
        return host

    def write_config(self, delays: Mapping[str, float] | None = None, extra: str = "") -> None:
        """Write the client's configuration; ``delays`` are seconds of one way, ``extra`` lines come first."""
        entries = [extra]
        for name, host in self.hosts.items():
            host.link.delay = (delays or {}).get(name, 0.0)
            entries.append(f"Host {name}\n  Port {host.link.port}\n  HostKeyAlias {name}\n")
        every = (
            "HostName 127.0.0.1",
            "User root",
            f"IdentityFile {self.client_key}",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null",
        )
        entries.append("Host *\n" + "".join(f"  {line}\n" for line in every))
        self.client_config.write_text("".join(entries))


def enter_network(namespace: int) -> None:
    """Move this thread into a network namespace (setns(2); Python has it from 3.12)."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def boot_id(host: Host) -> str:
    """Return the boot id that a host shows: a container has its machine's."""
    owner = host.inside or host
    digits = hashlib.md5(f"boot {owner.name}".encode(), usedforsecurity=False).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def boot_clock(name: str) -> tuple[str, ...]:
    """Return what gives a host a boot clock of its own, where the kernel has time namespaces."""
    if not pathlib.Path("/proc/self/ns/time").exists():
        return ()
    return ("--time", "--boottime", str(10_000 + int(hashlib.sha256(name.encode()).hexdigest()[:4], 16)))


def recorded_smi(outputs: Mapping[str, str]) -> str:
    """Return an ``nvidia-smi`` that prints what was recorded for its arguments, and fails on any other."""
    cases = "".join(
        f"{shlex.quote(arguments)}) cat <<'RECORDED'\n{text.rstrip()}\nRECORDED\n;;\n"
        for arguments, text in outputs.items()
    )
    return f'#!/bin/sh\ncase "$*" in\n{cases}*) echo "unknown option: $*"; exit 2;;\nesac\n'


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        with contextlib.suppress(OSError):
            children = pathlib.Path(f"/proc/{waiting[0]}/task/{waiting[0]}/children").read_text().split()
            waiting += map(int, children)
            found += map(int, children)
        waiting.pop(0)
    return found


def namespaced_pids(pid: int) -> list[int]:
    """Return what a process is called in each pid namespace from this one inwards."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def listens(pid: int) -> bool:
    """Tell whether port 22 is listened to in a process's network namespace."""
    with contextlib.suppress(OSError):
        return ":0016 00000000:0000 0A" in pathlib.Path(f"/proc/{pid}/net/tcp").read_text()
    return False
