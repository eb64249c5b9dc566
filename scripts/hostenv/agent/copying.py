"""Copying a file's bytes while their digest is taken."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from typing import BinaryIO

from hostenv.agent.files import write_sparsely
from hostenv.agent.venv import FICLONE

_PIECE = 1 << 20


def copy_checked(source: BinaryIO, target: BinaryIO, size: int) -> str:
    """Copy ``source`` to ``target`` and return the sha256 of what was copied, at most ``size`` + 1 bytes.

    ``target`` is empty; holes stay holes.
    """
    content = hashlib.sha256()
    left = size + 1
    while left > 0 and (piece := source.read(min(_PIECE, left))):
        content.update(piece)
        write_sparsely(target.fileno(), piece)
        left -= len(piece)
    os.ftruncate(target.fileno(), size + 1 - left)
    return content.hexdigest()


def lay(source: str, target: int, *, clone: bool) -> str:
    """Fill the open file ``target`` with the bytes at ``source`` and return their sha256.

    ``clone``: the two share extents where the filesystem can. Never an inode.
    """
    with open(source, "rb") as file:
        if clone:
            with contextlib.suppress(OSError):
                fcntl.ioctl(target, FICLONE, file.fileno())
                return _digest(file)
        with open(target, "wb", closefd=False) as out:
            return copy_checked(file, out, 1 << 62)


def _digest(file: BinaryIO) -> str:
    content = hashlib.sha256()
    while piece := file.read(_PIECE):
        content.update(piece)
    return content.hexdigest()
