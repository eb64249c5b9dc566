"""Noticing that an agent says nothing any more, on a host whose connection still stands."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
"""Seconds without a frame after which an agent is given up.

It sends a sign of life every :data:`hostenv.agent.wire.BEAT` seconds, from a thread of its own. What
holds the interpreter's lock there (JSON of tens of MB) keeps that thread waiting for seconds.
"""


class Silence:
    """Calls ``give_up`` once, when the far side has not moved for ``patience`` seconds while waited for.

    What counts is time in which this process ran: one that was stopped itself has heard nothing, either.
    """

    def __init__(self, patience: float, give_up: Callable[[], None], name: str) -> None:
        self._patience = patience
        self._give_up = give_up
        self._look = min(1.0, patience / 4)
        self._stopped = threading.Event()
        self._waits = 0
        self._waiting = False
        self.fell = False
        """Whether the far side was given up."""
        self._thread = threading.Thread(target=self._run, name=f"silence {name}", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of this block: in it, something waits for a piece to go or to come."""
        self._waits += 1
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def _run(self) -> None:
        silent, last, seen = 0.0, time.monotonic(), 0
        while not self._stopped.wait(self._look):
            now = time.monotonic()
            if self._waiting and self._waits == seen:
                silent += min(now - last, 2 * self._look)
            else:
                silent = 0.0
            last, seen = now, self._waits
            if silent >= self._patience:
                self.fell = True
                self._give_up()
                return
