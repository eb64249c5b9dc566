"""Where a process's files really lie: in the root that is probed, or in another one.

``/proc/PID/exe``, the command line and the maps name paths in the *process's* root. The same path here may
be another file, or none: it is read through ``/proc/PID/root`` where that is permitted, or it is unknown.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Dict, List, Optional

from hostenv.agent.probe.container import same_file
from hostenv.agent.probe.fact import Json, fact, known, reason_of, unknown
from hostenv.agent.probe.process import Process, read
from hostenv.agent.probe.tree import Tree
from hostenv.agent.probe.venvs import describe

if TYPE_CHECKING:
    from hostenv.agent.probe.distributions import Budget

_IN_SITE = re.compile(r"(/.*)/lib(?:64)?/python3\.\d+t?/site-packages/")


def executable(process: Process) -> Json:
    """Return the path of its executable, as the process itself sees it."""
    return fact(process.path("exe"), os.readlink, process.path("exe"))


def place(process: Process, own: Dict[str, int]) -> Json:
    """Return ``here`` or ``elsewhere``: whether its executable is a file of the probed root.

    Another mount namespace alone does not tell: systemd gives one to every service with PrivateTmp. So
    another PID namespace, another root folder, or another file at the executable's path makes it elsewhere.
    """
    how = f"{process.path('ns')}, {process.path('root')}"
    try:
        return known("elsewhere" if _is_elsewhere(process, own) else "here", how)
    except OSError as error:
        return unknown(reason_of(error), how)


def _is_elsewhere(process: Process, own: Dict[str, int]) -> bool:
    if process.namespace("mnt") == own.get("mnt"):
        return os.readlink(process.path("root")) != "/"  # chroot
    if process.namespace("pid") != own.get("pid") or not same_file(process.path("root") + "/.", "/"):
        return True
    path = os.readlink(process.path("exe"))
    try:
        return not same_file(process.path("exe"), path)
    except FileNotFoundError:
        return not path.endswith(" (deleted)")  # an upgraded executable is no other root's


def venv(process: Process, arguments: List[str], own: Dict[str, int], budget: Budget) -> Json:
    """Return the environment that the process runs from, read in the process's own root."""
    how = f"{process.path('cmdline')}, {process.path('maps')}"
    try:
        away = _is_elsewhere(process, own)
        tree = Tree(process.path("root") if away else "/")
        os.stat(process.path("root") + "/.")
    except OSError as error:
        return unknown(reason_of(error), process.path("root"))
    path = _of_command(tree, arguments)
    if path is None:
        try:
            path = _of_maps(tree, read(process.path("maps"), 1 << 24))
        except OSError as error:
            return unknown(reason_of(error), process.path("maps"))
    if path is None:
        return known(None, how)
    through = f"{process.path('root')}{path}" if away else path
    return fact(through, describe, tree, path, budget)


def _of_command(tree: Tree, arguments: List[str]) -> Optional[str]:
    """Return the environment whose interpreter or script is the first or second word."""
    for word in arguments[:2]:
        folder, name = os.path.split(word)
        parent = os.path.dirname(folder)
        in_bin = word.startswith("/") and name and os.path.basename(folder) == "bin"
        if in_bin and tree.exists(f"{parent}/pyvenv.cfg"):
            return parent
    return None


def _of_maps(tree: Tree, maps: str) -> Optional[str]:
    """Return the environment whose extensions are mapped: a process that wrote its own title has no path."""
    for line in maps.splitlines():
        match = _IN_SITE.search(line)
        if match and tree.exists(f"{match.group(1)}/pyvenv.cfg"):
            return match.group(1)
    return None
