"""Reading a file of somebody else's tree: never a wait for a pipe's writer, never more than was asked for."""

from __future__ import annotations

import errno
import os
import stat
from typing import Union

_PIECE = 1 << 20


def read(path: Union[str, bytes], limit: int) -> bytes:
    """Return the first ``limit`` bytes of a regular file; links to one are followed.

    Raises ``OSError`` where there is none, and with ``EINVAL`` where the path leads to something else: a
    pipe, a device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte in the path
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            is_folder = stat.S_ISDIR(kind)
            raise OSError(errno.EINVAL, "is a folder" if is_folder else "is no regular file", path)
        pieces = []
        while limit > 0:
            piece = os.read(descriptor, min(limit, _PIECE))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)
