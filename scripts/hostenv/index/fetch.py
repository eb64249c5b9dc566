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

from hostenv.agent.files import sync_volume
from hostenv.errors import SupplyError
from hostenv.index.download import Download
from hostenv.index.session import Session, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hostenv.agent.wheelhouse import Wheelhouse
    from hostenv.index.source import Logins, Source

    _Futures = Mapping[concurrent.futures.Future[None], Source]

JOBS = 8
"""Transfers side by side."""
_TELL_EVERY = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a fetch is, in bytes and wheels."""

    bytes_done: int
    bytes_total: int
    wheels_done: int
    wheels_total: int


def fetch(
    sources: Iterable[Source],
    house: Wheelhouse,
    *,
    logins: Logins,
    on_progress: Callable[[Progress], None] | None = None,
    jobs: int = JOBS,
) -> None:
    """Bring every wheel into the wheelhouse; the largest first.

    ``on_progress`` is called in the calling thread, about ten times a second and at the end. The first
    wheel that cannot be had ends all transfers with its :class:`SupplyError`; so does Ctrl-C. What has
    arrived by then is kept, whole wheels and parts, and durable: the next run brings what is missing.
    """
    wanted = {source.sha256: source for source in sources}
    if not wanted:
        return
    try:
        house.prepare()
        _Fetch(wanted, house, logins, on_progress, min(jobs, len(wanted))).run()
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

    def run(self) -> None:
        pool = concurrent.futures.ThreadPoolExecutor(self._jobs, thread_name_prefix="fetch")
        largest_first = sorted(self._wanted.values(), key=lambda source: -source.size)
        futures = {pool.submit(self._download.bring, source): source for source in largest_first}
        try:
            self._watch(futures)
        finally:
            self._stop.set()
            self._session.abort()
            pool.shutdown(wait=True, cancel_futures=True)
            self._session.close()
            self._keep(futures)
        self._report()

    def _watch(self, futures: _Futures) -> None:
        waiting = set(futures)
        while waiting:
            ended, waiting = concurrent.futures.wait(waiting, _TELL_EVERY, concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                future.result()
            self._done += len(ended)
            self._report()

    def _keep(self, futures: _Futures) -> None:
        """Make what arrived durable, and only then say that it is verified."""
        arrived = [
            source.wheel
            for future, source in futures.items()
            if not future.cancelled() and future.exception() is None
        ]
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


def _unwritable(house: Wheelhouse, error: OSError) -> SupplyError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = shutil.disk_usage(os.path.dirname(house.folder) or "/").free  # noqa: PTH120
        return SupplyError(
            f"{house.folder}: no space left ({error.strerror}), {free} bytes free",
            hint="make room, or put host.root on another disk; the next run goes on where this one stopped",
        )
    return SupplyError(f"{house.folder}: cannot be written: {error.strerror}")
