"""What the shared objects among some files need and hold, in a few words: judged before they are copied."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from hostenv.agent import gpucode
from hostenv.agent.elf import read_elf
from hostenv.agent.elfmodel import EM_AARCH64, EM_X86_64, Elf, ElfError

_MACHINES = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)\Z")
_NUMBERED = re.compile(r"(\w+)_(\d+(?:\.\d+)*)\Z")


def describe(root: str, paths: Sequence[str]) -> List[Dict[str, Any]]:
    """Describe every ELF file among ``paths``, relative to ``root``; others are left out.

    Each has ``path``, ``machine``, the newest ``glibc`` that it needs or ``None``, ``soname`` where that is
    not its file's name, ``needed``, the ``versions`` that it needs of libraries other than glibc's (library
    and version; of numbered ones the newest), ``search`` (absolute folders of its RUNPATH or RPATH),
    ``gpu`` (a line a kind of container: role, images, ``xN`` for N alike) and ``problem``.
    """
    return [described for path in paths if (described := _describe(root, path)) is not None]


def _describe(root: str, path: str) -> Optional[Dict[str, Any]]:
    full = os.path.join(root, path)
    with open(full, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
    empty: Dict[str, Any] = {
        "path": path,
        "machine": "unknown",
        "glibc": None,
        "soname": None,
        "needed": [],
        "versions": [],
        "search": [],
        "gpu": [],
        "problem": None,
    }
    try:
        elf = read_elf(full)
    except ElfError as error:
        return {**empty, "problem": error.message}
    code = gpucode.read(full) or {"containers": [], "problem": None}
    return {
        **empty,
        "machine": _MACHINES.get(elf.machine, f"machine {elf.machine}"),
        "glibc": _newest_glibc(elf),
        "soname": elf.soname if elf.soname != os.path.basename(path) else None,
        "needed": list(elf.needed),
        "versions": _versions(elf),
        "search": [path for path in (elf.runpath or elf.rpath or "").split(":") if path.startswith("/")],
        "gpu": [_words(one) for one in code["containers"]],
        "problem": code["problem"],
    }


def _newest_glibc(elf: Elf) -> Optional[str]:
    found = [
        match.group(1)
        for need in elf.version_needs
        for version in need.versions
        if not version.weak and (match := _GLIBC.match(version.name))
    ]
    return max(found, key=_numbers) if found else None


def _versions(elf: Elf) -> List[str]:
    """Return ``LIBRARY VERSION`` of what is needed beside glibc; of numbers with one name the newest."""
    newest: Dict[Tuple[str, str], str] = {}
    plain = []
    for need in elf.version_needs:
        for version in need.versions:
            match = _NUMBERED.match(version.name)
            if version.weak or version.name.startswith("GLIBC_"):
                continue
            if match is None:
                plain.append(f"{need.file} {version.name}")
                continue
            key = (need.file, match.group(1))
            newest[key] = max(newest.get(key, "0"), match.group(2), key=_numbers)
    return sorted([*plain, *(f"{file} {name}_{number}" for (file, name), number in newest.items())])


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _words(container: Dict[str, Any]) -> str:
    count = f" x{container['count']}" if container["count"] > 1 else ""
    return " ".join([container["role"], *container["images"]]) + count
