"""A build on many hosts at once, by a controller in a process of its own whose memory is watched."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.steps import supply_uv
from kit.fleet import descendants
from kit.remotes import Remotes, remote_hosts
from kit.repository import repository_in

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAGE = os.sysconf("SC_PAGE_SIZE")
LARGE = 8 << 20
"""Bytes of a wheel that every host is sent."""
MOST_SECONDS = 600.0
_LOOK = 0.02
"""Seconds between two looks at the controller's memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Many:
    """What became of the hosts (the session's JSON), and what it took.

    ``peak`` is bytes of RSS, the controller and all that it had started added up; ``seconds`` are its.
    """

    hosts: Sequence[dict[str, Any]]
    seconds: float
    peak: int
    output: str


def build_on_many(folder: pathlib.Path, count: int, jobs: int) -> Many:
    """Build on ``count`` hosts behind SSH, ``jobs`` at a time, offline: each has its own sshd, key, and root.

    uv is there already, as after an earlier build: its 60 MB for each would measure something else.
    """
    names = [f"host{number:02}" for number in range(count)]
    with repository_in(folder) as repository, remote_hosts(folder / "hosts", names) as hosts:
        remotes = Remotes(repository=repository, hosts=hosts)
        remotes.install()
        repository.wheel("large", "1.0", {"large/blob": os.urandom(LARGE)})
        remotes.share("demo==1.0", "large==1.0")
        given = shutil.copy(supply_uv.own_binary().path, folder / "uv")
        for name in names:
            remotes.spec(name, supply="offline = true")
            place = pathlib.Path(supply_uv.own_binary().place(str(remotes.root(name))))
            place.parent.mkdir(parents=True)
            os.link(given, place)
        document = folder / "many.json"
        words = ("--relock", "--jobs", str(jobs), "--json", str(document))
        argv = [sys.executable, "-m", "nox", "-s", "build_env", "--", *names, *words]
        with (folder / "many.log").open("w+") as log:
            began = time.monotonic()
            process = subprocess.Popen(
                argv, cwd=repository.path, env=repository.environment, stdout=log, stderr=log, text=True
            )
            peak = _watched(process)
            seconds = time.monotonic() - began
            log.seek(0)
            output = log.read()
    told = json.loads(document.read_text()) if document.exists() else {"hosts": []}
    return Many(hosts=told["hosts"], seconds=seconds, peak=peak, output=output)


def _watched(process: subprocess.Popen[str]) -> int:
    """Wait for a process to end; return the most memory that it and its descendants held at one time.

    What has not ended after :data:`MOST_SECONDS` is killed.
    """
    peak = 0
    until = time.monotonic() + MOST_SECONDS
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
        peak = max(peak, sum(map(_resident, (process.pid, *descendants(process.pid)))))
        time.sleep(_LOOK)
    return peak


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0
