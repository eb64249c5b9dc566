"""``/etc/ld.so.cache``: the loader's table from library name to file, in the format of glibc 2.2 and later.

Layout (glibc ``sysdeps/generic/dl-cache.h``): an optional old table (``ld.so-1.7.0``), then the magic
``glibc-ld.so.cache1.1``, counts, 24-byte entries (flags, key, value, osversion, hwcap) sorted by name in
descending order of ``_dl_cache_libcmp``, the strings, and extensions that name the glibc-hwcaps folders.
"""

from __future__ import annotations

import os
import struct
from typing import Dict, List, NamedTuple, Sequence, Tuple

MAGIC = b"glibc-ld.so.cache1.1"
OLD_MAGIC = b"ld.so-1.7.0"
EXTENSION_MAGIC = 0xEAA42174
FLAGS = {62: 0x0303, 183: 0x0A03}
"""ELF machine → the flags of an entry that fits it: libc6, and the ABI."""

_HWCAP_EXTENSION = 1 << 62
_EXTENSION_NAMES = 1
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION = struct.Struct("<IIII")
_LIMIT = 64 << 20
_MOST_EXTENSIONS = 64


class CacheError(Exception):
    """A cache that is not of the known format: the loader ignores such a file."""


class Entry(NamedTuple):
    """One line of ``ldconfig -p``. ``hwcaps`` is a glibc-hwcaps folder, empty for all processors."""

    name: str
    path: str
    flags: int
    hwcaps: str
    legacy: int = 0


def parse(data: bytes) -> Tuple[Entry, ...]:
    """Return the entries of a cache file, in its order. Raises :class:`CacheError`."""
    if len(data) > _LIMIT:
        raise CacheError("the loader's cache is absurdly large")
    start = 0
    if data.startswith(OLD_MAGIC):
        (count,) = struct.unpack_from("<I", data.ljust(16, b"\0"), 12)
        start = (16 + 12 * count + 7) // 8 * 8
    if data[start : start + len(MAGIC)] != MAGIC or len(data) < start + _HEADER.size:
        raise CacheError("the loader's cache has an unknown format")
    _, count, _, _, extensions = _HEADER.unpack_from(data, start)
    if start + _HEADER.size + count * _ENTRY.size > len(data):
        raise CacheError("the loader's cache is cut short")
    names = _hwcaps_names(data, start, extensions)
    entries: List[Entry] = []
    for index in range(count):
        flags, key, value, _, hwcap = _ENTRY.unpack_from(data, start + _HEADER.size + index * _ENTRY.size)
        extended = hwcap >> 32 == _HWCAP_EXTENSION >> 32
        number = hwcap & 0xFFFFFFFF
        hwcaps = ""
        if extended:
            hwcaps = names[number] if number < len(names) else "?"
        entries.append(
            Entry(
                _string(data, start + key),
                _string(data, start + value),
                flags,
                hwcaps,
                0 if extended else hwcap,
            )
        )
    return tuple(entries)


def table(entries: Sequence[Entry], machine: int, hwcaps: Sequence[str]) -> Dict[str, str]:
    """Return library name → file as the loader would pick it.

    Entries of another ABI do not count. Among those for a processor's features the one whose folder comes
    first in ``hwcaps`` wins over the one without; entries with legacy hardware bits are left out.
    """
    wanted = FLAGS.get(machine)
    best: Dict[str, Tuple[int, str]] = {}
    for entry in entries:
        if entry.flags != wanted or entry.legacy or (entry.hwcaps and entry.hwcaps not in hwcaps):
            continue
        rank = hwcaps.index(entry.hwcaps) if entry.hwcaps else len(hwcaps)
        if entry.name not in best or rank < best[entry.name][0]:
            best[entry.name] = (rank, entry.path)
    return {name: path for name, (_, path) in best.items()}


def _hwcaps_names(data: bytes, start: int, offset: int) -> List[str]:
    """Return the names of the glibc-hwcaps folders, by the index that entries use."""
    if not offset or offset + 8 > len(data):
        return []
    magic, count = struct.unpack_from("<II", data, offset)
    if magic != EXTENSION_MAGIC or count > _MOST_EXTENSIONS or offset + 8 + 16 * count > len(data):
        return []
    for index in range(count):
        tag, _, at, size = _EXTENSION.unpack_from(data, offset + 8 + 16 * index)
        if tag == _EXTENSION_NAMES and at + size <= len(data):
            offsets = struct.unpack_from(f"<{size // 4}I", data, at)
            return [_string(data, start + position) for position in offsets]
    return []


def _string(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + 4096)
    if end < 0:
        raise CacheError("a name in the loader's cache has no end")
    return os.fsdecode(data[offset:end])
