"""Moving many files between the controller and a host as streams."""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.agent import place, stream
from hostenv.agent.oserrors import words
from hostenv.agent.wire import AgentError
from hostenv.errors import HostError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from hostenv.machine.agent import Agent

RANGE = 64 << 20
"""Bytes of a file that one connection takes at a time where several work side by side."""

SLOW_ROUND_TRIP = 0.004
"""Seconds of round trip from which one connection's window (2 MiB) holds a transfer below 0.5 GB/s."""

AHEAD = 8
"""Pieces of 1 MiB that may wait to be written here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file to move: its path below source and destination, size in bytes, and digest where it is known."""

    path: str
    size: int
    sha256: str | None = None


def worthwhile_connections(allowed: int, round_trip: float, size: int) -> int:
    """Return how many connections a transfer of ``size`` bytes should use, at most ``allowed``.

    Measured: on loopback a second connection brings nothing; at a round trip of 20 ms one connection moves
    95 MB/s, its window being 2 MiB, and four move 300.
    """
    if round_trip < SLOW_ROUND_TRIP:
        return 1
    return max(1, min(allowed, size // RANGE))


def measure_round_trip(agent: Agent) -> float:
    """Return the seconds that the shortest question takes, the best of three."""
    times = []
    for _ in range(3):
        begun = time.monotonic()
        agent.call("echo")
        times.append(time.monotonic() - begun)
    return min(times)


def send_files(
    agents: Sequence[Agent],
    source: pathlib.Path,
    destination: str,
    files: Sequence[File],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Mapping[str, str]:
    """Put ``files`` from below ``source`` at the same paths below ``destination`` on the host.

    Every agent is on a connection of its own; large files are shared out in ranges. Mode and mtime come
    along. Returns each file's digest as the host computed it. A file appears under its path only whole,
    durable and with the digest that ``files`` names; raises :class:`HostError` otherwise, with what was in
    place by then. ``on_progress`` is told bytes, from several threads.
    """
    transfer = Transfer(files, len(agents))
    label = transfer.label
    agents[0].call("place.begin", root=destination, label=label, size=transfer.size)

    def put(agent: Agent) -> Mapping[str, str]:
        data = _counted(stream.send(str(source), transfer.take_all()), on_progress)
        landed: Mapping[str, str] = agent.call(
            "place.put", root=destination, label=label, data=data, source=str(source)
        )
        return landed

    def finish(agent: Agent) -> Mapping[str, str]:
        finished: Mapping[str, str] = agent.call("place.finish", root=destination, label=label)
        return finished

    with told_as_host_error(agents[0].host, source):
        return merged((*on_each(agents, put), *on_each(agents, finish)))


def receive_files(
    agents: Sequence[Agent],
    source: str,
    destination: pathlib.Path,
    files: Sequence[File],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Mapping[str, str]:
    """Put ``files`` from below ``source`` on the host at the same paths below ``destination`` here.

    The other direction of :func:`send_files`, with the same promises.
    """
    transfer = Transfer(files, len(agents))
    root, label = str(destination), transfer.label

    def work(agent: Agent, landing: place.Landing) -> Mapping[str, str]:
        while wanted := transfer.take_some():
            receive(agent, source, wanted, landing.receive, on_progress)
        landing.settle()
        return landing.digests

    with told_as_host_error(agents[0].host, destination):
        place.begin(root=root, label=label, size=transfer.size)
        with landings(len(agents), root, label, source, files) as each:
            landed = on_each(agents, work, each)
            return merged((*landed, *on_each(each, place.Landing.finish)))


@contextlib.contextmanager
def landings(
    count: int, root: str, label: str, source: str, files: Sequence[File]
) -> Iterator[Sequence[place.Landing]]:
    """Open places here for ``files`` that come over several connections; nothing else may come."""
    expected = {file.path: file.sha256 or "" for file in files}
    with contextlib.ExitStack() as stack:
        opened = (place.Landing(root, label, source=source, expected=expected) for _ in range(count))
        yield [stack.enter_context(contextlib.closing(landing)) for landing in opened]


class Transfer:
    """What is left to move, shared by the connections: each takes the next range when it is free.

    Files are cut only for several connections, and only where a digest will tell that the ranges belong
    together.
    """

    def __init__(self, files: Sequence[File], connections: int) -> None:
        self.label = secrets.token_hex(8)
        self.size = sum(file.size for file in files)
        self._alone = connections == 1
        self.ranged = tuple(file for file in files if not self._alone and file.size > RANGE and file.sha256)
        self._taking = threading.Lock()
        cut = {file.path for file in self.ranged}
        ranges = (part for file in self.ranged for part in _ranges(file))
        self._left = deque((*ranges, *((_whole(file), file.size) for file in files if file.path not in cut)))

    def take_all(self) -> Iterator[stream.Wanted]:
        """Yield ranges until none is left."""
        while taken := self._take(0):
            yield taken[0]

    def take_some(self) -> list[stream.Wanted]:
        """Return ranges of :data:`RANGE` bytes in all, or everything where one connection works alone."""
        return self._take(self.size if self._alone else RANGE)

    def _take(self, size: int) -> list[stream.Wanted]:
        taken: list[stream.Wanted] = []
        with self._taking:
            while self._left and (not taken or size >= self._left[0][1]):
                wanted, length = self._left.popleft()
                taken.append(wanted)
                size -= length
        return taken


def _whole(file: File) -> stream.Wanted:
    return stream.Wanted(file.path, file.sha256 or "")


def _ranges(file: File) -> Iterator[tuple[stream.Wanted, int]]:
    for offset in range(0, file.size, RANGE):
        length = min(RANGE, file.size - offset)
        yield stream.Wanted(file.path, file.sha256 or "", offset, length), length


def on_each(
    items: Sequence[Any], work: Callable[..., Mapping[str, str]], *more: Sequence[Any]
) -> list[Mapping[str, str]]:
    """Run ``work`` for all items side by side; the first failure is raised when all have ended."""
    if len(items) == 1:
        return [work(*(each[0] for each in (items, *more)))]
    with ThreadPoolExecutor(len(items), thread_name_prefix="transfer") as pool:
        return list(pool.map(work, items, *more))


def merged(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what every connection has moved."""
    return {path: digest for part in parts for path, digest in part.items()}


def _counted(pieces: Iterator[stream.Piece], told: Callable[[int], None] | None) -> Iterator[stream.Piece]:
    for piece in pieces:
        yield piece
        if told:
            told(len(piece))


def receive(
    agent: Agent,
    source: str,
    wanted: Sequence[stream.Wanted],
    land: Callable[[Iterator[bytes]], None],
    told: Callable[[int], None] | None,
) -> None:
    """Fetch one stream: ``land`` writes and hashes it in a thread, while this one decrypts."""
    waiting: queue.Queue[bytes | None] = queue.Queue(AHEAD)
    with ThreadPoolExecutor(1, thread_name_prefix="landing") as pool:
        landed = pool.submit(land, iter(waiting.get, None))

        def take(piece: bytes) -> None:
            hand_over(piece, waiting, landed)
            if told:
                told(len(piece))

        try:
            agent.call(
                "place.get",
                root=source,
                wanted=[(each.path, each.sha256, each.offset, each.length) for each in wanted],
                on_data=take,
            )
        finally:
            hand_over(None, waiting, landed)
        landed.result()


def hand_over(piece: bytes | None, waiting: queue.Queue[bytes | None], landed: Future[None]) -> None:
    """Give the landing thread a piece; where that has failed (disk full, wrong digest), raise its error."""
    while True:
        if landed.done():
            landed.result()
            return
        with contextlib.suppress(queue.Full):
            waiting.put(piece, timeout=0.2)
            return


@contextlib.contextmanager
def told_as_host_error(host: str, folder: object) -> Iterator[None]:
    """Raise what the agent's modules raise when they run here, in ``folder``, as an operator's error."""
    try:
        yield
    except AgentError as error:
        raise HostError(f"{host}: {error.message}", hint=error.hint) from error
    except OSError as error:
        told = words(error, folder)
        raise HostError(f"{host}: moving files: here, {told.message}", hint=told.hint) from error
