"""A file system that never answers, as that of a dead NFS server: FUSE's kernel protocol without a library.

As a program (``silentfs.py PLACE [--statfs-answers]``) it mounts itself, says so on standard output, and
takes questions without answering them until its standard input ends: whoever asked waits in the kernel, and
no signal ends that. When the program has ended, all that waited get an error. With ``--statfs-answers`` it
tells its size: what hangs is everything that lies on it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

_MOST = 1 << 20
_HEADER = struct.Struct("<IIQQIIII")
"""fuse_in_header of linux/fuse.h: length, opcode, unique, node, uid, gid, pid, padding."""
_ANSWER = struct.Struct("<IiQ")
"""fuse_out_header: length, error, unique."""
_INIT, _STATFS = 26, 17


def missing_fuse() -> str | None:
    """Say why there can be no such file system here; ``None`` where there can."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"needs FUSE: {error.strerror}"
    return None


def mount(place: str) -> int:
    """Mount a FUSE file system at ``place``; return the descriptor that its questions come from."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", place.encode(), b"fuse.silent", 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount at {place}")
    return device


def serve(device: int, *, statfs_answers: bool) -> None:
    """Answer what makes the mount complete, and nothing else; for ever."""
    while True:
        question = os.read(device, _MOST)
        _, opcode, unique, *_ = _HEADER.unpack_from(question)
        body = None
        if opcode == _INIT:
            body = struct.pack("<IIIIHHI", 7, 22, 0, 0, 0, 0, 1 << 16)  # 7.22: the form of 24 bytes
        elif statfs_answers and opcode == _STATFS:
            body = struct.pack("<QQQQQIIII24x", 1000, 500, 500, 1000, 500, 4096, 255, 4096, 0)
        if body is not None:
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)


def end_with_input() -> None:
    """End this process when its standard input ends: when whoever started it wants it, or is no more."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    opened = mount(sys.argv[1])
    print("mounted", flush=True)  # noqa: T201  its one answer
    serve(opened, statfs_answers="--statfs-answers" in sys.argv)
