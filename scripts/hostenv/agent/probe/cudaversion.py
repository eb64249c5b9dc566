"""The CUDA version of the driver where nvidia-smi does not tell it: libcuda itself is asked."""

from __future__ import annotations

import re
import sys
from typing import List

from hostenv.agent.probe.command import Command
from hostenv.agent.probe.fact import Json, UnknownError, fact

# cuDriverGetVersion works before cuInit: it opens no device and makes no device node. In a child, because
# a library that is no driver may do anything when it is loaded.
_ASK = (
    "import ctypes, sys\n"
    "version = ctypes.c_int()\n"
    "print(ctypes.CDLL(sys.argv[1]).cuDriverGetVersion(ctypes.byref(version)), version.value)\n"
)


def read(libraries: List[Json], otherwise: Json) -> Json:
    """Return ``13.0`` as libcuda says it, or ``otherwise`` where the host has no driver's libcuda."""
    for library in libraries:
        value = library.get("value")
        if value and value["name"] == "libcuda.so.1" and value["path"] and value["driver_version"]:
            return fact(f"cuDriverGetVersion of {value['path']}", _ask, value["path"])
    return otherwise


def _ask(path: str) -> str:
    answer = Command((sys.executable, "-I", "-S", "-B", "-c", _ASK, path), {}).result(5.0)
    match = re.fullmatch(r"(\d+) (\d+)\s*", answer)
    if not match or match.group(1) != "0":
        raise UnknownError(f"libcuda answered {answer.strip()!r}")
    number = int(match.group(2))
    return f"{number // 1000}.{number % 1000 // 10}"
