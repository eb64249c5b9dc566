"""The vocabulary of ELF files as the dynamic loader uses it: numbers, values, errors, string tables."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Optional, Tuple

EM_X86_64, EM_AARCH64 = 62, 183
ET_EXEC, ET_DYN = 2, 3
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
PT_GNU_STACK, PT_GNU_PROPERTY = 0x6474E551, 0x6474E553
PF_X = 1
DT_NULL, DT_NEEDED, DT_PLTRELSZ, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ = 0, 1, 2, 4, 5, 6, 7, 8
DT_STRSZ, DT_SONAME, DT_RPATH, DT_SYMBOLIC, DT_JMPREL, DT_RUNPATH, DT_FLAGS = 10, 14, 15, 16, 23, 29, 30
DT_INIT, DT_RELR = 12, 36
DT_GNU_HASH, DT_VERSYM, DT_FLAGS_1 = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
DT_AUXILIARY, DT_FILTER = 0x7FFFFFFD, 0x7FFFFFFF
DF_STATIC_TLS = 0x10
DF_1_NOOPEN, DF_1_NODEFLIB, DF_1_PIE = 0x40, 0x800, 0x08000000
VER_FLG_BASE, VER_FLG_WEAK = 1, 2
HIDDEN_VERSION = 0x8000

LARGEST_TABLE = 256 << 20
"""Bytes of a string or symbol table beyond which a file is taken for absurd (libtorch_cpu's have 30 MB)."""
LONGEST_NAME = 1 << 16
MOST_ENTRIES = 1 << 16
"""Records that a dynamic section or a version table has at most."""


class ElfError(Exception):
    """A file that the loader would not map, or whose tables are nonsense.

    ``loader`` says that the message is the loader's own: it signals it wherever it meets the file.
    ``machine`` is given where a loader for another machine passes such a file over (Debian's and Ubuntu's
    glibc, measured with 2.36).
    """

    def __init__(self, message: str, *, loader: bool = False, machine: Optional[int] = None) -> None:
        super().__init__(message)
        self.message = message
        self.loader = loader
        self.machine = machine


class OtherClassError(ElfError):
    """A 32-bit file: a search goes on after it."""


class VersionName(NamedTuple):
    """One version that an object needs (``weak``: its absence is tolerated; ``hidden``: exact match only)."""

    name: str
    number: int
    weak: bool
    hidden: bool


class VersionNeed(NamedTuple):
    """The versions that an object needs of one library (DT_VERNEED)."""

    file: str
    versions: Tuple[VersionName, ...]


class Dependency(NamedTuple):
    """A DT_NEEDED, DT_AUXILIARY or DT_FILTER entry, in the order of the dynamic section."""

    tag: int
    name: str


class Segment(NamedTuple):
    """A PT_LOAD: where bytes of the file come to lie."""

    offset: int
    address: int
    size: int
    alignment: int
    memory: int = 0


class Elf(NamedTuple):
    """The facts of one object that decide whether and how it loads; symbols are read apart.

    ``definitions`` maps a version index to its name, ``None`` where the object has no DT_VERDEF.
    ``stack`` are the flags of PT_GNU_STACK, ``None`` where it is missing. ``tls_size`` is PT_TLS's in bytes.
    ``isa_needed`` are the bits of GNU_PROPERTY_X86_ISA_1_NEEDED. ``short`` is the number of bytes that
    PT_LOAD segments name beyond the end of the file; ``dies``: the loader touches them.
    """

    bits: int
    machine: int
    type: int
    soname: Optional[str] = None
    dependencies: Tuple[Dependency, ...] = ()
    rpath: Optional[str] = None
    runpath: Optional[str] = None
    flags: int = 0
    flags_1: int = 0
    interpreter: Optional[str] = None
    stack: Optional[int] = None
    tls_size: int = 0
    isa_needed: int = 0
    version_needs: Tuple[VersionNeed, ...] = ()
    definitions: Optional[Dict[int, str]] = None
    segments: Tuple[Segment, ...] = ()
    dynamic: bool = True
    relr: bool = False
    short: int = 0
    dies: bool = False

    @property
    def needed(self) -> Tuple[str, ...]:
        """The DT_NEEDED names."""
        return tuple(entry.name for entry in self.dependencies if entry.tag == DT_NEEDED)


class Tables(NamedTuple):
    """Where the dynamic section says that the tables lie, as file offsets, and the string table's bytes."""

    entries: Dict[int, int]
    segments: Tuple[Segment, ...]
    strings: bytes

    def offset(self, tag: int) -> Optional[int]:
        """Return the file offset of the table that ``tag`` points to; ``None`` where there is none."""
        return file_offset(self.segments, self.entries[tag]) if tag in self.entries else None


def file_offset(segments: Tuple[Segment, ...], address: int) -> int:
    """Return where ``address`` lies in the file; raise :class:`ElfError` where no segment holds it."""
    for segment in segments:
        if segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ElfError(f"address {address:#x} lies in no segment of the file")


def string_at(strings: bytes, offset: int) -> str:
    """Return the string at ``offset`` of a string table, undecodable bytes as surrogate escapes."""
    return os.fsdecode(bytes_at(strings, offset))


def bytes_at(strings: bytes, offset: int) -> bytes:
    """Return the bytes at ``offset`` of a string table up to the next zero."""
    end = strings.find(b"\0", offset, offset + LONGEST_NAME)
    if end < 0:
        raise ElfError(f"the string at {offset:#x} of the string table has no end")
    return strings[offset:end]
