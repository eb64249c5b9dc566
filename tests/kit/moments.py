"""The moments of a session, seen from outside by what appears under a host's root (inotify(7))."""

from __future__ import annotations

import ctypes
import enum
import itertools
import os
import select
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import pathlib
    import subprocess
    from collections.abc import Callable, Iterator

_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
_EVENT = struct.Struct("iIII")
_FOLDERS = ("", "store", "wheelhouse", "builds", "generations")


class Moment(enum.StrEnum):
    """What begins then, in the order of a whole sync."""

    START = "start"
    TAKEN = "lock taken"
    COMING = "transfer"
    MAKING = "build"
    MADE = "proof"
    TURNING = "switch"
    TURNED = "end"


class Watch:
    """Sees each :class:`Moment` of one session as it comes; ``times`` are seconds since the watch began."""

    def __init__(self, root: pathlib.Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names: dict[int, str] = {}
        for name in _FOLDERS:
            folder = root / name
            folder.mkdir(exist_ok=True)
            number = libc.inotify_add_watch(self._inotify, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE)
            if number < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
            self._names[number] = name
        self._begun = time.monotonic()
        self.times = {Moment.START: 0.0}
        self._seen = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._see, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self._inotify)

    def wait(
        self, moment: Moment, session: subprocess.Popen[str], meanwhile: Callable[[], object] = bool
    ) -> bool:
        """Wait until the moment has come; ``False`` where the session ended without it.

        ``meanwhile`` is called now and then.
        """
        with self._seen:
            while moment not in self.times and session.poll() is None:
                meanwhile()
                self._seen.wait_for(lambda: moment in self.times, timeout=0.05)
            return moment in self.times

    def lengths(self) -> dict[Moment, float]:
        """Return the seconds from each moment that came to the next one; the last has none."""
        with self._seen:
            times = sorted((when, moment) for moment, when in self.times.items())
        return {moment: end - when for (when, moment), (end, _) in itertools.pairwise(times)}

    def _see(self) -> None:
        while not self._ended.is_set():
            if select.select([self._inotify], [], [], 0.05)[0]:
                now = time.monotonic() - self._begun
                with self._seen:
                    for moment in self._events():
                        self.times.setdefault(moment, now)
                    self._seen.notify_all()

    def _events(self) -> Iterator[Moment]:
        try:
            content = os.read(self._inotify, 1 << 20)
        except BlockingIOError:
            return
        while content:
            number, mask, _, length = _EVENT.unpack_from(content)
            name = content[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode(errors="replace")
            content = content[_EVENT.size + length :]
            if moment := _moment(self._names.get(number, ""), name, mask):
                yield moment


def _moment(folder: str, name: str, mask: int) -> Moment | None:
    if not folder:
        if name == "current":
            return Moment.TURNED
        return Moment.TAKEN if name == "lock" and mask & _MODIFY else None
    if name.startswith(".incoming-"):
        return Moment.COMING
    if folder == "builds":
        return Moment.MAKING if name.startswith(".tmp-") else Moment.MADE if mask & _MOVED_TO else None
    return Moment.TURNING if folder == "generations" and name.startswith(".tmp-") else None
