"""Many wheels at once into a wheelhouse."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import shutil
import threading
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import megabytes
from hostenv.agent.files import sync_volume
from hostenv.errors import SupplyError
from hostenv.index.download import Download
from hostenv.index.session import Session, TransientError
from hostenv.index.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostenv.agent.wheelhouse import Wheel, Wheelhouse
    from hostenv.index.source import Logins, Source

    _Futures = Mapping[concurrent.futures.Future[None], Source]

JOBS = 8
"""Transfers side by side."""
_TELL_EVERY = 0.1
_PATIENCE = 0.5
"""Seconds that transfers have to end once they must."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a fetch is, in bytes and wheels."""

    bytes_done: int
    bytes_total: int
    wheels_done: int
    wheels_total: int


def fetch(  # noqa: PLR0913  what, where to, and four settings by keyword
    sources: Iterable[Source],
    house: Wheelhouse,
    *,
    logins: Logins,
    on_progress: Callable[[Progress], None] | None = None,
    jobs: int = JOBS,
    stop: threading.Event | None = None,
) -> None:
    """Bring every wheel into the wheelhouse; the largest first.

    ``on_progress`` is called in the calling thread, about ten times a second and at the end. The first
    wheel that cannot be had ends all transfers with its :class:`SupplyError`; so does ``stop``, once another
    thread sets it. What has arrived by then is kept, whole wheels and parts, and durable: the next run brings
    what is missing.
    """
    wanted = {source.sha256: source for source in sources}
    if not wanted:
        return
    try:
        house.prepare()
        _Fetch(wanted, house, logins, on_progress, min(jobs, len(wanted))).run(stop or threading.Event())
    except OSError as error:
        raise _unwritable(house, error) from error


def size_of(url: str, logins: Logins) -> int:
    """Return the size in bytes of the file at ``url``, not read further than needed.

    Raises :class:`SupplyError` when it cannot be had.
    """
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rsplit("/", 1)[-1]
    try:
        if parts.scheme == "file":
            return pathlib.Path(urllib.parse.unquote(parts.path)).stat().st_size
        with contextlib.closing(Session(logins, 1)) as session, session.body(url) as body:
            total = body.total
    except (TransientError, OSError, SupplyError) as error:
        raise SupplyError(f"{name}: its size cannot be asked: {error}") from error
    if total is None:
        raise SupplyError(f"{name}: the server does not say its size")
    return total


class _Fetch:
    """The state of one call."""

    def __init__(
        self,
        wanted: Mapping[str, Source],
        house: Wheelhouse,
        logins: Logins,
        on_progress: Callable[[Progress], None] | None,
        jobs: int,
    ) -> None:
        self._wanted = wanted
        self._house = house
        self._tell = on_progress
        self._jobs = jobs
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._bytes = 0
        self._done = 0
        self._session = Session(logins, jobs)
        self._download = Download(house=house, session=self._session, on_bytes=self._count, stop=self._stop)

    def run(self, stop: threading.Event) -> None:
        _go_on(stop)
        largest_first = sorted(self._wanted.values(), key=lambda source: -source.size)
        workers = Workers(largest_first, self._download.bring, self._jobs)
        try:
            self._watch(workers.futures, stop)
        finally:
            self._stop.set()
            self._session.abort()
            workers.end(_PATIENCE)
            self._session.close()
            self._keep([source.wheel for source in workers.done()])
        self._report()

    def _watch(self, futures: _Futures, stop: threading.Event) -> None:
        waiting = set(futures)
        while waiting:
            _go_on(stop)
            ended, waiting = concurrent.futures.wait(waiting, _TELL_EVERY, concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                future.result()
            self._done += len(ended)
            self._report()

    def _keep(self, arrived: Sequence[Wheel]) -> None:
        """Make what arrived durable, and only then say that it is verified."""
        if arrived:
            sync_volume(self._house.folder)
            self._house.remember(arrived)

    def _count(self, received: int) -> None:
        with self._counting:
            self._bytes += received

    def _report(self) -> None:
        if self._tell:
            total = sum(source.size for source in self._wanted.values())
            self._tell(
                Progress(
                    bytes_done=self._bytes,
                    bytes_total=total,
                    wheels_done=self._done,
                    wheels_total=len(self._wanted),
                )
            )


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise SupplyError(
            "the session was ended before every wheel was there",
            hint="run it again: it goes on where this one stopped",
        )


def _unwritable(house: Wheelhouse, error: OSError) -> SupplyError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = shutil.disk_usage(os.path.dirname(house.folder) or "/").free  # noqa: PTH120
        return SupplyError(
            f"{house.folder}: no space left ({error.strerror}), {megabytes(free)} free",
            hint="make room, or put host.root on another disk; the next run goes on where this one stopped",
        )
    return SupplyError(f"{house.folder}: cannot be written: {error.strerror}")
