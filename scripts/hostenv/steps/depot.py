"""The controller's own wheelhouse: what is sent to hosts, fetched once for all of them."""

from __future__ import annotations

import os
import pathlib
import threading
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hostenv.agent.wheelhouse import Wheel, Wheelhouse
from hostenv.steps import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostenv.spec.lock import Lock, LockEntry
    from hostenv.steps.fetch import FetchPlan


def default_folder() -> pathlib.Path:
    """Return the folder below the user's cache (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(cache) if cache.startswith("/") else pathlib.Path.home() / ".cache"
    return base / "hostenv" / "wheelhouse"


class Depot:
    """Wheels and archives by hash on the controller. Thread safe; nothing is written before a fetch.

    Hosts that want the same wheels wait for one another in this process, and by the lock of each wheel's
    partial file across processes: nothing is fetched twice. ``stopped`` ends every fetch of the session.
    """

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self._folder = folder
        self.stopped = threading.Event()
        self._guard = threading.Lock()
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def folder(self) -> pathlib.Path:
        """Where everything lies: ``SHA256/NAME``."""
        return self._folder or default_folder()

    @property
    def house(self) -> Wheelhouse:
        """The folder as a wheelhouse."""
        return Wheelhouse(str(self.folder))

    def turn(self, key: str) -> threading.Lock:
        """Return the lock of everybody who brings ``key`` (a lock's digest, a file's hash) here."""
        with self._guard:
            return self._turns[key]

    def plan(self, lock: Lock, entries: Sequence[LockEntry]) -> FetchPlan:
        """Return which of these entries of a lock are not here yet. No network, nothing is written."""
        return fetch.plan(replace(lock, entries=tuple(entries)), self.folder, remember=False)

    def fill(
        self,
        lock: Lock,
        entries: Sequence[LockEntry],
        *,
        on_start: Callable[[int], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Fetch what is not here, all or :class:`~hostenv.errors.SupplyError`; what arrived stays.

        ``on_start`` is told the bytes to come, ``on_progress`` the bytes that have.
        """
        with self.turn(lock.render()):
            asked = fetch.plan(replace(lock, entries=tuple(entries)), self.folder)
            if asked.missing:
                on_start(asked.size)
                fetch.apply(
                    asked, on_progress=lambda progress: on_progress(progress.bytes_done), stop=self.stopped
                )

    def path(self, file: Wheel) -> pathlib.Path:
        """Return where a file lies, or will lie."""
        return pathlib.Path(self.house.path(file))

    def holds(self, file: Wheel) -> bool:
        """Tell whether a file is here with the right bytes."""
        return self.house.survey([file], remember=False) == ["present"]
