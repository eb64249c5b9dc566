"""Space and mount options of the places that an environment uses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple

from hostenv.agent.probe.fact import Json, UnknownError
from hostenv.agent.probe.intime import Question, ask, fact_question

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``; ``number`` is that of the device, ``major:minor``."""

    point: str
    kind: str
    source: str
    options: List[str]
    number: str


def questions(tree: Tree, table: List[Mount], paths: List[str]) -> List[Question]:
    """Return, for each path, the question after the filesystem that holds it, or will once it is made."""
    return [
        fact_question(f"statvfs(3) of {path}, /proc/self/mountinfo", _disk, tree, table, path)
        for path in paths
    ]


def read(tree: Tree, paths: List[str]) -> List[Json]:
    """Return the facts of these filesystems."""
    try:
        table = mounts(tree)
    except OSError:
        table = []
    return ask({"disks": questions(tree, table, paths)})["disks"]


def mounts(tree: Tree) -> List[Mount]:
    """Return the mounts that this process sees; a later one covers an earlier one at the same place."""
    found = []
    for line in tree.text("/proc/self/mountinfo").splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if separator and len(fields) > 5 and len(rest) > 2:  # noqa: PLR2004  proc(5): fields up to options
            options = sorted(set(fields[5].split(",")) | set(rest[2].split(",")))
            mount = Mount(_unescaped(fields[4]), rest[0], _unescaped(rest[1]), options, fields[2])
            found.append(mount)
    return found


def mount_of(table: List[Mount], path: str) -> Mount:
    """Return the mount that holds an absolute path whose links are resolved."""
    holding = [each for each in table if path == each.point or path.startswith(each.point.rstrip("/") + "/")]
    if not holding:
        raise UnknownError("no mount is shown for it")
    longest = max(len(each.point) for each in holding)
    return [each for each in holding if len(each.point) == longest][-1]


def _disk(tree: Tree, table: List[Mount], path: str) -> Dict[str, Any]:
    standing = path
    while not tree.exists(standing):
        standing = os.path.dirname(standing)
    real = os.path.realpath(tree.path(standing))
    volume = os.statvfs(real)
    mount = mount_of(table, real)
    return {
        "path": path,
        "exists": standing == path,
        "mount": mount.point,
        "filesystem": mount.kind,
        "device": mount.source,
        "total": volume.f_blocks * volume.f_frsize,
        "free": volume.f_bavail * volume.f_frsize,
        "files_free": volume.f_favail,
        "noexec": bool(volume.f_flag & os.ST_NOEXEC),
        "read_only": bool(volume.f_flag & os.ST_RDONLY),
        "options": mount.options,
    }


def _unescaped(field: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field
