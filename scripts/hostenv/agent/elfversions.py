"""Symbol versions of an ELF file: what it needs (DT_VERNEED) and what it defines (DT_VERDEF)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from hostenv.agent.elfmodel import (
    DT_VERDEF,
    DT_VERNEED,
    HIDDEN_VERSION,
    MOST_ENTRIES,
    VER_FLG_BASE,
    VER_FLG_WEAK,
    Tables,
    VersionName,
    VersionNeed,
    string_at,
)

if TYPE_CHECKING:
    from hostenv.agent.elf import ElfFile

_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")


def version_needs(file: ElfFile, tables: Tables) -> Tuple[VersionNeed, ...]:
    """Return the versions that an object needs, by library, in the order of the file."""
    position = tables.offset(DT_VERNEED)
    needs: List[VersionNeed] = []
    while position is not None and len(needs) < MOST_ENTRIES:
        _, count, name, first, following = _VERNEED.unpack(file.pread(16, position, "a version need"))
        versions = []
        at = position + first
        for _ in range(count):
            _, flags, index, version, step = _VERNAUX.unpack(file.pread(16, at, "a version need"))
            hidden = bool(index & HIDDEN_VERSION)
            versions.append(
                VersionName(
                    string_at(tables.strings, version),
                    index & ~HIDDEN_VERSION,
                    bool(flags & VER_FLG_WEAK),
                    hidden,
                )
            )
            if not step:
                break
            at += step
        needs.append(VersionNeed(string_at(tables.strings, name), tuple(versions)))
        position = position + following if following else None
    return tuple(needs)


def version_definitions(file: ElfFile, tables: Tables) -> Optional[Dict[int, str]]:
    """Return version index → name, the file's own base version left out; ``None`` without DT_VERDEF."""
    position = tables.offset(DT_VERDEF)
    if position is None:
        return None
    found: Dict[int, str] = {}
    for _ in range(MOST_ENTRIES):
        record = _VERDEF.unpack(file.pread(20, position, "a version definition"))
        _, flags, index, count, _, first, following = record
        if count and not flags & VER_FLG_BASE:
            name, _ = _VERDAUX.unpack(file.pread(8, position + first, "a version definition"))
            found[index & ~HIDDEN_VERSION] = string_at(tables.strings, name)
        if not following:
            break
        position += following
    return found
