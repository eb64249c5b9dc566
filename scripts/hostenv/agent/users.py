"""Which processes use which build, in whatever mount namespace they live.

A path does not suffice: a container may see a build under another one. So a process uses a build where

* a word of its command line or environment, its executable, working folder, an open file or a mapped one
  lies under the build's path, or under that of a generation or link that leads to it;
* a mapped file has the inode and the name of one of the build's;
* any of these, or a mount of its namespace, has the build's id as a part of its path.

A process that may not be looked into is unknown, unless it started before there was any of the builds and its
command line, which everybody may read, names none: then it runs something else.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from hostenv.agent import commandline
from hostenv.agent.amounts import processes

if TYPE_CHECKING:
    from hostenv.agent.layout import Layout

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/PID/stat."""
_FLAGS = 6
"""Where the flags stand after the name: proc(5), field 9."""
_START = 19
"""Where the start stands after the name, in ticks since the machine's: proc(5), field 22."""
_NAMED = 5

Named = Tuple[int, str]
"""Inode and name of a mapped file: by these it is known in whatever mount namespace, and where a filesystem
tells another device in maps than in stat (btrfs, overlayfs)."""


@dataclass
class Seen:
    """What a look at all processes found.

    ``by_path``: build → pid → how it uses it; ``mapped``: a file → the processes that have mapped it;
    ``unknown``: why some could not be looked into.
    """

    by_path: Dict[str, Dict[int, str]] = field(default_factory=dict)
    mapped: Dict[Named, Dict[int, str]] = field(default_factory=dict)
    unknown: List[str] = field(default_factory=list)

    def users_of(self, build: str, files: Iterable[Named] = ()) -> List[Dict[str, Any]]:
        """Return the users of a build, of whose files ``files`` are mapped by somebody."""
        found: Dict[int, str] = {}
        for each in files:
            found.update({pid: f"maps {path}" for pid, path in self.mapped.get(each, {}).items()})
        found.update(self.by_path.get(build, {}))
        return [{"pid": pid, "name": _name(pid), "how": found[pid]} for pid in sorted(found)]


def look(layout: Layout, builds: Iterable[str], since: float = 0.0) -> Seen:
    """Look at every process that ``/proc`` shows, for uses of ``builds`` (ids).

    ``since`` is when the oldest of them was made, in Unix time. This process and those that started it count
    by what they run, not by their environment.
    """
    seen = Seen()
    targets = _Targets(layout, builds)
    if _hides():
        seen.unknown.append("/proc is mounted with hidepid: processes of other users are not shown")
    own = _ancestors()
    unread: List[str] = []
    mounts: Dict[str, Set[str]] = {}
    booted = _booted()
    for pid in _pids():
        if pid == own[0] or _is_kernel_thread(pid):
            continue
        is_read = _note(pid, targets, seen, by_environment=pid not in own)
        for build in _mounted(pid, targets, mounts):
            seen.by_path.setdefault(build, {}).setdefault(pid, "a mount of its namespace")
        if not is_read and not _is_older(pid, booted, since):
            unread.append(f"{pid} {_name(pid)}")
    if unread:
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        listed = ", ".join(unread[:_NAMED])
        seen.unknown.append(f"{processes(len(unread))} may not be looked into: {listed}{more}")
    return seen


class _Targets:
    """The builds, by the paths that a process may know them by."""

    def __init__(self, layout: Layout, builds: Iterable[str]) -> None:
        self._ids = frozenset(builds)
        self._prefixes: Dict[str, str] = {}
        for number in layout.generation_numbers():
            env = os.path.join(layout.generation(number), "env")
            build = os.path.basename(os.path.realpath(env))
            if build in self._ids:
                self._prefixes[layout.generation(number)] = build
                self._prefixes[os.path.realpath(layout.generation(number))] = build

    def by_path(self, path: str) -> Optional[str]:
        """Return the build that a path leads into."""
        for part in path.split("/"):
            name = part.rpartition("-")[2]  # while it is being removed it is called .tmp-prune-ID
            if name in self._ids:
                return name
        for prefix, build in self._prefixes.items():
            if path == prefix or path.startswith(prefix + "/"):
                return build
        return None


