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


def describe(root: str, paths: Sequence[str]) -> List[Dict[str, Any]]:
    """Describe every ELF file among ``paths``, relative to ``root``; others are left out.

    Each has ``path``, ``machine``, the newest ``glibc`` that it needs or ``None``, ``needed``, ``gpu``
    (a line a kind of container: role, images, ``xN`` for N alike) and ``problem``.
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
        "needed": [],
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
        "needed": list(elf.needed),
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


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _words(container: Dict[str, Any]) -> str:
    count = f" x{container['count']}" if container["count"] > 1 else ""
    return " ".join([container["role"], *container["images"]]) + count
