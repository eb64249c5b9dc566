"""Ending sessions in the middle, in every way that happens, and seeing that nothing of them runs on."""

from __future__ import annotations

import contextlib
import enum
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from kit.fleet import descendants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kit.forwarder import Forwarder
    from kit.repository import Repository

PATIENCE = 20.0
"""Seconds in which everything that a dead session had started must be gone, on a slow machine, too."""

_BALLAST = "ballast"
_PAGE = 4096


class Kill(enum.StrEnum):
    """What ends a session before its time."""

    CONTROLLER = "controller"
    AGENT = "agent"
    SSHD = "sshd"
    LINK = "link"
    DISK = "disk full"


def start(repository: Repository, session: str, *words: str) -> subprocess.Popen[str]:
    """Start the real nox on a session, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "nox", "-s", session, "--", *words],
        cwd=repository.path,
        env=repository.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ours(repository: Repository) -> dict[int, str]:
    """Return pid → command of what knows the repository's folder by command line, environment or cwd."""
    mark = str(repository.folder).encode()
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            known = words + (folder / "environ").read_bytes() + bytes((folder / "cwd").readlink())
        except OSError:
            continue
        if mark in known and int(folder.name) != os.getpid():
            found[int(folder.name)] = words.replace(bytes(1), b" ").decode(errors="replace")
    return found


def all_gone(repository: Repository, sshd: int | None = None) -> bool:
    """Wait until no process is left, below ``sshd`` neither; tell whether that came."""
    deadline = time.monotonic() + PATIENCE
    while left := {*ours(repository), *(descendants(sshd) if sshd else ())} - {sshd}:
        if time.monotonic() > deadline:
            return not left
        time.sleep(0.02)
    return True


def end(pids: Iterable[int]) -> None:
    """Send SIGKILL to what is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Victim:
    """A host behind an OpenSSH server (``sshd``: its process) and a ``link``."""

    def __init__(self, root: pathlib.Path, sshd: int, link: Forwarder) -> None:
        self.root = root
        self.sshd = sshd
        self.link = link
        self._aimed_at: list[int] = []

    def aim(self, kill: Kill) -> None:
        """Look who will have to be killed: finding out takes longer than a switch."""
        if kill in {Kill.AGENT, Kill.SSHD}:
            is_meant = _is_agent if kill is Kill.AGENT else _is_sshd
            self._aimed_at = [pid for pid in descendants(self.sshd) if is_meant(pid)]

    def strike(self, kill: Kill, controller: subprocess.Popen[str]) -> None:
        """End a session, or what it stands on; what is not there yet, or no more, is left alone."""
        if kill is Kill.CONTROLLER:
            controller.kill()
        elif kill is Kill.LINK:
            self.link.cut()
        elif kill is Kill.DISK:
            self.fill()
        else:
            end(self._aimed_at)
            self.aim(kill)
            end(self._aimed_at)

    def fill(self) -> None:
        """Take all that is free on the root's disk."""
        volume = os.statvfs(self.root)
        size = volume.f_bavail * volume.f_frsize
        with (self.root / _BALLAST).open("wb") as file:
            while size >= _PAGE:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), size)
                    file.seek(0, os.SEEK_END)
                except OSError:
                    size //= 2

    def heal(self) -> None:
        """Give the disk's room back."""
        (self.root / _BALLAST).unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size: str) -> Iterator[str | None]:
    """Put all that lies in ``folder`` on a disk of its own; yields why that cannot be, ``None`` where it is.

    Afterwards the folder is what it was before.
    """
    aside = folder.with_name(f"{folder.name}-aside")
    folder.rename(aside)
    folder.mkdir()
    try:
        argv = ("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder))
        problem = _told(argv)
        if problem is None:
            subprocess.run(["cp", "-a", f"{aside}/.", folder], check=True)
        yield problem
    finally:
        _told(("umount", "-l", str(folder)))
        folder.rmdir()
        aside.rename(folder)


def _told(argv: tuple[str, ...]) -> str | None:
    """Run a command; return what it said where it failed."""
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return f"needs {argv[0]} (util-linux)"
    return f"no small disk: {done.stderr.strip()}" if done.returncode else None


def _is_agent(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"memfd_create" in words and _program(pid).startswith("python") and os.getpgid(pid) == pid
    return False


def _is_sshd(pid: int) -> bool:
    return _program(pid).startswith("sshd")


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/exe").readlink().name
    return ""
