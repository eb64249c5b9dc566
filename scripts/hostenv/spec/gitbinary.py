"""Git's binary patches: base85, zlib, and the delta format of packs.

The format is described in git's ``gitformat-pack`` (deltas) and by ``git apply`` itself; base85's alphabet
is that of :func:`base64.b85encode`.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass

from hostenv.errors import PatchError

_GROUP = 4
_ENCODED = 5
_FULL_IDS = {40: "sha1", 64: "sha256"}
_COPY_ALL = 0x10000


@dataclass(frozen=True, kw_only=True, slots=True)
class BinaryChange:
    """The new content of a file, whole or as a delta against the old one; both object ids are full."""

    delta: bool
    data: bytes
    old_id: str
    new_id: str


def decode_line(line: bytes) -> bytes:
    """Return the bytes of one line: a length (``A``-``Z`` 1 to 26, ``a``-``z`` 27 to 52), then base85."""
    first, text = line[:1], line[1:]
    length = ord(first) - ord("A") + 1 if first.isupper() else ord(first) - ord("a") + 27
    if not first.isalpha() or len(text) != -(-length // _GROUP) * _ENCODED:
        raise PatchError("a line of the binary patch has not the length that it names")
    try:
        return base64.b85decode(text)[:length]
    except ValueError:
        raise PatchError("a line of the binary patch is not base85") from None


def inflate(packed: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that ``packed`` holds; never produces more than one byte above."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise PatchError(f"the binary patch is damaged: {error}") from error
    if len(data) != size or not stream.eof or stream.unused_data:
        raise PatchError(f"the binary patch does not hold the {size} bytes that it names")
    return data


def object_id(content: bytes, like: str) -> str:
    """Return git's id of a blob with ``content``, in the hash function that made ``like``."""
    digest = hashlib.new(_FULL_IDS[len(like)], usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content))
    digest.update(content)
    return digest.hexdigest()


def is_full_id(text: str) -> bool:
    """Say whether ``text`` is a whole object id, not an abbreviation."""
    return len(text) in _FULL_IDS


def is_blob(content: bytes, identifier: str) -> bool:
    """Say whether ``identifier`` is that of ``content``; all zeros mean that there is no file: no bytes."""
    return not content if not identifier.strip("0") else object_id(content, identifier) == identifier


def apply_binary(change: BinaryChange, old: bytes) -> bytes:
    """Return the new content; ``old`` must be the very bytes that the patch was made from."""
    if not is_blob(old, change.old_id):
        raise PatchError(
            f"the file is not the one that the binary patch was made from: expected blob {change.old_id}, "
            f"found {object_id(old, change.old_id)}"
        )
    new = apply_delta(change.data, old) if change.delta else change.data
    if not is_blob(new, change.new_id):
        raise PatchError(f"the binary patch does not give blob {change.new_id}, which its index line names")
    return new


def apply_delta(delta: bytes, old: bytes) -> bytes:
    """Return what git's ``delta`` makes of ``old``; damaged deltas raise."""
    try:
        return _run_delta(delta, old)
    except IndexError:
        raise PatchError("the binary patch's delta is cut short") from None


def _run_delta(delta: bytes, old: bytes) -> bytes:
    old_size, at = _size(delta, 0)
    new_size, at = _size(delta, at)
    if old_size != len(old):
        raise PatchError(f"the binary patch was made from {old_size} bytes, the file has {len(old)}")
    new = bytearray()
    while at < len(delta):
        command = delta[at]
        at += 1
        if command & 0x80:
            offset, at = _number(delta, at, command, 4)
            length, at = _number(delta, at, command >> 4, 3)
            piece = old[offset : offset + (length or _COPY_ALL)]
            wanted = length or _COPY_ALL
        else:
            piece, wanted = delta[at : at + command], command
            at += command
        if not wanted or len(piece) != wanted or len(new) + wanted > new_size:
            raise PatchError("the binary patch's delta reaches outside of the file")
        new += piece
    if len(new) != new_size:
        raise PatchError(f"the binary patch's delta gives {len(new)} bytes and names {new_size}")
    return bytes(new)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    """Return a size (7 bits a byte, lowest first) and the place after it."""
    value = shift = 0
    while True:
        byte = delta[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _number(delta: bytes, at: int, present: int, width: int) -> tuple[int, int]:
    """Return a little-endian number of which only the bytes whose bit is set in ``present`` are stored."""
    value = 0
    for index in range(width):
        if present & 1 << index:
            value |= delta[at] << 8 * index
            at += 1
    return value, at
