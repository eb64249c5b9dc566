"""The CUDA toolkits and assemblers with which an environment's kernels compile at run time."""

from __future__ import annotations

import json
import os
import re
import struct
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

UNKNOWN = "unknown"
"""The version of an nvcc that is there and does not tell it: a script around another one."""

_RELEASE = re.compile(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)")
_TARGET = re.compile(rb"sm_(\d{2,3}[af]?)\0")
_CUDART = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")
_NEWEST_GCC = re.compile(r"#if __GNUC__ > (\d+)")
_HEADER_LIMIT = 1 << 20
_PROGRAM_LIMIT = 1 << 28
_PROGBITS, _ALLOC, _CODE = 1, 2, 4
_HEADER_SIZE = 64
_SMALLEST_TARGET = 30
_WHEELS = ("nvidia/cu13", "nvidia/cuda_nvcc")
_ASSEMBLERS = (("ptxas", "TRITON_PTXAS_PATH"), ("ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH"))


def toolkits(site: str, home: Optional[Tuple[str, str]]) -> List[Dict[str, Any]]:
    """Return the toolkits in the environment's wheels and at ``home`` (folder, and what names it)."""
    places = [(os.path.join(site, folder), "environment") for folder in _WHEELS]
    places += [home] if home else []
    known = {os.path.realpath(place): (place, origin) for place, origin in places if os.path.isdir(place)}
    return [_toolkit(place, origin) for place, origin in known.values()]


def cuda_home(environment: Mapping[str, str]) -> Optional[Tuple[str, str]]:
    """Return the folder that the compilers take for CUDA_HOME, and what says so; ``None``: there is none.

    The order is theirs: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda (torch/utils/cpp_extension.py).
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            return environment[variable], variable
    for folder in environment.get("PATH", "").split(os.pathsep):
        nvcc = os.path.join(folder, "nvcc")
        if folder.startswith("/") and os.access(nvcc, os.X_OK):
            return os.path.dirname(os.path.realpath(folder)), "nvcc on PATH"
    return ("/usr/local/cuda", "default") if os.path.isdir("/usr/local/cuda") else None


def _toolkit(home: str, origin: str) -> Dict[str, Any]:
    include = os.path.join(home, "include")
    version = _CUDART.search(_text(os.path.join(include, "cuda_runtime_api.h")))
    newest = _NEWEST_GCC.search(_text(os.path.join(include, "crt", "host_config.h")))
    number = int(version.group(1)) if version else 0
    return {
        "home": home,
        "origin": origin,
        "nvcc": _nvcc(home),
        "headers": f"{number // 1000}.{number % 1000 // 10}" if version else None,
        "newest_gcc": int(newest.group(1)) if newest else None,
        "cccl": os.path.isdir(os.path.join(include, "cccl")),
    }


def _nvcc(home: str) -> Optional[str]:
    """Return nvcc's version: what ``version.json`` says, else what it would print; ``None``: no nvcc."""
    program = os.path.join(home, "bin", "nvcc")
    if not os.path.isfile(program):
        return None
    try:
        with open(os.path.join(home, "version.json"), encoding="utf-8") as file:
            return str(json.load(file)["cuda_nvcc"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return strings_of(program)[0] or UNKNOWN


def assemblers(site: str, environment: Mapping[str, str]) -> List[Dict[str, Any]]:
    """Return the assemblers that Triton would call: its own, or those that the service's variables name."""
    found = []
    for tool, variable in _ASSEMBLERS:
        named = environment.get(variable)
        path = named or os.path.join(site, "triton", "backends", "nvidia", "bin", tool)
        if named or os.path.exists(path):
            version, targets, problem = _assembler(path)
            found.append(
                {
                    "tool": tool,
                    "path": path,
                    "variable": variable if named else None,
                    "version": version,
                    "targets": targets,
                    "problem": problem,
                }
            )
    return found


def _assembler(path: str) -> Tuple[Optional[str], List[str], Optional[str]]:
    if not os.path.isfile(path):
        return None, [], "is not there"
    if not os.access(path, os.X_OK):
        return None, [], "is not executable"
    version, targets = strings_of(path)
    return version, targets, None if version and targets else "tells no version and targets"


def strings_of(path: str) -> Tuple[Optional[str], List[str]]:
    """Return the version that a compiler of NVIDIA's would print, and its targets (``90a``).

    It is not run: both stand as plain text among the program's constants.
    """
    version: Optional[str] = None
    targets: Set[str] = set()
    try:
        for piece in _constants(path):
            found = _RELEASE.search(piece)
            version = version or (found.group(1).decode() if found else None)
            targets.update(match.group(1).decode() for match in _TARGET.finditer(piece))
    except OSError:
        return None, []
    return version, sorted(name for name in targets if int(name.rstrip("af")) >= _SMALLEST_TARGET)


def _constants(path: str) -> List[bytes]:
    """Return a program's sections of constants, or the whole file where it tells of none."""
    with open(path, "rb") as file:
        header = file.read(64)
        size = os.fstat(file.fileno()).st_size
        pieces = [
            os.pread(file.fileno(), length, offset)
            for kind, flags, offset, length in _sections(file.fileno(), header, size)
            if kind == _PROGBITS and flags & _ALLOC and not flags & _CODE and length < _PROGRAM_LIMIT
        ]
        if pieces:
            return pieces
        file.seek(0)
        return [file.read(_PROGRAM_LIMIT)]


def _sections(descriptor: int, header: bytes, size: int) -> Iterator[Tuple[int, int, int, int]]:
    """Yield (type, flags, offset, size) of the sections of a 64-bit ELF file; nothing where they are odd."""
    if len(header) < _HEADER_SIZE or header[:5] != b"\x7fELF\x02":
        return
    (start,) = struct.unpack_from("<Q", header, 40)
    entry, count = struct.unpack_from("<HH", header, 58)
    if entry != _HEADER_SIZE or start + entry * count > size:
        return
    table = os.pread(descriptor, entry * count, start)
    for position in range(0, len(table), entry):
        yield struct.unpack_from("<4xIQ8xQQ", table, position)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_HEADER_LIMIT)
    except OSError:
        return ""
