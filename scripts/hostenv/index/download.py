"""One wheel into a wheelhouse: resumed where it stopped, tried again, its hash checked as it arrives."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import random
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import megabytes
from hostenv.errors import SupplyError
from hostenv.index.session import RangeRefusedError, TransientError

if TYPE_CHECKING:
    import io
    import threading
    from collections.abc import Callable, Iterator

    from hostenv.agent.wheelhouse import Wheelhouse
    from hostenv.index.session import Session
    from hostenv.index.source import Source

_log = logging.getLogger(__name__)

ATTEMPTS = 7
"""Tries in a row without one new byte after which a wheel is given up: about half a minute of waiting."""
FIRST_WAIT = 0.25
LONGEST_WAIT = 15.0
"""Seconds between two tries: doubled each time, then a random half to whole of it."""
_PIECE = 1 << 18
_LARGE = 8 << 20


class StoppedError(Exception):
    """Somebody else's failure, or Ctrl-C, ended this transfer; what has arrived is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """Brings single wheels; used by several threads at once.

    ``on_bytes`` is called with the bytes that came since the last call, negative where they must come
    again. ``stop`` ends every transfer soon.
    """

    house: Wheelhouse
    session: Session
    on_bytes: Callable[[int], None]
    stop: threading.Event

    def bring(self, source: Source) -> None:
        """Put a wheel into the wheelhouse, whole and with the right hash, or raise and put nothing.

        Raises :class:`SupplyError` naming the wheel when it cannot be had or has other bytes, ``OSError``
        when the wheelhouse cannot be written to, :class:`StoppedError` after ``stop`` was set.
        """
        with self._partial(source) as file:
            if os.path.exists(self.house.path(source.wheel)):  # noqa: PTH110  the agent's paths are text
                self.on_bytes(source.size)  # another process brought it while this one waited
                return
            arrival = _Arrival(source, file)
            arrival.resume()
            self.on_bytes(arrival.size)
            resumed = arrival.size > 0
            self._receive(source, arrival)
            if resumed and not arrival.right:
                self._restart(arrival)
                self._receive(source, arrival)
            if not arrival.right:
                os.unlink(self.house.partial(source.wheel))  # noqa: PTH108
                raise _wrong_bytes(source, arrival)
            if source.size >= _LARGE:
                os.fdatasync(file)  # while other wheels arrive; the small ones are synced together
            self.house.settle(source.wheel)

    def _receive(self, source: Source, arrival: _Arrival) -> None:
        """Take bytes until all are there, or the far end says that there are no more."""
        failures = 0
        complete = arrival.size >= source.size
        while not complete:
            before = arrival.size
            try:
                complete = self._attempt(source, arrival)
            except SupplyError as error:
                raise SupplyError(f"{source.filename}: {error.message}", hint=error.hint) from error
            except TransientError as error:
                if isinstance(error, RangeRefusedError):
                    self._restart(arrival)
                failures = 1 if arrival.size > before else failures + 1
                if failures >= ATTEMPTS:
                    raise _given_up(source, arrival, failures, error) from error
                _log.info("%s: %s; trying again", source.filename, error)
                self._pause(failures, error.wait)

    def _attempt(self, source: Source, arrival: _Arrival) -> bool:
        """Take what one transfer brings; return whether nothing more is to come."""
        with self._body(source.url, arrival.size) as (offset, total, read):
            if offset != arrival.size:
                self._restart(arrival)
            while arrival.size <= source.size and (piece := read(_PIECE)):
                arrival.take(piece)
                self.on_bytes(len(piece))
                if self.stop.is_set():
                    raise StoppedError
        if arrival.size < source.size and total in {None, source.size}:
            raise TransientError("the transfer ended early")
        return True

    @contextlib.contextmanager
    def _body(self, url: str, offset: int) -> Iterator[tuple[int, int | None, Callable[[int], bytes | None]]]:
        """Open a URL: yields where it starts, the whole file's size if known, and how to read on."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "file":
            with _opened(pathlib.Path(urllib.parse.unquote(parts.path))) as file:
                file.seek(offset)
                yield offset, os.fstat(file.fileno()).st_size, file.read
            return
        try:
            with self.session.body(url, offset) as body:
                yield body.offset, body.total, body.read
        except TransientError as error:
            if self.stop.is_set():
                raise StoppedError from error
            raise

    def _pause(self, failures: int, asked: float) -> None:
        backoff = min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_WAIT)
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311  spreads the load, no secret
        if self.stop.wait(max(asked, jittered)):
            raise StoppedError

    def _restart(self, arrival: _Arrival) -> None:
        self.on_bytes(-arrival.size)
        arrival.restart()

    @contextlib.contextmanager
    def _partial(self, source: Source) -> Iterator[io.FileIO]:
        """Open the partial file of a wheel, alone among all processes."""
        path = self.house.partial(source.wheel)
        while True:
            with open(path, "a+b", buffering=0) as file:  # noqa: PTH123  the agent's paths are text
                while not _locked(file):
                    if self.stop.wait(0.2):
                        raise StoppedError
                if _is_at(file, path):
                    with contextlib.suppress(PermissionError):  # another user's, in a shared wheelhouse
                        os.fchmod(file.fileno(), 0o644)  # whatever the umask
                    yield file
                    return


class _Arrival:
    """The bytes of a wheel that have arrived, in a file, and their hash."""

    def __init__(self, source: Source, file: io.FileIO) -> None:
        self._source = source
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def right(self) -> bool:
        """Whether these are the bytes that the lock names."""
        return self.size == self._source.size and self.hexdigest == self._source.sha256

    @property
    def hexdigest(self) -> str:
        """sha256 of what has arrived."""
        return self._hash.hexdigest()

    def resume(self) -> None:
        """Take in what an earlier run left."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            self._hash.update(piece)
            self.size += len(piece)
        if self.size > self._source.size:
            self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.size = 0

    def take(self, piece: bytes) -> None:
        """Add a piece at the end."""
        view = memoryview(piece)
        while view:
            view = view[self._file.write(view) :]
        self._hash.update(piece)
        self.size += len(piece)


def _given_up(source: Source, arrival: _Arrival, tries: int, reason: TransientError) -> SupplyError:
    arrived = f"{megabytes(arrival.size)} of {megabytes(source.size)}"
    return SupplyError(
        f"{source.filename}: {reason} ({tries} tries, {arrived} arrived)",
        hint="run the session again: it goes on where it stopped",
    )


def _wrong_bytes(source: Source, arrival: _Arrival) -> SupplyError:
    size = f"more than {source.size}" if arrival.size > source.size else str(arrival.size)
    return SupplyError(
        f"{source.filename}: not the bytes that the lock names; nothing was kept\n"
        f"  the lock: sha256 {source.sha256}, {source.size} bytes\n"
        f"  received: sha256 {arrival.hexdigest}, {size} bytes",
        hint="the index, or something between, serves another file: find out why before locking again",
    )


def _opened(path: pathlib.Path) -> io.FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise SupplyError(f"{path} cannot be read: {error.strerror}") from error


def _locked(file: io.FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: io.FileIO, path: str) -> bool:
    try:
        there = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(file.fileno()), there)
