"""The builds under a root: what each costs on the disk, how old it is, and everything that uses it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Container, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from hostenv.agent import users
from hostenv.agent.layout import OWN, Layout, is_identifier, is_there, read_json

if TYPE_CHECKING:
    from hostenv.agent.users import Named
    from hostenv.agent.wire import Wire

BLOCK = 512
"""Bytes of a block as stat(2) counts them, whatever the filesystem's own are."""

Inode = Tuple[int, int]


@dataclass
class Usage:
    """What lies below a folder: inodes → bytes on the disk, those linked from elsewhere, those mapped."""

    inodes: Dict[Inode, int] = field(default_factory=dict)
    shared: Set[Inode] = field(default_factory=set)
    mapped: Set[Named] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes on the disk, each inode once."""
        return sum(self.inodes.values())

    @property
    def freed(self) -> int:
        """Bytes that removing it would free: inodes that are linked from elsewhere stay."""
        return sum(size for inode, size in self.inodes.items() if inode not in self.shared)


def usage(folder: str, mapped: Container[Named] = frozenset()) -> Usage:
    """Add up what lies below a folder, itself included; what vanishes meanwhile is not counted.

    ``mapped`` are (inode, name) of files that processes have mapped: those found here are noted.
    """
    found = Usage()
    outside: Dict[Inode, int] = {}
    for name, status in _below(folder):
        inode = (status.st_dev, status.st_ino)
        found.inodes[inode] = status.st_blocks * BLOCK
        if (status.st_ino, name) in mapped:
            found.mapped.add((status.st_ino, name))
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            outside[inode] = outside.get(inode, status.st_nlink) - 1
    found.shared = {inode for inode, left in outside.items() if left}
    return found


def _below(folder: str) -> Iterator[Tuple[str, os.stat_result]]:
    try:
        yield os.path.basename(folder), os.lstat(folder)
    except OSError:
        return
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.name, status
            if stat.S_ISDIR(status.st_mode):
                waiting.append(entry.path)


def builds(wire: Wire, *, root: str) -> Dict[str, Any]:
    """Return every finished build with its cost and its users, and what else lies under the root.

    Nothing is written. ``unknown``: why some processes could not be looked into; a build may have users
    among them.
    """
    layout = Layout(os.path.expanduser(root))
    wire.event(phase="builds")
    names = layout.finished_builds()
    seen = users.look(layout, names, oldest(layout, names))
    measured = {name: usage(layout.build(name), seen.mapped) for name in names}
    roles = roles_of(layout)
    volume = os.statvfs(layout.root) if os.path.isdir(layout.root) else None
    return {
        "root": layout.root,
        "free": volume.f_bavail * volume.f_frsize if volume else None,
        "builds": [
            describe(layout, name, each, roles.get(name, []), seen.users_of(name, each.mapped))
            for name, each in measured.items()
        ],
        "unfinished": [{"path": path, "size": usage(path).size} for path in unfinished(layout)],
        "orphans": [
            {"path": path, "size": usage(path).size}
            for path in (*orphaned_caches(layout).values(), *stale_generations(layout))
        ],
        "unknown": seen.unknown,
        "astray": layout.astray(),
    }


def oldest(layout: Layout, names: Iterable[str]) -> float:
    """Return when the oldest of some builds was made, as early as its files tell."""
    moments = [
        min(status.st_mtime, status.st_ctime)
        for name in names
        for status in [_status(os.path.join(layout.build(name), OWN, "facts.json"))]
        if status
    ]
    return min(moments, default=0.0)


def describe(
    layout: Layout, name: str, measured: Usage, roles: List[str], used_by: List[Dict[str, Any]]
) -> Dict[str, Any]:
    """Return what is told of one build; times are Unix times."""
    folder = layout.build(name)
    facts = read_json(os.path.join(folder, OWN, "facts.json")) or {}
    generations = generations_of(layout).get(name, [])
    receipts = [layout.receipt(number) or {} for number in generations]
    made = _status(os.path.join(folder, OWN, "facts.json")) or _status(folder)
    return {
        "build": name,
        "path": folder,
        "size": measured.size,
        "freed": measured.freed,
        "files": len(measured.inodes),
        "made": made.st_mtime if made else 0.0,
        "activated": max((receipt.get("made", 0.0) for receipt in receipts), default=None),
        "fingerprint": facts.get("tree", {}).get("fingerprint"),
        "interpreter": facts.get("tree", {}).get("interpreter", {}).get("version"),
        "sound": is_there(os.path.join(folder, "bin", "python")),
        "roles": roles,
        "generations": generations,
        "processes": used_by,
    }


def roles_of(layout: Layout) -> Dict[str, List[str]]:
    """Return for each build what it is to the host: ``current``, ``previous``, ``staged``."""
    roles: Dict[str, List[str]] = {}
    number = layout.current_number()
    receipt = (layout.receipt(number) or {}) if number is not None else {}
    previous = receipt.get("previous")
    before = (layout.receipt(previous) or {}) if previous is not None else {}
    staged = read_json(layout.staged) or {}
    told: List[Tuple[str, Optional[Dict[str, Any]]]] = [
        ("current", receipt),
        ("previous", before),
        ("staged", staged),
    ]
    for role, each in told:
        if each and each.get("build"):
            roles.setdefault(each["build"], []).append(role)
    if number is not None:
        real = os.path.basename(os.path.realpath(os.path.join(layout.current, "env")))
        if "current" not in roles.setdefault(real, []):
            roles[real].append("current")
    return roles


def generations_of(layout: Layout) -> Dict[str, List[int]]:
    """Return the numbers of the generations that each build was."""
    found: Dict[str, List[int]] = {}
    for number in layout.generation_numbers():
        build = (layout.receipt(number) or {}).get("build")
        if build:
            found.setdefault(build, []).append(number)
    return found


def unfinished(layout: Layout) -> List[str]:
    """Return what killed sessions left: builds without an id, half-removed ones, half-written generations."""
    found = []
    for folder in (layout.builds, layout.generations):
        found += [os.path.join(folder, name) for name in _names(folder) if name.startswith(".tmp-")]
    return found


def orphaned_caches(layout: Layout) -> Dict[str, str]:
    """Return the JIT caches of builds that are gone, by their ids."""
    folder = os.path.join(layout.root, "jit")
    there = set(layout.finished_builds())
    names = [name for name in _names(folder) if is_identifier(name) and name not in there]
    return {name: os.path.join(folder, name) for name in names}


def stale_generations(layout: Layout) -> List[str]:
    """Return the generations whose build is gone, the current one and the one before it never."""
    number = layout.current_number()
    if number is None:
        return []
    previous = (layout.receipt(number) or {}).get("previous")
    there = set(layout.finished_builds())
    return [
        layout.generation(each)
        for build, numbers in generations_of(layout).items()
        for each in (numbers if build not in there else ())
        if each not in {number, previous}
    ]


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _status(path: str) -> Optional[os.stat_result]:
    try:
        return os.lstat(path)
    except OSError:
        return None
