"""The dynamic symbols of an object: what it asks others for, what it offers, and what its relocations use.

A loader finds only what the object's hash table holds, so that is what counts as offered (DT_GNU_HASH
before DT_HASH, as glibc prefers it). Columns of the symbol table are taken as arrays: one pass in C each.
"""

from __future__ import annotations

import array
import itertools
import os
import sys
from typing import (
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from hostenv.agent.elf import ElfFile
from hostenv.agent.elfmodel import (
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
    bytes_at,
)

SYMBOL_SIZE = 24
RELA_SIZE = 24
STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 1, 2, 10
STT_TLS = 6
STV_INTERNAL, STV_HIDDEN = 1, 2
SHN_ABS = 0xFFF1

_STRONG = frozenset({STB_GLOBAL, STB_GNU_UNIQUE})
_BINDABLE = frozenset({STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE})
_LOCAL_VISIBILITY = frozenset({STV_INTERNAL, STV_HIDDEN})
_TYPES = frozenset({0, 1, 2, 5, 6, 10})
_SHT_DYNSYM = 11
_CHUNK = 1024
# Relocations that look up no symbol: none, relative, irelative.
_X86_NOTHING, _AARCH64_NOTHING = frozenset({0, 8, 37, 38}), frozenset({0, 256, 1027, 1032})

Column = Sequence[int]


class Asked(NamedTuple):
    """The version that a reference asks for, and of which file; all empty where it asks for none."""

    version: Optional[str] = None
    file: Optional[str] = None
    hidden: bool = False


class Group(NamedTuple):
    """Strong references that ask for the same version: their names, and their symbol indices beside them."""

    asked: Asked
    names: Tuple[bytes, ...]
    indices: Tuple[int, ...]


Offer = Union[int, Tuple[int, ...]]
"""The version entries (index, :data:`~hostenv.agent.elf.HIDDEN_VERSION`) under which one name is defined;
several only where a symbol exists in several versions."""


class Symbols(NamedTuple):
    """What an object asks others for and what it offers.

    ``wanted``: strong references. ``offered``: name → version entries. ``versioned``: whether the object has
    DT_VERSYM at all: without it, it satisfies every version.
    """

    wanted: Tuple[Group, ...]
    offered: Mapping[bytes, Offer]
    versioned: bool


def read_symbols(file: ElfFile) -> Symbols:
    """Return what ``file`` wants and offers. Raises :class:`ElfError` where its tables are nonsense."""
    table = file.tables.offset(DT_SYMTAB)
    if table is None:
        return Symbols((), {}, versioned=False)
    first, count = _extent(file)
    columns = _Columns(file, table, count)
    return Symbols(
        _wanted(file, columns, first), _offered(columns, first), versioned=columns.versions is not None
    )


def relocated(file: ElfFile) -> Iterator[int]:
    """Yield the symbol indices that the relocations look up, in the loader's order.

    DT_RELA before DT_JMPREL, as with RTLD_NOW.
    """
    nothing = _AARCH64_NOTHING if file.elf.machine == EM_AARCH64 else _X86_NOTHING
    for start, size in _relocation_tables(file):
        for info in _array("Q", file.pread(size, start, "a relocation table"))[1::3]:
            if info >> 32 and info & 0xFFFFFFFF not in nothing:
                yield info >> 32


def relocation_places(file: ElfFile) -> Iterator[int]:
    """Yield the addresses that relocations write to."""
    for start, size in _relocation_tables(file):
        yield from _array("Q", file.pread(size, start, "a relocation table"))[0::3]


def used(path: str) -> Optional[List[int]]:
    """Return :func:`relocated` of the object at ``path``; ``None`` where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return list(relocated(ElfFile(descriptor)))
    except ElfError:
        return None
    finally:
        os.close(descriptor)


def offered_by(path: str) -> Mapping[bytes, Offer]:
    """Return what the object at ``path`` offers; nothing where it cannot be read any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return read_symbols(ElfFile(descriptor)).offered
    except ElfError:
        return {}
    finally:
        os.close(descriptor)


def _relocation_tables(file: ElfFile) -> List[Tuple[int, int]]:
    entries = file.tables.entries
    tables: List[Tuple[int, int]] = []
    for tag, size_tag in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
        start, size = file.tables.offset(tag), entries.get(size_tag, 0)
        if start is None or not size:
            continue
        # Some linkers let DT_RELASZ count the PLT's relocations in.
        if tag == DT_JMPREL and tables and tables[0][0] <= start < sum(tables[0]):
            continue
        tables.append((start, size - size % RELA_SIZE))
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
        # Where nothing is offered this table does not say how many undefined symbols there are.
        total = count or _count_elsewhere(file)
        return (first if count else total), total
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
    return max((symbol + 1 for symbol in relocated(file)), default=1)


class _Columns:
    """The symbol table by columns. ``kinds`` holds info (8 bits), visibility (8) and section (16)."""

    def __init__(self, file: ElfFile, table: int, count: int) -> None:
        data = file.pread(count * SYMBOL_SIZE, table, "the symbol table")
        words = _array("I", data)
        self.offsets, self.kinds = words[0::6], words[1::6]
        self.values = _array("Q", data)[1::3]
        self.names = _Names(file.tables.strings)
        versions = file.tables.offset(DT_VERSYM)
        self.versions: Optional[array.array[int]] = None
        if versions is not None:
            self.versions = _array("H", file.pread(2 * count, versions, "DT_VERSYM"))


class _Names:
    """Names out of a string table, within a budget: overlapping names of a hostile file would multiply."""

    def __init__(self, strings: bytes) -> None:
        self._strings = strings
        self._budget = 8 * len(strings) + (1 << 20)
        self._checked = False

    def take(self, offsets: List[int]) -> List[bytes]:
        """Return the names at ``offsets``."""
        if not offsets:
            return []
        self._check(max(offsets))
        strings, find = self._strings, self._strings.find
        names: List[bytes] = []
        for start in range(0, len(offsets), _CHUNK):
            chunk = [strings[offset : find(b"\0", offset)] for offset in offsets[start : start + _CHUNK]]
            self._budget -= sum(map(len, chunk))
            if self._budget < 0:
                raise ElfError("the symbols' names overlap absurdly")
            names += chunk
        return names

    def _check(self, last: int) -> None:
        """Raise where an offset lies outside of the table, or a name in it is absurdly long or has no end."""
        bytes_at(self._strings, last)
        if not self._checked:
            self._checked = True
            if max(map(len, self._strings.split(b"\0"))) >= LONGEST_NAME:
                raise ElfError("the string table holds an absurdly long name")


def _wanted(file: ElfFile, columns: _Columns, first: int) -> Tuple[Group, ...]:
    """Return the strong references: undefined symbols, and definitions that no lookup accepts."""
    strong = {kind for kind in set(columns.kinds) if _binds(kind, _STRONG)}
    undefined = {kind for kind in strong if kind < 1 << 16}
    wanted = list(itertools.compress(range(len(columns.kinds)), map(undefined.__contains__, columns.kinds)))
    if 0 in columns.values[first:]:
        valueless = strong - undefined - _valueless(strong)
        wanted += [
            index
            for index in range(first, len(columns.kinds))
            if not columns.values[index] and columns.kinds[index] in valueless
        ]
    names = columns.names.take([columns.offsets[index] for index in wanted])
    if columns.versions is None or not wanted:
        return (Group(Asked(), tuple(names), tuple(wanted)),) if wanted else ()
    return _grouped(_version_table(file), names, wanted, columns.versions)


def _grouped(
    table: Dict[int, Asked], names: List[bytes], wanted: List[int], versions: Column
) -> Tuple[Group, ...]:
    groups: Dict[Asked, Tuple[List[bytes], List[int]]] = {}
    by_entry: Dict[int, Tuple[List[bytes], List[int]]] = {}
    nothing = Asked()
    for name, index in zip(names, wanted):
        entry = versions[index]
        place = by_entry.get(entry)
        if place is None:
            asked = table.get(entry & ~HIDDEN_VERSION, nothing)
            place = by_entry[entry] = groups.setdefault(asked, ([], []))
        place[0].append(name)
        place[1].append(index)
    return tuple(Group(asked, tuple(some), tuple(at)) for asked, (some, at) in groups.items())


def _version_table(file: ElfFile) -> Dict[int, Asked]:
    table = {index: Asked(name) for index, name in (file.elf.definitions or {}).items()}
    for need in file.elf.version_needs:
        for version in need.versions:
            table[version.number] = Asked(version.name, need.file, version.hidden)
    return table


def _offered(columns: _Columns, first: int) -> Dict[bytes, Offer]:
    kinds = columns.kinds[first:]
    bindable = {
        kind for kind in set(kinds) if kind >= 1 << 16 and _binds(kind, _BINDABLE) and kind & 0xF in _TYPES
    }
    chosen: Iterable[bool] = map(bindable.__contains__, kinds)
    if 0 in columns.values[first:]:
        valueless = _valueless(bindable)
        chosen = (
            kind in bindable and (value != 0 or kind in valueless)
            for kind, value in zip(kinds, columns.values[first:])
        )
    selected = list(chosen)
    names = columns.names.take(list(itertools.compress(columns.offsets[first:], selected)))
    if columns.versions is None:
        return dict.fromkeys(names, 1)
    entries = list(itertools.compress(columns.versions[first:], selected))
    offered: Dict[bytes, Offer] = dict(zip(names, entries))
    return offered if len(offered) == len(names) else _merged(names, entries)


def _binds(kind: int, bindings: Iterable[int]) -> bool:
    return kind >> 4 & 0xF in bindings and kind >> 8 & 3 not in _LOCAL_VISIBILITY


def _valueless(kinds: Iterable[int]) -> FrozenSet[int]:
    """Return the kinds that a lookup accepts without a value: absolute and thread-local symbols."""
    return frozenset(kind for kind in kinds if kind >> 16 == SHN_ABS or kind & 0xF == STT_TLS)


def _merged(names: List[bytes], entries: List[int]) -> Dict[bytes, Offer]:
    merged: Dict[bytes, Offer] = {}
    for name, entry in zip(names, entries):
        before = merged.get(name)
        if before is None:
            merged[name] = entry
        else:
            merged[name] = (*before, entry) if isinstance(before, tuple) else (before, entry)
    return merged
