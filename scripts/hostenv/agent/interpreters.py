"""The Python interpreters of a host, found without running a login's files."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional, Set

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

_ASK = (
    "import json,sys,sysconfig;"
    "print(json.dumps([sys.implementation.name,sys.version.split()[0],"
    "sysconfig.get_config_var('SOABI'),sys.prefix==sys.base_prefix,sys.executable]))"
)


def find(wire: Wire, version: str, extra: Optional[List[str]] = None) -> List[Dict[str, Any]]:
    """Return the CPython interpreters of ``version`` (``"3.12"``), best first: newest patch level.

    Only real executables are asked: a shim that is a script answers for another interpreter. Interpreters
    inside a virtual environment are left out; a build must not depend on one.
    """
    del wire
    found = []
    for path in _candidates(version, extra or []):
        answer = _ask(path)
        if answer and answer["version"].split(".")[:2] == version.split(".")[:2] and answer["base"]:
            found.append(answer)
    return sorted(found, key=lambda each: _key(each["version"]), reverse=True)


def _candidates(version: str, extra: List[str]) -> Iterator[str]:
    places = [os.path.dirname(os.path.realpath(sys.executable)), *os.environ.get("PATH", "").split(":"), *_PLACES]
    named = [os.path.join(place, f"python{version}") for place in places if place]
    seen: Set[str] = set()
    for pattern in [*extra, *named]:
        for path in sorted(glob.glob(os.path.expanduser(pattern))):
            real = os.path.realpath(path)
            if real not in seen and _is_elf(real):
                seen.add(real)
                yield path


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


def _ask(path: str) -> Optional[Dict[str, Any]]:
    try:
        answer = subprocess.run(
            (path, "-I", "-S", "-B", "-c", _ASK), capture_output=True, timeout=20, check=True, stdin=subprocess.DEVNULL
        )
        name, version, soabi, base, executable = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if name != "cpython":
        return None
    return {"path": executable or path, "version": version, "soabi": soabi, "base": base}


def _key(version: str) -> List[int]:
    return [int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")]
