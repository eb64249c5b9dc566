"""Working on many hosts at once: a bound, a time-out, and a result for each."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from hostenv.errors import BugError, HostenvError, UnreachableError
from hostenv.machine.here import refused_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

H = TypeVar("H")
T = TypeVar("T")

_STACK = 1 << 20
"""Bytes of a worker's stack; the system's 8 MiB are for recursion that nothing here does."""

_LOOK = 0.25
"""Seconds after which this thread looks whether it was interrupted."""

_GRACE = 1.0
"""Seconds that the work of hosts has for its ends after an interrupt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result(Generic[T]):
    """What became of one host: a value, or the error that ended the work there. ``seconds`` it took.

    Where hostenv has a bug, ``error`` is a :class:`BugError` that has the exception.
    """

    name: str
    value: T | None
    error: HostenvError | None
    seconds: float


class Turn:
    """One host's turn, as its work sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given_up = threading.Event()
        self._ends: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def ends_with(self, end: Callable[[], None]) -> None:
        """Have ``end`` called when the host is given up: it closes what the work waits for.

        ``end`` is called from another thread, and at once where the host has been given up already.
        """
        with self._lock:
            self._ends.append(end)
            late = self.given_up.is_set()
        if late:
            end()

    def give_up(self) -> None:
        """End what the work waits for, in threads of their own: an end may take long.

        Where the system has no thread left, the ends are called here: late is better than never.
        """
        with self._lock:
            self.given_up.set()
            ends = tuple(self._ends)
        for end in ends:
            try:
                threading.Thread(target=end, name=f"give up {self.name}", daemon=True).start()
            except RuntimeError:
                end()


def run_on_hosts(  # noqa: PLR0913  three bounds and who hears of it, all by keyword
    hosts: Mapping[str, H],
    work: Callable[[H, Turn], T],
    *,
    jobs: int,
    timeout: float | None = None,
    on_result: Callable[[Result[T]], None] | None = None,
    enough: Callable[[Result[T]], bool] | None = None,
) -> dict[str, Result[T]]:
    """Run ``work`` for every host, at most ``jobs`` side by side; return the results by name, in order.

    No host's failure or bug ends another's work. A host whose work takes longer than ``timeout`` seconds is
    given up: its turn's ends are called, its result is an :class:`UnreachableError`, the next one starts.
    ``on_result`` is called in this thread as each host ends. Once ``enough`` has said of one that it is, no
    further host is started: those have no result. An interrupt gives up every host and is raised, a moment
    later where the work takes that long to leave everything in order.
    """
    crew = _Crew(hosts, work, timeout)
    results: dict[str, Result[T]] = {}
    try:
        while crew.start(jobs):
            for result in crew.wait():
                results[result.name] = result
                if on_result:
                    on_result(result)
                if enough and enough(result):
                    crew.start_no_more()
    finally:
        crew.give_up_all()
    return {name: results[name] for name in hosts if name in results}


@contextlib.contextmanager
def _stacks_of(size: int) -> Iterator[None]:
    """Give the threads that start meanwhile stacks of so many bytes."""
    before = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(before)


class _Crew(Generic[H, T]):
    """The workers: one daemon thread a host, since a thread that hangs can be left but not ended."""

    def __init__(self, hosts: Mapping[str, H], work: Callable[[H, Turn], T], timeout: float | None) -> None:
        self._waiting = deque(hosts.items())
        self._work = work
        self._timeout = timeout
        self._running: dict[str, tuple[Turn, threading.Thread, float]] = {}
        self._ended: queue.SimpleQueue[Result[T]] = queue.SimpleQueue()

    def start(self, jobs: int) -> bool:
        """Start waiting hosts until ``jobs`` run; return whether any does."""
        while self._waiting and len(self._running) < max(1, jobs):
            name, host = self._waiting.popleft()
            turn = Turn(name)
            worker = threading.Thread(target=self._carry_out, args=(turn, host), name=name, daemon=True)
            self._running[name] = (turn, worker, time.monotonic())
            with _stacks_of(_STACK):
                worker.start()
        return bool(self._running)

    def start_no_more(self) -> None:
        """Forget the hosts that wait."""
        self._waiting.clear()

    def wait(self) -> list[Result[T]]:
        """Return the results that come next: one host has ended, or some have run out of time."""
        try:
            result = self._ended.get(timeout=self._time_left())
        except queue.Empty:
            return self._expired() if self._timeout is not None else []
        if result.name not in self._running:
            return []  # it ended after it was given up
        del self._running[result.name]
        return [result]

    def give_up_all(self) -> None:
        """End the work of every host that still runs; its threads get a moment to put things in order."""
        for turn, _, _ in self._running.values():
            turn.give_up()
        until = time.monotonic() + _GRACE
        for _, worker, _ in self._running.values():
            if worker.is_alive():  # the last one may not have come to life: an interrupt, or no thread left
                worker.join(max(0.0, until - time.monotonic()))

    def _carry_out(self, turn: Turn, host: H) -> None:
        begun = time.monotonic()
        value: T | None = None
        error: HostenvError | None = None
        try:
            value = self._work(host, turn)
        except HostenvError as raised:
            error = raised
        except OSError as raised:
            error = refused_here(raised, turn.name) or BugError(turn.name, raised)
        except BaseException as raised:  # noqa: BLE001  a worker's end: whatever it was is the host's result
            error = BugError(turn.name, raised)
        self._ended.put(Result(name=turn.name, value=value, error=error, seconds=time.monotonic() - begun))

    def _time_left(self) -> float:
        """Return how long to wait: never long, for an interrupt may come to a thread that just clones.

        Its handler then runs there, and a wait of this thread's without an end goes on for ever.
        """
        if self._timeout is None:
            return _LOOK
        oldest = min(begun for _, _, begun in self._running.values())
        return min(_LOOK, max(0.0, oldest + self._timeout - time.monotonic()))

    def _expired(self) -> list[Result[T]]:
        now, timeout = time.monotonic(), self._timeout or 0.0
        expired = [name for name, (_, _, begun) in self._running.items() if now - begun >= timeout]
        results: list[Result[T]] = []
        for name in expired:
            turn, _, begun = self._running.pop(name)
            turn.give_up()
            error = UnreachableError(
                f"{name}: given up after {timeout:.0f} s",
                hint="it answers, but its work does not end: look for a hanging mount or nvidia-smi there",
            )
            results.append(Result(name=name, value=None, error=error, seconds=now - begun))
        return results
