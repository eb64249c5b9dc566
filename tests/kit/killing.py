"""Ending sessions in the middle, and seeing that nothing of them runs on."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.repository import Repository

PATIENCE = 30.0
"""Seconds in which everything that a dead session had started must be gone."""


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


def ours(repository: Repository) -> list[int]:
    """Return the processes that know of the repository's folder by command line, environment or cwd."""
    mark = str(repository.folder).encode()
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            known = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            known += bytes((folder / "cwd").readlink())
        except OSError:
            continue
        if mark in known and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def all_gone(repository: Repository) -> bool:
    """Wait until no process is left; tell whether that came."""
    deadline = time.monotonic() + PATIENCE
    while ours(repository) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not ours(repository)
