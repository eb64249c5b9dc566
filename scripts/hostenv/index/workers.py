"""Threads that work off a list side by side, and can be left where they hang."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


class Workers(Generic[T]):
    """``jobs`` threads that call ``work`` with each item, in their order; ``futures`` hold what came of it.

    The threads are daemons, unlike those of :mod:`concurrent.futures`, whose exit hook joins them: one that
    waits for a name server, a connection or a server's first word can be left but not ended.
    """

    def __init__(self, items: Sequence[T], work: Callable[[T], None], jobs: int) -> None:
        self.futures: Mapping[Future[None], T] = {Future(): item for item in items}
        self._waiting = deque(self.futures.items())
        self._work = work
        self._threads = [
            threading.Thread(target=self._carry_out, name=f"fetch {index}", daemon=True)
            for index in range(jobs)
        ]
        for thread in self._threads:
            thread.start()

    def end(self, patience: float) -> None:
        """Begin no further item; wait at most ``patience`` seconds for those that were begun."""
        for future in self.futures:
            future.cancel()
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def done(self) -> list[T]:
        """Return the items whose work is done, without an error."""
        return [
            item
            for future, item in self.futures.items()
            if future.done() and not future.cancelled() and future.exception() is None
        ]

    def _carry_out(self) -> None:
        while self._waiting:
            try:
                future, item = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001  a thread's end: whatever it was is the item's
                future.set_exception(error)
            else:
                future.set_result(None)
