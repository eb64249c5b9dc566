"""The dynamic symbols of an object: what it asks others for, what it offers, and what its relocations use.

A loader finds only what the object's hash table holds, so that is what counts as offered (DT_GNU_HASH
before DT_HASH, as glibc prefers it).
"""

from __future__ import annotations

import array
import os
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from hostenv.agent.elf import (
    DT_GNU_HASH,
    DT_HASH,
    DT_JMPREL,
    DT_PLTRELSZ,
    DT_RELA,
    DT_RELASZ,
    DT_SYMTAB,
    DT_VERSYM,
    EM_AARCH64,
    HIDDEN_VERSION,
    LONGEST_NAME,
    ElfError,
    ElfFile,
    bytes_at,
)

SYMBOL_SIZE = 24
RELA_SIZE = 24
STB_LOCAL, STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 0, 1, 2, 10
STT_TLS = 6
STV_INTERNAL, STV_HIDDEN = 1, 2
SHN_UNDEF, SHN_ABS = 0, 0xFFF1
ADDRESS_ONLY = 1 << 16
"""Flag of an offer: an undefined symbol with a value (a PLT entry of an executable that is not
position-independent), which satisfies every reference but a call's."""

_TYPES = frozenset({0, 1, 2, 5, 6, 10})
_SHT_DYNSYM = 11
_CHUNK = 1024
_X86_PLT_CLASS = frozenset({7, 16, 17, 18, 36})
_AARCH64_PLT_CLASS = frozenset({1026, 1028, 1029, 1030, 1031})
_X86_NOTHING, _AARCH64_NOTHING = frozenset({0, 8, 37, 38}), frozenset({0, 256, 1027, 1032})


class Reference(NamedTuple):
    """A symbol that a relocation may look up: its name, and the version and file where one is asked for."""

    name: bytes
    version: Optional[str] = None
    file: Optional[str] = None
    hidden: bool = False


Offer = Union[int, Tuple[int, ...]]
"""The version entries (index, :data:`~hostenv.agent.elf.HIDDEN_VERSION`, :data:`ADDRESS_ONLY`) under which
one name is defined; several only where a symbol exists in several versions."""


class Symbols(NamedTuple):
    """``wanted``: strong references by symbol index. ``offered``: name → entries. ``versioned``: whether the
    object has DT_VERSYM at all: without it every version is satisfied."""

    wanted: Dict[int, Reference]
    offered: Dict[bytes, Offer]
    versioned: bool


def read_symbols(file: ElfFile) -> Symbols:
    """Return what ``file`` wants and offers. Raises :class:`ElfError` where its tables are nonsense."""
    table = file.tables.offset(DT_SYMTAB)
    if table is None:
        return Symbols({}, {}, versioned=False)
    first, count = _extent(file)
    data = file.pread(count * SYMBOL_SIZE, table, "the symbol table")
    words = _array("Q", data)[0::3]
    values = _array("Q", data)[1::3]
    versions = _versions(file, count)
    names = _Names(file.tables.strings)
    wanted = _wanted(file, words, values, versions, names)
    return Symbols(
        wanted, _offered(words, values, versions, names, range(first, count)), versioned=versions is not None
    )


