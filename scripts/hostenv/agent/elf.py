"""What the dynamic loader reads of an ELF file: headers, segments, dynamic section, symbol versions.

Only what the file says of itself is taken, with ``pread``: a file that shrinks while it is read gives a
short read here, where a mapping would give SIGBUS. Every size and offset is checked against the file's.
"""

from __future__ import annotations

import os
import struct
from typing import Dict, Iterator, List, Optional, Tuple

from hostenv.agent import elfversions
from hostenv.agent.elfmodel import (
    DT_AUXILIARY,
    DT_FILTER,
    DT_FLAGS,
    DT_FLAGS_1,
    DT_NEEDED,
    DT_NULL,
    DT_RELR,
    DT_RPATH,
    DT_RUNPATH,
    DT_SONAME,
    DT_STRSZ,
    DT_STRTAB,
    EM_AARCH64,
    EM_X86_64,
    ET_DYN,
    ET_EXEC,
    LARGEST_TABLE,
    LONGEST_NAME,
    MOST_ENTRIES,
    PT_DYNAMIC,
    PT_GNU_PROPERTY,
    PT_GNU_STACK,
    PT_INTERP,
    PT_LOAD,
    PT_TLS,
    Dependency,
    Elf,
    ElfError,
    OtherClassError,
    Segment,
    Tables,
    file_offset,
    string_at,
)

_MOST_SEGMENTS = 4096
_HEADER_SIZE = 64
_CLASS_64, _LITTLE_ENDIAN, _CURRENT = 2, 1, 1
_SYSTEM_V, _GNU, _ABI_VERSIONS = 0, 3, 4
_IDENT = struct.Struct("<HHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_NOTE = struct.Struct("<III")
_PROPERTY = struct.Struct("<II")
_X86_ISA_1_NEEDED = 0xC0008002
_NOTE_SIZE, _WORD = 16, 4


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
        if size == _HEADER_SIZE and offset > 0 and offset + size * count <= self.size:
            table = self.pread(size * count, offset, "the section table")
            for position in range(0, len(table), 64):
                yield struct.unpack_from("<4xI8xQQQ", table, position)


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
    if len(data) < _HEADER_SIZE:
        raise ElfError("file too short", loader=True)
    if data[:4] != b"\x7fELF":
        raise ElfError("invalid ELF header", loader=True)
    if data[4] != _CLASS_64:
        raise OtherClassError("wrong ELF class: ELFCLASS32", loader=True)
    tests = (
        (data[5] == _LITTLE_ENDIAN, "ELF file data encoding not little-endian"),
        (data[6] == _CURRENT, "ELF file version ident does not match current one"),
        (data[7] in {_SYSTEM_V, _GNU}, "ELF file OS ABI invalid"),
        (data[8] == 0 or (data[7] == _GNU and data[8] < _ABI_VERSIONS), "ELF file ABI version invalid"),
        (not any(data[9:16]), "nonzero padding in e_ident"),
    )
    kind, machine, version, _, phoff, _, _, _, phentsize, phnum, _, _, _ = _IDENT.unpack_from(data, 16)
    for sound, message in tests:
        if not sound:
            raise ElfError(message, loader=True, machine=machine)
    if version != _CURRENT:
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
        if header[0] == PT_GNU_PROPERTY and _NOTE_SIZE <= header[5] <= LONGEST_NAME:
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
        if property_type == _X86_ISA_1_NEEDED and length == _WORD and position + 12 <= end:
            return int.from_bytes(note[position + 8 : position + 12], "little")
        position += 8 + (length + 7) // 8 * 8
    return 0


def _with_dynamic(file: ElfFile, elf: Elf, header: Tuple[int, ...]) -> Tuple[Elf, Tables]:
    size = min(header[5], MOST_ENTRIES * _DYNAMIC.size) // _DYNAMIC.size * _DYNAMIC.size
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
        version_needs=elfversions.version_needs(file, tables),
        definitions=elfversions.version_definitions(file, tables),
    )
    return elf, tables


def _strings(file: ElfFile, segments: Tuple[Segment, ...], entries: Dict[int, int]) -> bytes:
    if DT_STRTAB not in entries:
        return b"\0"
    offset = file_offset(segments, entries[DT_STRTAB])
    return file.pread(entries.get(DT_STRSZ, 0), offset, "the string table")


def read_exactly(descriptor: int, size: int, offset: int, what: str) -> bytes:
    """Return ``size`` bytes from ``offset``; a short read is an :class:`ElfError`."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            raise ElfError(f"{what} at {offset:#x} (+{size:#x}) lies beyond the end of the file")
        data += more
    return data
