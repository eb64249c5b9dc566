"""The Python interpreters of a host, found without running a login's files."""

from __future__ import annotations

import errno
import glob
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Set

from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.wire import Wire

_PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/python*/bin",
    "/opt/*/bin",
    "~/.pyenv/versions/*/bin",
    "~/.local/bin",
    "~/.local/share/uv/python/*/bin",
    "~/miniconda3/bin",
    "~/miniforge3/bin",
)

_LIMITS = {
    errno.EMFILE: "the limit of open files (ulimit -n)",
    errno.ENFILE: "the kernel's limit of open files (sysctl fs.file-max)",
    errno.EAGAIN: "the limit of processes (ulimit -u, or the cgroup's pids.max)",
    errno.ENOMEM: "the memory",
}
"""What an operator can do about a process that could not be started, by errno."""

_MINORS = range(8, 20)

_ASK = (
    "import json,sys;"
    "print(json.dumps([sys.implementation.name,sys.version.split()[0],sys.prefix==sys.base_prefix,sys.executable]))"
)


def find(wire: Wire, version: Optional[str] = None, places: Sequence[str] = ()) -> List[Dict[str, Any]]:
    """Return the CPython interpreters of a minor version (``"3.12"``), or all, the newest first.

    ``places`` are patterns of further folders that hold some.

    Only real executables are asked: a shim that is a script answers for another interpreter. Interpreters
    inside a virtual environment are left out; a build must not depend on one.
    """
    del wire
    minors = [version] if version else [f"3.{minor}" for minor in _MINORS]
    answers = [answer for minor in minors for path in _candidates(minor, places) if (answer := _ask(path))]
    fitting = [each for each in answers if version is None or each["version"].startswith(version + ".")]
    return sorted(fitting, key=lambda each: _key(each["version"]), reverse=True)


def _candidates(version: str, further: Sequence[str]) -> Iterator[str]:
    own = os.path.dirname(os.path.realpath(sys.executable))
    places = [own, *os.environ.get("PATH", "").split(":"), *_PLACES, *further]
    seen: Set[str] = set()
    for place in filter(None, places):
        for path in sorted(glob.glob(os.path.expanduser(os.path.join(place, f"python{version}")))):
            real = os.path.realpath(path)
            if real not in seen and _is_elf(real):
                seen.add(real)
                yield path


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError as error:
        _require_room(path, error)
        return False


def _ask(path: str) -> Optional[Dict[str, Any]]:
    try:
        argv = (path, "-I", "-S", "-B", "-c", _ASK)
        answer = subprocess.run(argv, capture_output=True, timeout=20, check=True, stdin=subprocess.DEVNULL)
        name, version, base, executable = json.loads(answer.stdout)
    except OSError as error:
        _require_room(path, error)
        return None
    except (subprocess.SubprocessError, ValueError):
        return None
    if name != "cpython" or not base:
        return None
    return {"path": executable or path, "version": version}


def _require_room(path: str, error: OSError) -> None:
    """Raise where an interpreter could not be asked for want of something: it may well be a good one."""
    limit = _LIMITS.get(error.errno or 0)
    if limit:
        message = f"interpreters cannot be looked for: {path} could not be started: {error.strerror}"
        raise AgentError(message, hint=f"raise {limit} for this user on the host, or end what uses it up")


def _key(version: str) -> List[int]:
    return [int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")]
