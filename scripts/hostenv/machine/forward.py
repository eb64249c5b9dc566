"""Moving many files from one host to another through the controller, which keeps them."""

from __future__ import annotations

import functools
import queue
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from hostenv.agent import place, stream
from hostenv.agent.wire import PIECE
from hostenv.errors import HostError
from hostenv.machine import bulk

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostenv.machine.agent import Agent

_AHEAD = 4
"""Pieces of 1 MiB that may wait to be sent on."""

PATIENCE = 0.5
"""Seconds in all that a target may keep a source waiting that others wait for."""


class Forwarding:
    """Sends on to one host, below ``destination``, what is received here from another.

    Each connection to the one is paired with one to the other. Every file has a digest, and the target has
    the promises of :func:`hostenv.machine.bulk.send_files` for ``size`` bytes in all. Others may use the
    source: what ends the target does not end it, and a target that keeps it waiting for longer than
    :data:`PATIENCE` is no longer sent anything while others wait.

    A ``with`` block ends what is under way.
    """

    def __init__(
        self,
        targets: Sequence[Agent],
        destination: str,
        *,
        size: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self._targets = targets
        self._destination = destination
        self._size = size
        self._told = on_progress
        self._label = secrets.token_hex(8)
        self._pool = ThreadPoolExecutor(len(targets), thread_name_prefix="onward")
        self._ways: list[_Onward] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for way in self._ways:
            way.end()
        self._pool.shutdown()

    def receive(  # noqa: PLR0913  where from and where to, all by keyword
        self,
        files: Sequence[bulk.File],
        *,
        sources: Sequence[Agent],
        source: str,
        keep: pathlib.Path,
        names: Mapping[str, str],
        hurried: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, str]:
        """Put ``files`` from below ``source`` on one host below ``keep`` here, and on their way to the other.

        Here they have the same paths, and there their ``names``. Returns once all is here, with the digests;
        ``hurried`` tells whether others wait for the source. May be called again, for other files.
        """
        if not self._ways:
            self._open()
        count = min(len(sources), len(self._ways))
        transfer = bulk.Transfer(files, count)
        root, label = str(keep), transfer.label

        def work(agent: Agent, landing: place.Landing, way: _Onward) -> Mapping[str, str]:
            def land(came: Iterator[bytes]) -> None:
                way.take(landing.pass_on(came), names, hurried)

            while wanted := transfer.take_some():
                bulk.receive(agent, source, wanted, land, self._told)
            landing.settle()
            return landing.digests

        with bulk.told_as_host_error(sources[0].host, keep):
            place.begin(root=root, label=label, size=transfer.size)
            with bulk.landings(count, root, label, source, files) as landings:
                landed = bulk.on_each(sources[:count], work, landings, self._ways[:count])
                return bulk.merged((*landed, *bulk.on_each(landings, place.Landing.finish)))

    def settle(self) -> bool:
        """Wait for the target, and raise its error; tell whether it has all that was received.

        Where it does not, it was too slow while others waited: what is kept here can be sent to it now.
        """
        for way in self._ways:
            way.end()
        whole = [way.result() for way in self._ways]
        if whole and all(whole):
            bulk.on_each(self._targets[: len(self._ways)], self._finish)
        self._ways = []
        return all(whole)

    def _open(self) -> None:
        self._targets[0].call("place.begin", root=self._destination, label=self._label, size=self._size)
        for agent in self._targets:
            self._ways.append(_Onward(self._pool, functools.partial(self._put, agent), self._told))

    def _put(self, agent: Agent, data: Iterator[bytearray]) -> None:
        agent.call("place.put", root=self._destination, label=self._label, data=data)

    def _finish(self, agent: Agent) -> Mapping[str, str]:
        finished: Mapping[str, str] = agent.call("place.finish", root=self._destination, label=self._label)
        return finished


class _Onward:
    """One connection to the target: sends on what it is given, and drops that once it is no use.

    ``put`` sends pieces until it has an answer. Where the target failed or was left behind, its stream ends
    in the middle of a file, so that the target refuses that.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        put: Callable[[Iterator[bytearray]], None],
        told: Callable[[int], None] | None,
    ) -> None:
        self._told = told
        self._gathered = bytearray()
        self._waiting: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._patience = PATIENCE
        self._left_behind = False
        self._sending = pool.submit(put, self._pieces())

    def take(
        self,
        passed: Iterator[stream.Unit | memoryview],
        names: Mapping[str, str],
        hurried: Callable[[], bool],
    ) -> None:
        """Send on what lands, each file under its other name."""
        for each in passed:
            piece = each._replace(path=names[each.path]).head() if isinstance(each, stream.Unit) else each
            if len(self._gathered) + len(piece) > PIECE:
                self._flush(hurried)
            self._gathered += piece

    def end(self) -> None:
        """End the stream; nothing is waited for."""
        if self._gathered and not self._left_behind:
            self._waiting.put(self._gathered)
            self._gathered = bytearray()
        self._waiting.put(None)

    def result(self) -> bool:
        """Wait for the target's answer; raise its error. Tell whether it was not left behind."""
        try:
            self._sending.result()
        except HostError:
            if not self._left_behind:
                raise
        return not self._left_behind

    def _pieces(self) -> Iterator[bytearray]:
        while (piece := self._waiting.get()) is not None and not self._left_behind:
            self._room.release()
            yield piece

    def _flush(self, hurried: Callable[[], bool]) -> None:
        piece, self._gathered = self._gathered, bytearray()
        while not (self._left_behind or self._sending.done()):
            begun = time.monotonic()
            if self._room.acquire(timeout=0.1):
                self._waiting.put(piece)
                if self._told:
                    self._told(len(piece))
                return
            if hurried():
                self._patience -= time.monotonic() - begun
                self._left_behind = self._patience <= 0
