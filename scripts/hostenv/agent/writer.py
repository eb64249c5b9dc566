"""One writer a host: the lock under the root, held by a descriptor that children inherit."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import Any, Dict, Iterator, Tuple

from hostenv.agent.files import open_regular, remove
from hostenv.agent.layout import INCOMING, Layout
from hostenv.agent.wire import AgentError, Wire

_POLL = 0.05
_taken: Dict[str, int] = {}
"""Lock files that this agent holds until it ends, by path."""
_NO_FILE = {
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is a folder",
    errno.EINVAL: "it is a pipe or a device",
    errno.ENXIO: "it is a socket or a device",
}
"""What opening something else than a regular file gives (open(2), O_NOFOLLOW and O_NONBLOCK)."""


def take(wire: Wire, *, root: str, who: Dict[str, Any], patience: float = 2.5) -> None:
    """Hold the root's lock until this agent ends: a session that writes in several requests is alone.

    ``patience`` are seconds to wait for another holder: one whose connection was cut a moment ago ends as
    soon as its host hears of it.
    """
    del wire
    layout = Layout(root)
    deadline = time.monotonic() + patience
    while layout.lock not in _taken:
        with contextlib.ExitStack() as stack:
            try:
                (descriptor,) = stack.enter_context(sole_writer(layout, who))
            except AgentError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL)
            else:
                _taken[layout.lock] = os.dup(descriptor)  # the lock belongs to both


@contextlib.contextmanager
def sole_writer(layout: Layout, who: Dict[str, Any]) -> Iterator[Tuple[int, ...]]:
    """Hold the root's lock; yields the descriptors that every child must be given (``pass_fds``).

    A child that outlives this process keeps the lock, so nobody starts beside it. ``who`` says who holds
    it and is shown to the next one who asks; the file stays, its lock is what counts.
    """
    if layout.lock in _taken:
        yield (_taken[layout.lock],)
        return
    try:
        os.makedirs(layout.root, exist_ok=True)
        descriptor = open_regular(layout.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in _NO_FILE and os.path.lexists(layout.lock):
            message = f"{layout.lock} is not the file that hostenv locks: {_NO_FILE[error.errno]}"
            raise AgentError(message, hint="move it away and run again", outcome="refused") from error
        message = f"cannot write under {layout.root}: {error.strerror}"
        raise AgentError(message, hint="host.root in the spec must be writable", outcome="refused") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{layout.root} is in use: {_holder(descriptor)}"
            hint = "wait for it, or end it; the lock goes with the process"
            raise AgentError(message, hint=hint, outcome="refused") from error
        note = json.dumps({**who, "pid": os.getpid(), "since": time.time()}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)
        _sweep(layout)
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _sweep(layout: Layout) -> None:
    """Remove what a killed writer left that never got its name: under the lock it has no owner."""
    for folder in (layout.root, layout.wheelhouse, layout.store):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(folder):
                if name.startswith((".tmp-", INCOMING)):
                    remove(os.path.join(folder, name))


def _holder(descriptor: int) -> str:
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%H:%M:%S", time.localtime(note["since"]))
        session, by = note.get("session", "a session"), note.get("by", "somebody")
        return f"{session} by {by}, pid {note['pid']}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "another session is just starting"
