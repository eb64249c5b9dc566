"""Files as one stream of bytes, in either direction.

A stream is a row of units. A unit is a head, the file's path (relative, ``/`` between its parts, the
bytes that the file system has) and ``length`` bytes of the file from ``offset``. A whole file is one unit;
a large one may come as several ranges, over several connections.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import Iterable, Iterator, NamedTuple, Optional, Tuple, Union

from hostenv.agent.folders import Folders
from hostenv.agent.wire import PIECE, AgentError

HEAD = struct.Struct(">HHQQQqI?32s")
_SECOND = 10**9
_LONGEST_PATH = 4096
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO})
"""What opening a symbolic link, and a socket, gives (open(2), O_NOFOLLOW)."""
_SMALL = 64 << 10
"""Bytes up to which a file travels in one piece with its neighbours."""

Piece = Union[bytes, bytearray, memoryview]


class Unit(NamedTuple):
    """A range of a file: ``sha256`` is of the whole file, in hexadecimal, or empty where nobody knows it."""

    path: str
    mode: int
    size: int
    offset: int
    length: int
    mtime_ns: int
    sha256: str

    @property
    def whole(self) -> bool:
        """Whether the unit is the whole file."""
        return self.length == self.size

    def head(self) -> bytes:
        """Return the unit's head and path as they travel."""
        path = os.fsencode(self.path)
        seconds, rest = divmod(self.mtime_ns, _SECOND)  # 64 bits of nanoseconds end in 2262
        numbers = (self.mode, self.size, self.offset, self.length, seconds, rest)
        return HEAD.pack(len(path), *numbers, bool(self.sha256), bytes.fromhex(self.sha256)) + path


class Wanted(NamedTuple):
    """A range to be sent: ``length`` ``None`` is the whole file."""

    path: str
    sha256: str = ""
    offset: int = 0
    length: Optional[int] = None


def send(root: str, wanted: Iterable[Wanted]) -> Iterator[Piece]:
    """Yield the stream of the ``wanted`` ranges of regular files below ``root``, in pieces of at most PIECE.

    Raises :class:`AgentError` for what is no regular file, and for a file that shrinks while it is read.
    """
    folders = Folders(root)
    gathered = bytearray()
    try:
        for each in wanted:
            descriptor, unit = _open(folders, each)
            try:
                gathered += unit.head()
                if unit.length > _SMALL:
                    yield gathered
                    gathered = bytearray()
                    yield from _read_pieces(descriptor, unit, root)
                else:
                    gathered += b"".join(_read_pieces(descriptor, unit, root))
            finally:
                os.close(descriptor)
            if len(gathered) > PIECE - _SMALL - _LONGEST_PATH - HEAD.size:
                yield gathered
                gathered = bytearray()
        if gathered:
            yield gathered
    finally:
        folders.close()


def _open(folders: Folders, wanted: Wanted) -> Tuple[int, Unit]:
    folder, name = folders.locate(wanted.path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        place = os.path.join(folders.root, wanted.path)
        if error.errno in _NO_FILE:
            raise AgentError(f"{place} is no regular file") from error
        raise OSError(error.errno, error.strerror, place) from error
    found = os.fstat(descriptor)
    length = found.st_size - wanted.offset if wanted.length is None else wanted.length
    if not stat.S_ISREG(found.st_mode) or wanted.offset + length > found.st_size:
        os.close(descriptor)
        place = os.path.join(folders.root, wanted.path)
        what = "is shorter than it was" if stat.S_ISREG(found.st_mode) else "is no regular file"
        raise AgentError(f"{place} {what}")
    return descriptor, Unit(
        path=wanted.path,
        mode=stat.S_IMODE(found.st_mode),
        size=found.st_size,
        offset=wanted.offset,
        length=length,
        mtime_ns=found.st_mtime_ns,
        sha256=wanted.sha256,
    )


def _read_pieces(descriptor: int, unit: Unit, root: str) -> Iterator[bytes]:
    place, end = unit.offset, unit.offset + unit.length
    while place < end:
        piece = os.pread(descriptor, min(PIECE, end - place), place)
        if not piece:
            message = f"{os.path.join(root, unit.path)} became shorter while it was read"
            raise AgentError(message)
        place += len(piece)
        yield piece


class Reader:
    """Takes a stream apart again. ``pieces`` may be cut anywhere."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def unit(self) -> Optional[Unit]:
        """Return the next unit's head, ``None`` at the end; its bytes must be taken before the next."""
        head = self._take(HEAD.size)
        if not head:
            return None
        if len(head) < HEAD.size:
            raise _damaged()
        length, mode, size, offset, span, seconds, rest, known, digest = HEAD.unpack(head)
        path = os.fsdecode(self._take(length))
        if offset + span > size:
            raise _damaged()
        sha256 = digest.hex() if known else ""
        return Unit(path, mode & 0o7777, size, offset, span, seconds * _SECOND + rest, sha256)

    def body(self, length: int) -> Iterator[memoryview]:
        """Yield exactly ``length`` bytes, without copying them; fewer only where the stream ends."""
        while length and self._fill():
            piece = self._rest[:length]
            self._rest = self._rest[len(piece) :]
            length -= len(piece)
            yield piece

    def _take(self, count: int) -> bytes:
        if len(self._rest) >= count:
            taken = bytes(self._rest[:count])
            self._rest = self._rest[count:]
            return taken
        return b"".join(list(self.body(count)))

    def _fill(self) -> bool:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rest = memoryview(piece)
        return True


def _damaged() -> AgentError:
    return AgentError("the stream of files is damaged: it ends, or continues, where a head should be")
