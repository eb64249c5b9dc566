"""What the operating system refused on the controller, told as an operator's error."""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import TYPE_CHECKING

from hostenv.agent.oserrors import words
from hostenv.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = logging.getLogger(__name__)

_ROOM = "make room where the repository and the home folder's .cache/hostenv lie, and run again"
_RIGHTS = "the user who runs nox lacks the right"
_OTHER = "something else stands where hostenv wants a folder or a file: move it away and run again"
_HANDLES = "too many files are open: raise ulimit -n, or lower --jobs"
_HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: f"the user's quota is used up: {_ROOM}",
    errno.EFBIG: "a limit on the size of files (ulimit -f), or the file system's own",
    errno.EROFS: "the file system is mounted read-only, or was remounted so after an error: see dmesg",
    errno.EIO: "the disk fails: see dmesg",
    errno.EMFILE: _HANDLES,
    errno.ENFILE: _HANDLES,
}
"""What an operator can act on even where no path is told: ``write`` tells none."""

_HINTS_OF_PATHS = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOTDIR: _OTHER,
    errno.EISDIR: _OTHER,
    errno.EEXIST: _OTHER,
    errno.ENOTEMPTY: _OTHER,
    errno.ELOOP: _OTHER,
}


def refused_here(error: OSError, host: str | None = None) -> HostError | None:
    """Return what to tell of an error that was met here while working on ``host``.

    ``None`` where there is nothing that an operator could do: no path, and a number that says nothing of
    this machine's state (``EBADF``). That is hostenv's bug.
    """
    number = error.errno or 0
    names_path = bool(number) and isinstance(error.filename, (str, bytes))
    if not names_path and number not in _HINTS:
        return None
    _LOG.debug("refused here", exc_info=error)
    hints = _HINTS | _HINTS_OF_PATHS
    told = HostError(
        f"{host}: here, {words(error, None).message}" if host else words(error, None).message,
        hint=hints.get(number, "nox -v shows where in hostenv that was wanted"),
    )
    told.__cause__ = error
    return told


@contextlib.contextmanager
def told_here(host: str | None = None) -> Iterator[None]:
    """Raise as :class:`HostError` what the operating system refuses here; a bug stays what it is."""
    try:
        yield
    except OSError as error:
        told = refused_here(error, host)
        if told is None:
            raise
        raise told from error
