"""What the operating system refused, in an operator's words: what, where, what now."""

from __future__ import annotations

import errno
import os
from typing import Any, NamedTuple, Optional, Union

_ROOM = "make room there (nox -s prune -- HOST removes what nothing uses) and run again; current is untouched"
_RIGHTS = 'the login\'s user lacks the right; host.become = "sudo" where it is not root'
_HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: f"the user's quota is used up: {_ROOM}",
    errno.EFBIG: "a limit on the size of files (ulimit -f), or the file system's own",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "the file system is mounted read-only, or was remounted so after an error: see dmesg",
    errno.EMFILE: "raise the limit of open files (ulimit -n) for this user on the host",
    errno.ENFILE: "raise the kernel's limit of open files (sysctl fs.file-max) on the host",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the cgroup's pids.max) for this user",
    errno.ENOMEM: "free memory there, or raise the limit (ulimit -v, or the cgroup's memory.max)",
    errno.EIO: "the disk fails: see dmesg there",
}


class Words(NamedTuple):
    """A line that says what and where, and a hint that says what now."""

    message: str
    hint: Optional[str]


def words(error: OSError, where: Any) -> Words:
    """Return an error's words; ``where`` is named where the error itself names no path."""
    place: Union[str, bytes, None] = error.filename if isinstance(error.filename, (str, bytes)) else None
    named = os.fsdecode(place) if place else str(where or "")
    said = error.strerror or str(error)
    return Words(f"{named}: {said}" if named else said, _HINTS.get(error.errno or 0))
