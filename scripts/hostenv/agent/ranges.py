"""A file that comes in ranges over several connections: put together, and hashed while it comes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import threading
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, List

from hostenv.agent.files import write_sparsely
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.stream import Unit

_READ = 1 << 20
_POLL = 0.05
"""Seconds after which other connections' ranges are looked for."""
_CAME = struct.Struct(">QQQ")
"""A range that came: its offset, its length, and the file's size as it was when the range was read."""
_NEW = os.O_CREAT | os.O_CLOEXEC


class Gathering:
    """The file in which the ranges of one path come together, in the open folder ``incoming``.

    Several processes may fill it, each range by one of them. Beside it lies a list of the ranges that have
    come; whoever has the first range follows the list, and hashes as far as there is no gap.
    """

    def __init__(self, incoming: int, unit: Unit) -> None:
        self.unit = unit
        self.name = "ranges-" + hashlib.sha256(os.fsencode(unit.path)).hexdigest()[:32]
        self._folder = incoming
        self._file = os.open(self.name, os.O_RDWR | _NEW, 0o600, dir_fd=incoming)
        self._list = os.open(self._listed, os.O_RDWR | os.O_APPEND | _NEW, 0o600, dir_fd=incoming)
        self._digest = hashlib.sha256()
        self._hashed = 0
        self._next = 0
        self._read = 0
        self._came: Dict[int, int] = {}
        self._grew = False

    @property
    def descriptor(self) -> int:
        """The open file."""
        return self._file

    @property
    def _listed(self) -> str:
        return f"{self.name}.came"

    def write(self, unit: Unit, body: Iterable[memoryview]) -> Iterator[memoryview]:
        """Write a range at its place, yielding its pieces; note that it came if it came whole."""
        os.lseek(self._file, unit.offset, os.SEEK_SET)
        missing = unit.length
        for piece in body:
            write_sparsely(self._file, piece)
            missing -= len(piece)
            yield piece
        os.ftruncate(self._file, unit.size)  # never shrinks it: no range lies beyond
        if not missing:
            os.write(self._list, _CAME.pack(unit.offset, unit.length, unit.size))

    def follow(self) -> None:
        """Hash what has come, up to the first gap."""
        listed = os.pread(self._list, os.fstat(self._list).st_size - self._read, self._read)
        whole = len(listed) - len(listed) % _CAME.size
        self._read += whole
        for offset, length, size in _CAME.iter_unpack(listed[:whole]):
            self._came[offset] = length
            self._grew = self._grew or size != self.unit.size
        buffer = memoryview(bytearray(_READ))
        while length := self._came.get(self._next, 0):
            end = self._next + length
            while self._hashed < end:
                count = os.preadv(self._file, [buffer[: end - self._hashed]], self._hashed)
                if not count:
                    return
                self._digest.update(buffer[:count])
                self._hashed += count
            self._next = end  # not before: where a read fails, result() reads there again, and tells why

    def result(self) -> str:
        """Return the digest of the whole file, or ``""`` where a range is missing; the list is removed.

        Raises :class:`AgentError` where its ranges are not of one size of the file.
        """
        self.follow()
        os.unlink(self._listed, dir_fd=self._folder)
        if self._grew:
            raise AgentError(
                f"{self.unit.path}: its size changed while it was sent; nothing of it was placed"
            )
        return self._digest.hexdigest() if self._hashed == self.unit.size else ""

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._file)
        os.close(self._list)


class Follower:
    """Follows gatherings in a thread while their ranges come."""

    def __init__(self) -> None:
        self._followed: List[Gathering] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ranges", daemon=True)

    def add(self, gathering: Gathering) -> None:
        """Follow one more."""
        self._followed.append(gathering)
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """End the thread; nothing is hashed any more when this returns."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        with contextlib.suppress(OSError):  # what cannot be read is told where the result is asked for
            while not self._ended.wait(_POLL):
                for gathering in tuple(self._followed):
                    gathering.follow()
