"""Walk CUDA fat binaries: which images a container holds, read from headers alone.

The layout is not published. It was read off the output of nvcc 12.4 to 13.3 and agrees with what cuobjdump
lists (sections ``.nv_fatbin`` and ``__nv_relfatbin``). A *container* is a header and its *entries*::

    container  u32 magic 0xBA55ED50, u16 version, u16 header size, u64 size of the entries
    entry      u16 kind, u16 version, u32 header size, u64 payload size, …, at 24 u16 minor, u16 major,
               u32 architecture, …, at 40 u64 flags

For PTX, major and minor are the PTX ISA version; the driver goes by the ``.version`` in the text (seen on a
GPU, see tests/data/arch), so that is taken where the payload shows it: not compressed, or compressed so
that the words stand there literally. For a cubin they are the version of its ELF format.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Iterator, NamedTuple, Tuple

CONTAINER_MAGIC = 0xBA55ED50
KIND_PTX, KIND_CUBIN, KIND_LTO = 1, 2, 8
FLAG_ARCH_SPECIFIC, FLAG_FAMILY_SPECIFIC = 0x100000, 0x200000
MOST_IMAGES = 1 << 18
"""Images in one section beyond which it is taken for hostile (libcublasLt has 7,600)."""

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ8xHHI8xQ")
_SMALLEST_HEADER = 64
_LARGEST_HEADER = 1 << 16
_MOST_PADDING = 1 << 16
_TEXT = 1024
_VERSION = re.compile(rb"\.version\s+(\d{1,3})\.(\d{1,3})")


class FatbinError(Exception):
    """Bytes that are no fat binary: ``offset`` is where in the file."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} at offset {offset:#x}")
        self.offset = offset


class Container(NamedTuple):
    """The images that are tried together for one GPU. ``offset`` is in the file."""

    offset: int
    images: Tuple[str, ...]


def containers(descriptor: int, start: int, size: int) -> Iterator[Container]:
    """Yield the containers of one section, in order; what lies between them must be zero.

    An image is written ``sm_90a`` (a cubin), ``compute_80:9.0`` (PTX, with its ISA version), ``lto_80``
    (LTO-IR, for nvJitLink) or ``kind16_90`` (any other kind). Raises :class:`FatbinError` at the first
    thing that does not fit, after the containers before it. Reads headers and the first bytes of PTX only.
    """
    at, end, count = start, start + size, 0
    if end > os.fstat(descriptor).st_size:
        raise FatbinError("the section reaches beyond the file", start)
    while True:
        at = _skip_padding(descriptor, at, end)
        if at == end:
            return
        first, after = _bounds(descriptor, at, end)
        images = []
        entry = first
        while entry < after:
            image, entry = _entry(descriptor, entry, after)
            images.append(image)
            count += 1
            if count > MOST_IMAGES:
                raise FatbinError(f"more than {MOST_IMAGES} images", entry)
        yield Container(at, tuple(images))
        at = after


def _bounds(descriptor: int, at: int, end: int) -> Tuple[int, int]:
    """Return where a container's entries begin and end."""
    magic, _, header, size = _CONTAINER.unpack(_exactly(descriptor, _CONTAINER.size, at, end))
    if magic != CONTAINER_MAGIC or header < _CONTAINER.size:
        raise FatbinError("no container of a fat binary", at)
    if at + header + size > end:
        raise FatbinError("a container reaches beyond its section", at)
    return at + header, at + header + size


def _entry(descriptor: int, at: int, end: int) -> Tuple[str, int]:
    """Return the image of an entry and where the next one begins."""
    read = _ENTRY.unpack(_exactly(descriptor, _ENTRY.size, at, end))
    kind, _, header, size, minor, major, arch, flags = read
    if not _SMALLEST_HEADER <= header <= _LARGEST_HEADER or at + header + size > end:
        raise FatbinError("an entry of a fat binary has an impossible size", at)
    name = f"{arch}{_suffix(flags)}"
    if kind == KIND_CUBIN:
        image = f"sm_{name}"
    elif kind == KIND_PTX:
        image = f"compute_{name}:{_ptx_version(descriptor, at + header, size) or f'{major}.{minor}'}"
    else:
        image = f"lto_{name}" if kind == KIND_LTO else f"kind{kind}_{name}"
    return image, at + header + size


def _suffix(flags: int) -> str:
    if flags & FLAG_ARCH_SPECIFIC:
        return "a"
    return "f" if flags & FLAG_FAMILY_SPECIFIC else ""


def _ptx_version(descriptor: int, start: int, size: int) -> str:
    """Return the version that the text declares, empty where compression hides it."""
    found = _VERSION.search(os.pread(descriptor, min(size, _TEXT), start))
    return f"{int(found.group(1))}.{int(found.group(2))}" if found else ""


def _skip_padding(descriptor: int, at: int, end: int) -> int:
    """Return the offset of the next container, or ``end``."""
    stop = min(end, at + _MOST_PADDING)
    while at < stop:
        piece = os.pread(descriptor, min(_CONTAINER.size, stop - at), at)
        if not piece:
            raise FatbinError("the file ends inside a section", at)
        rest = piece.lstrip(b"\0")
        at += len(piece) - len(rest)
        if rest:
            return at
    if at < end:
        raise FatbinError("no container of a fat binary", at)
    return end


def _exactly(descriptor: int, count: int, at: int, end: int) -> bytes:
    if at + count > end:
        raise FatbinError("a header reaches beyond its container", at)
    read = os.pread(descriptor, count, at)
    if len(read) < count:
        raise FatbinError("the file ends inside a section", at)
    return read