def _note(pid: int, targets: _Targets, seen: Seen, *, by_environment: bool) -> bool:
    """Note the builds that a process uses, and how; tell whether all of it could be read."""
    folder = f"/proc/{pid}"
    try:
        for path, how in _paths(folder, by_environment=by_environment):
            build = targets.by_path(path)
            if build:
                told = f"{how} {path}" if how != "environment" else how  # its values may be secret
                seen.by_path.setdefault(build, {}).setdefault(pid, told)
        for inode, path in _mapped(f"{folder}/maps"):
            build = targets.by_path(path)
            if build:
                seen.by_path.setdefault(build, {}).setdefault(pid, f"maps {path}")
            seen.mapped.setdefault((inode, os.path.basename(path)), {})[pid] = path
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
    except OSError:
        return False
    return True


def _paths(folder: str, *, by_environment: bool) -> Iterator[Tuple[str, str]]:
    for word in commandline.words(folder):
        yield word, "command line"
    for link in ("exe", "cwd", "root"):
        yield _target(f"{folder}/{link}"), link
    for word in commandline.absolute(folder, by_environment=by_environment):
        yield word, "command line"
    if by_environment:
        for word in _words(f"{folder}/environ"):
            for part in word.partition("=")[2].split(":"):
                yield part, "environment"
    for name in os.listdir(f"{folder}/fd"):
        yield _target(f"{folder}/fd/{name}"), "open file"


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed meanwhile, or a process that is about to end


def _words(path: str) -> List[str]:
    with open(path, "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0") if word]


def _mapped(path: str) -> Iterator[Tuple[int, str]]:
    """Yield inode and path of every mapped file, each once: proc(5), six columns."""
    seen = set()
    with open(path, "rb") as file:
        for line in file.read().splitlines():
            columns = line.split(None, 5)
            if len(columns) > 5 and columns[5].startswith(b"/"):  # noqa: PLR2004  the sixth is the path
                seen.add((int(columns[4]), os.fsdecode(columns[5]).replace(" (deleted)", "")))
    yield from seen


def _mounted(pid: int, targets: _Targets, known: Dict[str, Set[str]]) -> Set[str]:
    """Return the builds that are mounted in a process's namespace; each namespace is read once."""
    try:
        namespace = os.readlink(f"/proc/{pid}/ns/mnt")
        if namespace not in known:
            with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounted = [line.split(" ")[3:5] for line in file]
            known[namespace] = {
                build for pair in mounted for path in pair for build in [targets.by_path(path)] if build
            }
    except OSError:
        return set()
    return known[namespace]


def _pids() -> List[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _ancestors() -> List[int]:
    """Return this process, the one that started it, and so on."""
    pid, found = os.getpid(), []
    while pid > 0:
        found.append(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _is_kernel_thread(pid: int) -> bool:
    fields = _stat(pid)
    return len(fields) > _FLAGS and bool(int(fields[_FLAGS]) & _KERNEL_THREAD)


def _is_older(pid: int, booted: Optional[float], since: float) -> bool:
    """Tell whether a process is older than a time, or has ended; what cannot be told is not older.

    A time that is still to come is no time: the clock was set back since.
    """
    fields = _stat(pid)
    if len(fields) <= _START:
        return not os.path.exists(f"/proc/{pid}")
    if since > time.time():
        return False
    return booted is not None and booted + int(fields[_START]) / os.sysconf("SC_CLK_TCK") < since


def _booted() -> Optional[float]:
    """Return when the machine started, in Unix time."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return next((float(line.split()[1]) for line in file if line.startswith("btime ")), None)
    except (OSError, ValueError):
        return None


def _stat(pid: int) -> List[bytes]:
    """Return the fields of /proc/PID/stat after the name, which may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip() or "?"
    except OSError:
        return "?"


def _hides() -> bool:
    """Tell whether other users' processes are not even listed: process 1 always runs."""
    return not os.path.exists("/proc/1")
