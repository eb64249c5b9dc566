"""Which processes use a path: what a switch or a removal would pull from under them."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence

from hostenv.agent import commandline

_OF_A_SHELL = frozenset({"PATH", "VIRTUAL_ENV", "PWD", "OLDPWD", "_"})
"""Variables that an activated shell gives to all that it starts. In a Python they may be how it found its
environment; in any other program they say nothing of what it runs."""


def users_of(paths: Sequence[str]) -> List[Dict[str, Any]]:
    """Return the processes that use one of ``paths`` or something below it.

    Looked at: executable, working directory, command line, environment, mapped files, open files. Each
    entry says ``pid``, ``name`` and ``how``. The environment that this process has from those that started
    it counts for none of them: it is the operator's shell. A process whose details may not be read is left
    out here: its owner is another user, whom the root of a host sees and others do not.
    """
    prefixes = tuple(path.rstrip("/") for path in paths)
    own = _line(os.getpid())
    found = []
    for pid in _pids():
        how = None if pid == own[0] else next(_uses(pid, prefixes, by_environment=pid not in own), None)
        if how:
            found.append({"pid": pid, "name": _name(pid), "how": how})
    return found


def through(link: Optional[str], current: str) -> List[Dict[str, Any]]:
    """Return the processes that reach the current build by ``link`` or ``current``, not by its own path.

    Their command line or environment names it; or they have mapped files of the build, and neither they nor
    any process above them names its own path: a server that writes its own title keeps no command line.
    """
    paths = [path for path in (link, current) if path]
    paths += [os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in paths]
    build, own, found = os.path.realpath(os.path.join(current, "env")), _line(os.getpid()), []
    for pid in _pids():
        how = None if pid == own[0] else next(_says(pid, paths, by_environment=pid not in own), None)
        if how is None and pid != own[0]:  # what the kernel shows of files has no link in its path
            how = next((path for path in _mapped(f"/proc/{pid}/maps") if _below(path, [build])), None)
            names_it = how is None or any(_names(each, build) for each in _line(pid))
            how = None if names_it else f"maps {how}, and does not name the build"
        if how:
            found.append({"pid": pid, "name": _name(pid), "how": how})
    return found


def _names(pid: int, build: str) -> bool:
    """Tell whether a process says the build's own path in its executable, command line or environment."""
    folder = f"/proc/{pid}"
    told = [*_links([f"{folder}/exe"]), *_command(folder)]
    told += [part for word in _words(f"{folder}/environ") for part in word.partition("=")[2].split(":")]
    return any(_below(each, [build]) for each in told)


def _command(folder: str) -> List[str]:
    """Return the words of a command line, relative paths also as absolute ones; none of a closed process."""
    found = _words(f"{folder}/cmdline")
    with contextlib.suppress(OSError):
        found += commandline.absolute(folder)
    return found


def _pids() -> List[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _line(pid: int) -> List[int]:
    """Return a process, the one that started it, and so on."""
    found = []
    while pid > 0:
        found.append(pid)
        after_name = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        pid = int(after_name[1]) if len(after_name) > 1 else 0
    return found


def _uses(pid: int, prefixes: Sequence[str], *, by_environment: bool) -> Iterator[str]:
    folder = f"/proc/{pid}"
    for what in ("exe", "cwd"):
        yield from (f"{what} {path}" for path in _links([f"{folder}/{what}"]) if _below(path, prefixes))
    yield from _says(pid, prefixes, by_environment=by_environment)
    yield from (f"maps {path}" for path in _mapped(f"{folder}/maps") if _below(path, prefixes))
    yield from (f"open file {path}" for path in _links(_descriptors(folder)) if _below(path, prefixes))


def _says(pid: int, prefixes: Sequence[str], *, by_environment: bool) -> Iterator[str]:
    """Yield where a process's command line or environment names a path."""
    folder = f"/proc/{pid}"
    for word in _command(folder):
        yield from (f"command line: {word}" for _ in (1,) if _below(word, prefixes))
    for word in _words(f"{folder}/environ") if by_environment else ():
        name, _, value = word.partition("=")
        if name not in _OF_A_SHELL or _is_python(folder):
            yield from (f"environment: {name}" for part in value.split(":") if _below(part, prefixes))


def _is_python(folder: str) -> bool:
    return any(os.path.basename(path).startswith("python") for path in _links([f"{folder}/exe"]))


def _below(path: str, prefixes: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)


def _links(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        try:
            yield os.readlink(path)
        except OSError:
            continue


def _descriptors(folder: str) -> List[str]:
    try:
        return [f"{folder}/fd/{name}" for name in os.listdir(f"{folder}/fd")]
    except OSError:
        return []


def _words(path: str) -> List[str]:
    return [os.fsdecode(word) for word in _read(path).split(b"\0") if word]


def _mapped(path: str) -> Iterator[str]:
    seen = set()
    for line in _read(path).splitlines():
        name = line[line.find(b"/") :] if b"/" in line else b""  # the five columns before it hold none
        if name and name not in seen:
            seen.add(name)
            yield os.fsdecode(name)


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").decode(errors="replace").strip() or "?"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
