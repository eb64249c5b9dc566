"""Excerpts of shared objects: what the loader's simulation reads of them, for another host to judge them by.

An object is read once as :mod:`hostenv.agent.hostfiles` reads it, and what was read is noted. On the other
host these parts lie at their places in an otherwise empty file of the same size: the same reader reads the
same there. Nothing is written: the file is in memory. (sglang-kernel 0.4.10: 1.2 GB of objects travel as
0.43 MB, measured 2026-12.)
"""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from hostenv.agent import elfsymbols, gpucode
from hostenv.agent.elf import ElfFile
from hostenv.agent.elfmodel import ElfError
from hostenv.agent.wire import PIECE, AgentError

if TYPE_CHECKING:
    from hostenv.agent.wire import Wire

_HEADER = 64
_LEVEL = 1
_LARGEST = 1 << 30
"""Bytes of excerpts that are kept at once: those of torch and all of its libraries have a tenth of it."""

Part = Tuple[int, int]


class _Noting(ElfFile):
    """An open file that notes what is read of it in ``parts``: offset and size."""

    def __init__(self, descriptor: int, parts: List[Part]) -> None:
        self._parts = parts
        super().__init__(descriptor)

    def pread(self, size: int, offset: int, what: str) -> bytes:
        data = super().pread(size, offset, what)
        self._parts.append((offset, size))
        return data


class Excerpts:
    """Excerpts that are gathered: ``described`` as they are told, and their bytes."""

    def __init__(self) -> None:
        self.described: List[Dict[str, Any]] = []
        self._pieces: List[bytes] = []
        self._size = 0

    def add(self, descriptor: int, path: str) -> None:
        """Take the excerpt of an open regular file that shall be seen at ``path``.

        Raises :class:`AgentError` where all of them are too much to be kept.
        """
        size = os.fstat(descriptor).st_size
        parts = _merged(_parts(descriptor), size)
        gpu = gpucode.read_descriptor(descriptor)
        self._take(path, size, parts, [_pread(descriptor, *part) for part in parts], gpu)

    def add_text(self, path: str, content: bytes) -> None:
        """Take a small file whole."""
        self._take(path, len(content), [(0, len(content))], [content], None)

    def _take(
        self, path: str, size: int, parts: Sequence[Part], pieces: Sequence[bytes], gpu: Optional[Any]
    ) -> None:
        self._size += sum(length for _, length in parts)
        if self._size > _LARGEST:
            message = f"{path}: its symbol tables, and those before it, are more than can be kept in memory"
            raise AgentError(message)
        self._pieces += pieces
        told = {"path": path, "size": size, "parts": [list(part) for part in parts], "gpu": gpu}
        self.described.append(told)

    @property
    def data(self) -> bytes:
        """All bytes in order, packed."""
        return zlib.compress(b"".join(self._pieces), _LEVEL)

    def send(self, wire: Wire) -> None:
        """Send the bytes as bulk data."""
        packed = memoryview(self.data)
        for start in range(0, len(packed), PIECE):
            wire.send_data(packed[start : start + PIECE])
        wire.end_data()


@contextlib.contextmanager
def laid_out(described: Sequence[Dict[str, Any]], pieces: Iterable[bytes]) -> Iterator[Dict[str, str]]:
    """Have excerpts as files in memory: yield the path at which each is to be seen → where it is open.

    Raises :class:`AgentError` where the bytes are not those of the parts.
    """
    content = unpacked(pieces, sum(length for each in described for _, length in each["parts"]))
    at = 0
    with contextlib.ExitStack() as stack:
        places: Dict[str, str] = {}
        for each in described:
            descriptor = os.memfd_create("hostenv-excerpt")
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, each["size"])
            for offset, length in each["parts"]:
                os.pwrite(descriptor, content[at : at + length], offset)
                at += length
            places[each["path"]] = f"/proc/self/fd/{descriptor}"
        yield places


def unpacked(pieces: Iterable[bytes], size: int) -> bytes:
    """Return the bytes that were packed, which must be ``size``: more are not unpacked.

    Raises :class:`AgentError` for any other number of them, for damaged ones, and for more than are kept.
    """
    came = b"".join(pieces)
    if not came and not size:
        return b""
    if size > _LARGEST:
        raise AgentError("excerpts: more than can be kept in memory are announced")
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(came, size + 1)
    except zlib.error as error:
        raise AgentError(f"excerpts: the data is damaged: {error}") from None
    if len(content) != size or not unpacking.eof or unpacking.unused_data:
        raise AgentError(f"excerpts: the data is damaged: it is not the {size} bytes that were announced")
    return content


def _parts(descriptor: int) -> List[Part]:
    """Return what is read of a file, in the order of reading; of no ELF file its head."""
    parts: List[Part] = [(0, _HEADER)]
    with contextlib.suppress(ElfError):
        file = _Noting(descriptor, parts)
        elfsymbols.read_symbols(file)
        for _ in elfsymbols.relocated(file):
            pass
    return parts


def _merged(parts: Sequence[Part], size: int) -> List[Part]:
    """Return parts in order of the file, none of them twice."""
    merged: List[Part] = []
    for offset, length in sorted(parts):
        end = min(offset + length, size)
        if merged and offset <= sum(merged[-1]):
            first = merged[-1][0]
            merged[-1] = (first, max(end, sum(merged[-1])) - first)
        elif end > offset:
            merged.append((offset, end - offset))
    return merged


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.pread(descriptor, size - len(data), offset + len(data))
        if not piece:
            raise AgentError("a shared object was cut short while it was read", hint="run it again")
        data += piece
    return data
