"""What the dynamic loader reads of an ELF file: headers, segments, dynamic section, symbol versions.

Only what the file says of itself is taken, with ``pread``: a file that shrinks while it is read gives a
short read here, where a mapping would give SIGBUS. Every size and offset is checked against the file's.
"""

from __future__ import annotations

import os
import struct
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

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
_MOST_SEGMENTS = 4096
_MOST_ENTRIES = 1 << 16
_IDENT = struct.Struct("<HHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")
_NOTE = struct.Struct("<III")
_PROPERTY = struct.Struct("<II")
_X86_ISA_1_NEEDED = 0xC0008002


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
    index: int
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


class ElfFile:
    """An open file and the two things read of it: :class:`Elf` and :class:`Tables`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.elf, self.tables = _read(self)

    def pread(self, size: int, offset: int, what: str) -> bytes:
        """Return exactly ``size`` bytes from ``offset``; raise :class:`ElfError` where they are not there."""
        if size < 0 or offset < 0 or offset + size > self.size:
            raise ElfError(f"{what} at {offset:#x} (+{size:#x}) lies beyond the end of the file")
        if size > LARGEST_TABLE:
            raise ElfError(f"{what} has {size} bytes: absurd")
        return read_exactly(self.descriptor, size, offset, what)

    def section_headers(self) -> Iterator[Tuple[int, int, int, int]]:
        """Yield (type, address, offset, size) of the sections; nothing where the table is not sound."""
        header = self.pread(64, 0, "the header")
        (offset,) = struct.unpack_from("<Q", header, 40)
        size, count = struct.unpack_from("<HH", header, 58)
        if size == 64 and 0 < offset and offset + size * count <= self.size:
            table = self.pread(size * count, offset, "the section table")
            for position in range(0, len(table), 64):
                yield struct.unpack_from("<4xI8xQQQ", table, position)


def read_exactly(descriptor: int, size: int, offset: int, what: str) -> bytes:
    """Return ``size`` bytes from ``offset``; a short read is an :class:`ElfError`."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            raise ElfError(f"{what} at {offset:#x} (+{size:#x}) lies beyond the end of the file")
        data += more
    return data


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


def read_elf(path: str) -> Elf:
    """Return the facts of the file at ``path``.

    Raises :class:`ElfError` for what is no ELF file or a malformed one, :class:`OtherClassError` for a 32-bit
    one, and :class:`OSError` where it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return ElfFile(descriptor).elf
    finally:
        os.close(descriptor)


def _header(file: ElfFile) -> Tuple[int, int, int, int, int, Optional[str]]:
    """Return machine, type, offset, size and number of program headers, and the loader's objection if any.

    The order of the tests is glibc's (``open_verify``): magic, class, byte order, version, OS ABI, padding.
    """
    data = os.pread(file.descriptor, 64, 0)
    if len(data) < 64:
        raise ElfError("file too short", loader=True)
    if data[:4] != b"\x7fELF":
        raise ElfError("invalid ELF header", loader=True)
    if data[4] != 2:
        raise OtherClassError("wrong ELF class: ELFCLASS32", loader=True)
    tests = (
        (data[5] == 1, "ELF file data encoding not little-endian"),
        (data[6] == 1, "ELF file version ident does not match current one"),
        (data[7] in {0, 3}, "ELF file OS ABI invalid"),
        (data[8] == 0 or (data[7] == 3 and data[8] < 4), "ELF file ABI version invalid"),
        (not any(data[9:16]), "nonzero padding in e_ident"),
    )
    kind, machine, version, _, phoff, _, _, _, phentsize, phnum, _, _, _ = _IDENT.unpack_from(data, 16)
    for sound, message in tests:
        if not sound:
            raise ElfError(message, loader=True, machine=machine)
    if version != 1:
        raise ElfError("ELF file version does not match current one", loader=True)
    objection = None
    if kind not in {ET_DYN, ET_EXEC}:
        objection = "only ET_DYN and ET_EXEC can be loaded"
    elif phentsize != _SEGMENT.size:
        objection = "ELF file's phentsize not the expected size"
    return machine, kind, phoff, phentsize, phnum, objection


def _read(file: ElfFile) -> Tuple[Elf, Tables]:
    machine, kind, phoff, _, count, objection = _header(file)
    nothing = Tables({}, (), b"")
    if machine not in {EM_X86_64, EM_AARCH64}:
        return Elf(bits=64, machine=machine, type=kind, dynamic=False), nothing
    if objection:
        raise ElfError(objection, loader=True)
    if phoff + count * _SEGMENT.size > file.size or count > _MOST_SEGMENTS:
        raise ElfError("cannot read file data", loader=True)
    table = file.pread(count * _SEGMENT.size, phoff, "the program header table")
    headers = list(_SEGMENT.iter_unpack(table))
    segments = tuple(Segment(h[2], h[3], h[5], h[7], h[6]) for h in headers if h[0] == PT_LOAD)
    elf = Elf(
        bits=64,
        machine=machine,
        type=kind,
        segments=segments,
        interpreter=_interpreter(file, headers),
        stack=next((h[1] for h in headers if h[0] == PT_GNU_STACK), None),
        tls_size=next((h[6] for h in headers if h[0] == PT_TLS), 0),
        short=max([s.offset + s.size - file.size for s in segments if s.size] + [0]),
        dynamic=False,
    )
    dynamic = next((h for h in headers if h[0] == PT_DYNAMIC), None)
    if dynamic is None:
        return elf, nothing
    elf = elf._replace(dynamic=True)
    try:
        return _with_dynamic(file, elf._replace(isa_needed=_isa_needed(file, headers)), dynamic)
    except ElfError:
        if not elf.short:
            raise
        return elf._replace(dies=True), nothing


def _interpreter(file: ElfFile, headers: List[Tuple[int, ...]]) -> Optional[str]:
    for header in headers:
        if header[0] == PT_INTERP and 0 < header[5] <= LONGEST_NAME and header[2] + header[5] <= file.size:
            return os.fsdecode(file.pread(header[5], header[2], "PT_INTERP").rstrip(b"\0"))
    return None


def _isa_needed(file: ElfFile, headers: List[Tuple[int, ...]]) -> int:
    """Return the x86 ISA bits that the GNU property note asks for; a malformed note asks for nothing."""
    for header in headers:
        if header[0] == PT_GNU_PROPERTY and 16 <= header[5] <= LONGEST_NAME:
            if header[2] + header[5] > file.size:
                return 0
            note = file.pread(header[5], header[2], "the property note")
            return _isa_of_note(note)
    return 0


def _isa_of_note(note: bytes) -> int:
    name_size, size, kind = _NOTE.unpack_from(note, 0)
    if (name_size, kind) != (4, 5) or note[12:16] != b"GNU\0":
        return 0
    position, end = 16, min(16 + size, len(note))
    while position + 8 <= end:
        property_type, length = _PROPERTY.unpack_from(note, position)
        if property_type == _X86_ISA_1_NEEDED and length == 4 and position + 12 <= end:
            return int.from_bytes(note[position + 8 : position + 12], "little")
        position += 8 + (length + 7) // 8 * 8
    return 0


def _with_dynamic(file: ElfFile, elf: Elf, header: Tuple[int, ...]) -> Tuple[Elf, Tables]:
    size = min(header[5], _MOST_ENTRIES * _DYNAMIC.size) // _DYNAMIC.size * _DYNAMIC.size
    # The loader reads the dynamic section where it is mapped, not at PT_DYNAMIC's file offset.
    offset = file_offset(elf.segments, header[3]) if size else 0
    ordered: List[Tuple[int, int]] = []
    for tag, value in _DYNAMIC.iter_unpack(file.pread(size, offset, "the dynamic section")):
        if tag == DT_NULL:
            break
        ordered.append((tag, value))
    entries = dict(ordered)
    strings = _strings(file, elf.segments, entries)
    tables = Tables(entries, elf.segments, strings)
    flags_1 = entries.get(DT_FLAGS_1, 0)
    both = DT_RUNPATH in entries
    elf = elf._replace(
        soname=string_at(strings, entries[DT_SONAME]) if DT_SONAME in entries else None,
        dependencies=tuple(
            Dependency(tag, string_at(strings, value))
            for tag, value in ordered
            if tag in {DT_NEEDED, DT_AUXILIARY, DT_FILTER}
        ),
        # Where both are given the loader ignores DT_RPATH (elf_get_dynamic_info).
        rpath=string_at(strings, entries[DT_RPATH]) if DT_RPATH in entries and not both else None,
        runpath=string_at(strings, entries[DT_RUNPATH]) if both else None,
        flags=entries.get(DT_FLAGS, 0),
        flags_1=flags_1,
        relr=DT_RELR in entries,
        version_needs=_version_needs(file, tables),
        definitions=_version_definitions(file, tables),
    )
    return elf, tables


def _strings(file: ElfFile, segments: Tuple[Segment, ...], entries: Dict[int, int]) -> bytes:
    if DT_STRTAB not in entries:
        return b"\0"
    offset = file_offset(segments, entries[DT_STRTAB])
    return file.pread(entries.get(DT_STRSZ, 0), offset, "the string table")


_Record = Union[VersionNeed, Tuple[int, str]]


def _version_needs(file: ElfFile, tables: Tables) -> Tuple[VersionNeed, ...]:
    position = tables.offset(DT_VERNEED)
    needs: List[VersionNeed] = []
    while position is not None and len(needs) < _MOST_ENTRIES:
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


def _version_definitions(file: ElfFile, tables: Tables) -> Optional[Dict[int, str]]:
    """Return version index → name, the file's own base version left out; ``None`` without DT_VERDEF."""
    position = tables.offset(DT_VERDEF)
    if position is None:
        return None
    found: Dict[int, str] = {}
    for _ in range(_MOST_ENTRIES):
        record = _VERDEF.unpack(file.pread(20, position, "a version definition"))
        _, flags, index, count, _, first, following = record
        if count and not flags & VER_FLG_BASE:
            name, _ = _VERDAUX.unpack(file.pread(8, position + first, "a version definition"))
            found[index & ~HIDDEN_VERSION] = string_at(tables.strings, name)
        if not following:
            break
        position += following
    return found
