"""Digests by stat: what a file's content was when its inode last looked like this.

A key is (device, inode, size, mtime, ctime), all times in nanoseconds. The kernel sets ctime at every
change of content, mode or links, and no program can set it back; so an equal key means equal bytes, except
for a change within the same tick of the filesystem's clock as the first read. Such young entries are not
kept (git calls them racily clean, Documentation/technical/racy-git.txt).
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Dict, Optional, Set

from hostenv.agent.files import write_file

FIELDS = "QQQQQ"
"""How a key is packed, little endian: device, inode, size, mtime, ctime."""
TIMES = 0xFFFFFFFF_FFFFFFFF
"""The bits of a time that a key holds: 64 are signed from 1677 to 2262 only, and utime(2) sets any year."""
_KEY = struct.Struct("<" + FIELDS)
KEY_SIZE = _KEY.size
_DIGEST = struct.Struct(f"{KEY_SIZE}s32s")
_NORMAL = struct.Struct(f"{KEY_SIZE}s40s")
_PAIR = struct.Struct(f"{2 * KEY_SIZE}s")
_HEAD = struct.Struct("<24sQQQI")
_MAGIC = b"hostenv stat cache 1\n\0\0\0"
"""To be raised when the normal form of a file changes, for the cache holds digests of it."""
_FINE_GRAIN = 20_000_000
"""Nanoseconds that two ticks of the coarsest kernel (HZ=100) take."""
_COARSE_GRAIN = 2_000_000_000
"""Nanoseconds, for filesystems that keep whole seconds (or two, as FAT)."""


def key(status: os.stat_result) -> bytes:
    """Return the key of a file."""
    times = status.st_mtime_ns & TIMES, status.st_ctime_ns & TIMES
    return _KEY.pack(status.st_dev, status.st_ino, status.st_size, *times)


def size_of(file_key: bytes) -> int:
    """Return the size in bytes that a key holds."""
    size: int = _KEY.unpack(file_key)[2]
    return size


def settled(file_key: bytes, moment: int) -> bool:
    """Tell whether the file's last change lies safely before ``moment`` (``time.time_ns()``)."""
    changed: int = _KEY.unpack(file_key)[4]
    return changed < moment - (_FINE_GRAIN if changed % 1_000_000 else _COARSE_GRAIN)


def long_settled(changed: int, moment: int) -> bool:
    """Tell whether a change at ``changed`` (nanoseconds) lies safely before ``moment`` on any filesystem."""
    return changed < moment - _COARSE_GRAIN


class StatCache:
    """What is known by key.

    Digests of content, normal forms (digest and size), and pairs of bytecode and source that match.
    """

    def __init__(self) -> None:
        self.digests: Dict[bytes, bytes] = {}
        self.normal: Dict[bytes, bytes] = {}
        self.pairs: Set[bytes] = set()

    def holds(self, other: StatCache) -> bool:
        """Tell whether both know the same."""
        return (self.digests, self.normal, self.pairs) == (other.digests, other.normal, other.pairs)

    def learn(self, other: StatCache) -> None:
        """Add what another one knows."""
        self.digests.update(other.digests)
        self.normal.update(other.normal)
        self.pairs.update(other.pairs)

    @classmethod
    def load(cls, path: Optional[str]) -> StatCache:
        """Read a cache; one that is absent, damaged or of another version is empty."""
        return cls.unpack(_read(path))

    @classmethod
    def unpack(cls, content: bytes) -> StatCache:
        """Read what :meth:`pack` returned; anything else is an empty cache."""
        cache = cls()
        if len(content) < _HEAD.size:
            return cache
        magic, digests, normal, pairs, check = _HEAD.unpack_from(content)
        body = memoryview(content)[_HEAD.size :]
        first = digests * _DIGEST.size
        second = first + normal * _NORMAL.size
        if magic != _MAGIC or len(body) != second + pairs * _PAIR.size or zlib.crc32(body) != check:
            return cache
        cache.digests = dict(_DIGEST.iter_unpack(body[:first]))
        cache.normal = dict(_NORMAL.iter_unpack(body[first:second]))
        cache.pairs = {pair for (pair,) in _PAIR.iter_unpack(body[second:])}
        return cache

    def pack(self) -> bytes:
        """Return the cache as bytes."""
        body = b"".join(
            [
                *(known + value for known, value in self.digests.items()),
                *(known + value for known, value in self.normal.items()),
                *self.pairs,
            ]
        )
        counts = (len(self.digests), len(self.normal), len(self.pairs))
        return _HEAD.pack(_MAGIC, *counts, zlib.crc32(body)) + body

    def save(self, path: str) -> None:
        """Write the cache whole or not at all."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_file(path, self.pack(), 0o600)


def _read(path: Optional[str]) -> bytes:
    try:
        with open(path or "", "rb") as file:
            return file.read()
    except OSError:
        return b""
