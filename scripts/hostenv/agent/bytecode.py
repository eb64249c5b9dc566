"""Telling bytecode that only repeats its source from bytecode that Python would run instead of it.

A ``.pyc`` begins with a magic number (4 bytes), flags (4) and, by the flags, the source's modification time
and size (timestamp), or its hash (PEP 552). Left out of a manifest is only what Python itself takes as
the image of the source that lies beside it. What follows the header is not looked at: it depends on the
patch level that compiled it, and Python does not check it either.
"""

from __future__ import annotations

import _imp
import os
import struct
import sys
from typing import Any, List, Optional, Sequence, Tuple

HEADER = struct.Struct("<IIII")
"""Magic number, flags, then time and size or the hash's halves (Lib/importlib/_bootstrap_external.py)."""

TIMESTAMP, UNCHECKED_HASH, CHECKED_HASH = 0, 1, 3
_HALF_ROUNDS_FROM = 3495
"""CPython 3.11's magic number: hashes sources with SipHash-1-3 from there on, with SipHash-2-4 before
(bpo-29410; seen in _imp.source_hash of 3.8, 3.10 and 3.11 to 3.13)."""
_CPYTHON_FROM = 3390
"""The lowest magic number of CPython 3.7, the first with hash-based bytecode; other implementations use
numbers below."""
_MAGIC_END = 0x0A0D
"""Carriage return and line feed, the upper half of every magic number."""
_LARGEST_SOURCE = 64 << 20
_MASK = (1 << 64) - 1


def source_of(path: bytes) -> Optional[bytes]:
    """Return the source that bytecode under ``__pycache__`` belongs to, ``None`` for any other place.

    >>> source_of(b"pkg/__pycache__/mod.cpython-312.opt-1.pyc")
    b'pkg/mod.py'
    """
    folder, _, name = path.rpartition(b"/")
    parent, _, last = folder.rpartition(b"/")
    if last != b"__pycache__" or not name.endswith(b".pyc"):
        return None
    stem = name[:-4]
    before, dot, optimisation = stem.rpartition(b".")
    if dot and optimisation.startswith(b"opt-"):
        stem = before
    module, dot, _ = stem.rpartition(b".")
    if not dot:
        return None
    return (parent + b"/" if parent else b"") + module + b".py"


def repeats(bytecode: str, source: str) -> bool:
    """Tell whether Python would take ``bytecode`` for the image of ``source`` as both lie there.

    Unchecked-hash bytecode never counts: Python runs it whatever the source says. Raises :class:`OSError`.
    """
    header = _read(bytecode, HEADER.size)
    if len(header) < HEADER.size:
        return False
    magic, flags, first, second = HEADER.unpack(header)
    if magic >> 16 != _MAGIC_END or magic & 0xFFFF < _CPYTHON_FROM:
        return False
    if flags == TIMESTAMP:
        status = os.stat(source)
        return (first, second) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    if flags == CHECKED_HASH and os.stat(source).st_size <= _LARGEST_SOURCE:
        return header[8:] == source_hash(magic, _read(source, _LARGEST_SOURCE))
    return False


def run_regardless(wire: Any = None, *, root: str, paths: Sequence[str]) -> List[str]:
    """Return those of ``paths`` that Python runs whatever a source says.

    Bytecode with an unchecked hash, and what lies outside of ``__pycache__``. Other bytecode that does not
    match its source is compiled anew by whoever imports it; under ``__pycache__``, what is not there is not
    run, but what cannot be read may be.
    """
    del wire
    return [path for path in paths if _is_run_regardless(root, path)]


def _is_run_regardless(root: str, path: str) -> bool:
    if source_of(os.fsencode(path)) is None:
        return True
    try:
        header = _read(os.path.join(root, path), HEADER.size)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return len(header) == HEADER.size and HEADER.unpack(header)[1] == UNCHECKED_HASH


def source_hash(magic: int, source: bytes) -> bytes:
    """Return the 8 bytes that hash-based bytecode of that magic number holds for ``source``.

    The running interpreter computes them where it is of the same kind; else this module does, at about
    4 MB/s.
    """
    halved = magic & 0xFFFF >= _HALF_ROUNDS_FROM
    if sys.implementation.name == "cpython" and halved == (sys.version_info >= (3, 11)):
        return _imp.source_hash(magic, source)
    return siphash(magic, source, 1 if halved else 2, 3 if halved else 4)


def siphash(key: int, data: bytes, rounds: int, last_rounds: int) -> bytes:
    """Return SipHash-``rounds``-``last_rounds`` under the 128-bit ``key`` (Aumasson and Bernstein, 2012)."""
    low, high = key & _MASK, key >> 64
    state = (
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    )
    whole = len(data) & ~7
    tail = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for (word,) in struct.iter_unpack("<Q", data[:whole] + struct.pack("<Q", tail)):
        a, b, c, d = state
        a, b, c, d = _mix((a, b, c, d ^ word), rounds)
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    a, b, c, d = _mix((a, b, c ^ 0xFF, d), last_rounds)
    return struct.pack("<Q", a ^ b ^ c ^ d)


def _mix(state: Tuple[int, int, int, int], rounds: int) -> Tuple[int, int, int, int]:
    a, b, c, d = state
    for _ in range(rounds):
        a = (a + b) & _MASK
        b = ((b << 13 | b >> 51) & _MASK) ^ a
        a = (a << 32 | a >> 32) & _MASK
        c = (c + d) & _MASK
        d = ((d << 16 | d >> 48) & _MASK) ^ c
        a = (a + d) & _MASK
        d = ((d << 21 | d >> 43) & _MASK) ^ a
        c = (c + b) & _MASK
        b = ((b << 17 | b >> 47) & _MASK) ^ c
        c = (c << 32 | c >> 32) & _MASK
    return a, b, c, d


def _read(path: str, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        pieces = []
        while limit > 0:
            piece = os.read(descriptor, min(limit, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)
