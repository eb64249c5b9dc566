"""Noticing that a host has stopped answering, long before TCP does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Keepalive:
    """Asks a host again and again; calls ``give_up`` once, with the reason, when an answer is missing.

    ``ask`` sends a question and returns with any answer, a refusal included; it raises :class:`OSError` when
    the connection has ended. ``interval`` seconds pass between two questions; an answer may take ``interval``
    times ``count`` seconds, which must be longer than one full window takes on the slowest link: the answer
    waits behind it. (ServerAliveInterval and ServerAliveCountMax, ssh_config(5).)
    """

    def __init__(
        self, ask: Callable[[], None], *, interval: float, count: int, give_up: Callable[[str], None]
    ) -> None:
        self._ask = ask
        self._interval = interval
        self._patience = interval * count
        self._give_up = give_up
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keepalive", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question that is under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            timer = threading.Timer(self._patience, self._expire)
            timer.daemon = True
            timer.start()
            try:
                self._ask()
            except OSError:
                return
            finally:
                timer.cancel()

    def _expire(self) -> None:
        if not self._stopped.is_set():
            self._give_up(f"it has not answered for {self._patience:.0f} s")
