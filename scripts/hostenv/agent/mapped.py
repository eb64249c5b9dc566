"""Which processes have mapped files of an environment that are no longer what lies under their names.

A file that was replaced by rename stays mapped as ``PATH (deleted)``; the process runs the old bytes and
loads whatever it opens later from the new ones (proc(5), maps). Only processes of the same mount namespace
are told: the paths of others mean other files.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

_DELETED = " (deleted)"
_SHOWN = 6
_PATH = 5
"""The field of a line of maps that holds the path; it may hold spaces."""


def stale(root: str) -> Dict[str, Any]:
    """Return ``processes`` with ``pid``, ``name`` and replaced ``paths``; ``using``: how many map anything.

    ``hidden`` counts processes that may not be looked into.
    """
    own = _namespace("self")
    found: List[Dict[str, Any]] = []
    using = hidden = 0
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if pid == os.getpid():
            continue
        paths = _mapped(pid, root)
        if paths is None:
            hidden += 1
            continue
        if not paths or _namespace(str(pid)) != own:
            continue
        using += 1
        gone = [path[: -len(_DELETED)] for path in paths if path.endswith(_DELETED)]
        if gone:
            told = {"pid": pid, "name": _name(pid), "paths": gone[:_SHOWN], "count": len(gone)}
            found.append(told)
    return {"processes": found, "using": using, "hidden": hidden}


def _mapped(pid: int, root: str) -> Optional[List[str]]:
    """Return the mapped paths below ``root``; ``None`` where the process may not be looked into."""
    prefix = root + "/"
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            fields = (line.rstrip("\n").split(None, _PATH) for line in file if prefix in line)
            paths = (each[_PATH] for each in fields if len(each) > _PATH)
            return list(dict.fromkeys(path for path in paths if path.startswith(prefix)))
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None


def _namespace(pid: str) -> Optional[str]:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
