"""A lock that knows whether somebody waits for it: who holds it may then hurry."""

from __future__ import annotations

import threading
from typing import Self


class Turns:
    """Gives turns, one at a time, as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._waiting = 0

    def __enter__(self) -> Self:
        self._count(1)
        try:
            self._lock.acquire()
        finally:
            self._count(-1)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a turn now."""
        return self._waiting > 0

    def _count(self, change: int) -> None:
        with self._counting:
            self._waiting += change
