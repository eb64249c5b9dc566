"""The mounts of a host that do not answer, found before anything asks them for a file."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

from hostenv.agent.probe.intime import Question, ask
from hostenv.agent.probe.masking import masked_text

if TYPE_CHECKING:
    from hostenv.agent.probe.disks import Mount

SECONDS = 4.0
"""Seconds that a mount has to tell its size."""
MOST = 200
"""Mounts that are asked; a host of containers has thousands."""
# fmt: off
_IN_MEMORY = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "overlay", "proc", "pstore", "ramfs",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tmpfs", "tracefs",
))
# fmt: on
"""What no disk and no server stands behind; and autofs, which mounts what is asked for."""


def mounts(table: Sequence[Mount], seconds: float = SECONDS) -> Dict[str, str]:
    """Return mount point → reason of those that have not told their size (statvfs) in time.

    Nothing is asked of the root folder: this process runs from it.
    """
    points: Dict[Tuple[str, str], List[Mount]] = {}
    for each in table:
        if each.kind not in _IN_MEMORY and each.point != "/":
            points.setdefault((each.number, each.source), []).append(each)
    asked = list(points.values())[:MOST]
    answers = ask({"mounts": [_question(same[0].point, seconds) for same in asked]})["mounts"]
    return {
        each.point: f"{each.point} ({each.kind}, {masked_text(each.source)}) does not tell its size: {reason}"
        for same, reason in zip(asked, answers)
        if reason
        for each in same
    }


def _question(point: str, seconds: float) -> Question:
    def read() -> None:
        with contextlib.suppress(OSError):  # an answer, too: what lies there will fail by itself
            os.statvfs(point)

    return Question(read, str, seconds)