def read_file(path: str) -> Symbols:
    """Return what the object at ``path`` wants and offers."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return read_symbols(ElfFile(descriptor))
    finally:
        os.close(descriptor)


def relocated(file: ElfFile) -> Iterator[Tuple[int, bool]]:
    """Yield (symbol index, whether it is a call's slot) of the relocations, in the loader's order.

    DT_RELA before DT_JMPREL (RTLD_NOW). Those that look up no symbol are left out.
    """
    calls, nothing = _X86_PLT_CLASS, _X86_NOTHING
    if file.elf.machine == EM_AARCH64:
        calls, nothing = _AARCH64_PLT_CLASS, _AARCH64_NOTHING
    for start, size in _relocation_tables(file):
        for info in _array("Q", file.pread(size, start, "a relocation table"))[1::3]:
            symbol, kind = info >> 32, info & 0xFFFFFFFF
            if symbol and kind not in nothing:
                yield symbol, kind in calls


def _relocation_tables(file: ElfFile) -> List[Tuple[int, int]]:
    entries = file.tables.entries
    tables: List[Tuple[int, int]] = []
    for tag, size_tag in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
        start, size = file.tables.offset(tag), entries.get(size_tag, 0)
        if start is None or not size:
            continue
        size -= size % RELA_SIZE
        # Some linkers let DT_RELASZ count the PLT's relocations in.
        if tag == DT_JMPREL and tables and tables[0][0] <= start < sum(tables[0]):
            continue
        tables.append((start, size))
    return tables


def _array(code: str, data: bytes) -> array.array[int]:
    items = array.array(code)
    items.frombytes(data[: len(data) - len(data) % items.itemsize])
    if sys.byteorder == "big":
        items.byteswap()
    return items


def _extent(file: ElfFile) -> Tuple[int, int]:
    """Return the index of the first symbol in the hash table, and the number of symbols."""
    table = file.tables.offset(DT_GNU_HASH)
    if table is not None:
        first, count = _gnu_hash(file, table)
        if count:
            return first, count
        # Nothing is offered; how many undefined symbols there are, this table does not say.
        total = _count_elsewhere(file)
        return total, total
    table = file.tables.offset(DT_HASH)
    if table is not None:
        buckets, count = _array("I", file.pread(8, table, "DT_HASH"))
        return (0 if buckets else count), count
    total = _count_elsewhere(file)
    return total, total


def _gnu_hash(file: ElfFile, table: int) -> Tuple[int, int]:
    buckets, first, bloom, _ = _array("I", file.pread(16, table, "DT_GNU_HASH"))
    start = table + 16 + bloom * 8
    last = max(_array("I", file.pread(buckets * 4, start, "DT_GNU_HASH")), default=0)
    if last == 0:
        return first, 0
    if last < first:
        raise ElfError("DT_GNU_HASH has a bucket before its first symbol")
    chain = start + buckets * 4 + (last - first) * 4
    while True:
        piece = file.pread(min(4096, (file.size - chain) // 4 * 4), chain, "DT_GNU_HASH")
        if not piece:
            raise ElfError("DT_GNU_HASH has a chain without end")
        for value in _array("I", piece):
            last += 1
            if value & 1:
                return first, last
        chain += len(piece)


def _count_elsewhere(file: ElfFile) -> int:
    """Return the number of symbols as the section headers have it, else as the relocations do."""
    address = file.tables.entries[DT_SYMTAB]
    for kind, at, _, size in file.section_headers():
        if kind == _SHT_DYNSYM and at == address:
            return size // SYMBOL_SIZE
    return max((symbol + 1 for symbol, _ in relocated(file)), default=1)


class _Names:
    """Names out of a string table, within a budget: overlapping names of a hostile file would multiply."""

    def __init__(self, strings: bytes) -> None:
        self._strings = strings
        self._budget = 8 * len(strings) + (1 << 20)

    def take(self, offsets: List[int]) -> List[bytes]:
        """Return the names at ``offsets``."""
        strings, find = self._strings, self._strings.find
        names: List[bytes] = []
        for start in range(0, len(offsets), _CHUNK):
            chunk = [
                strings[offset : find(b"\0", offset, offset + LONGEST_NAME)]
                for offset in offsets[start : start + _CHUNK]
            ]
            self._budget -= sum(map(len, chunk))
            if self._budget < 0:
                raise ElfError("the symbols' names overlap absurdly")
            names += chunk
        return names

    def check(self, offsets: List[int]) -> None:
        """Raise where an offset lies outside of the table or the table does not end in zero."""
        if offsets and max(offsets) >= len(self._strings):
            raise ElfError("a symbol's name lies beyond the string table")
        if offsets and self._strings[-1:] != b"\0":
            bytes_at(self._strings, max(offsets))


def _versions(file: ElfFile, count: int) -> Optional[array.array[int]]:
    table = file.tables.offset(DT_VERSYM)
    return None if table is None else _array("H", file.pread(2 * count, table, "DT_VERSYM"))


def _wanted(
    file: ElfFile,
    words: array.array[int],
    values: array.array[int],
    versions: Optional[array.array[int]],
    names: _Names,
) -> Dict[int, Reference]:
    """Return the references by symbol index.

    A word holds name (32 bits), info (8), visibility (8) and section (16) of a symbol. Besides undefined
    symbols, a definition that no lookup accepts (no value, or a strange type) is looked up elsewhere, too.
    """
    del values
    indices = [
        index
        for index, word in enumerate(words)
        if word < 1 << 48 and (word >> 36) & 0xF in _STRONG and not (word >> 40) & 3 in _LOCAL_VISIBILITY
    ]
    offsets = [words[index] & 0xFFFFFFFF for index in indices]
    names.check(offsets)
    taken = names.take(offsets)
    if versions is None:
        return {index: Reference(name) for index, name in zip(indices, taken)}
    table = _version_table(file)
    unversioned = (None, None, False)
    return {
        index: Reference(name, *table.get(versions[index] & ~HIDDEN_VERSION, unversioned))
        for index, name in zip(indices, taken)
    }


_STRONG = frozenset({STB_GLOBAL, STB_GNU_UNIQUE})
_LOCAL_VISIBILITY = frozenset({STV_INTERNAL, STV_HIDDEN})


def _version_table(file: ElfFile) -> Dict[int, Tuple[str, Optional[str], bool]]:
    table: Dict[int, Tuple[str, Optional[str], bool]] = {
        index: (name, None, False) for index, name in (file.elf.definitions or {}).items()
    }
    for need in file.elf.version_needs:
        for version in need.versions:
            table[version.index] = (version.name, need.file, version.hidden)
    return table


def _offered(
    words: array.array[int],
    values: array.array[int],
    versions: Optional[array.array[int]],
    names: _Names,
    indices: range,
) -> Dict[bytes, Offer]:
    chosen: List[int] = []
    for index in indices:
        word = words[index]
        if not values[index] and word >> 48 != SHN_ABS and (word >> 32) & 0xF != STT_TLS:
            continue
        if (word >> 36) & 0xF not in _BINDABLE or (word >> 32) & 0xF not in _TYPES:
            continue
        if (word >> 40) & 3 not in _LOCAL_VISIBILITY:
            chosen.append(index)
    offsets = [words[index] & 0xFFFFFFFF for index in chosen]
    names.check(offsets)
    taken = names.take(offsets)
    entries = [versions[index] if versions else 1 for index in chosen]
    for position, index in enumerate(chosen):
        if words[index] < 1 << 48:
            entries[position] |= ADDRESS_ONLY
    offered: Dict[bytes, Offer] = dict(zip(taken, entries))
    return offered if len(offered) == len(taken) else _merged(taken, entries)


_BINDABLE = frozenset({STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE})


def _merged(names: List[bytes], entries: List[int]) -> Dict[bytes, Offer]:
    merged: Dict[bytes, Offer] = {}
    for name, entry in zip(names, entries):
        before = merged.get(name)
        if before is None:
            merged[name] = entry
        else:
            merged[name] = (*before, entry) if isinstance(before, tuple) else (before, entry)
    return merged
