"""Moving many files from one host to another through the controller, which keeps them."""

from __future__ import annotations

import contextlib
import functools
import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from hostenv.agent import place, stream
from hostenv.agent.wire import PIECE
from hostenv.machine import bulk

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostenv.machine.agent import Agent

_AHEAD = 4
"""Pieces of 1 MiB that may wait to be sent on."""


def forward_files(  # noqa: PLR0913  two ends and what goes between them, all by keyword
    files: Sequence[bulk.File],
    *,
    sources: Sequence[Agent],
    source: str,
    keep: pathlib.Path,
    targets: Sequence[Agent],
    destination: str,
    names: Mapping[str, str],
    on_progress: Callable[[int], None] | None = None,
) -> Mapping[str, str]:
    """Put ``files`` from below ``source`` on one host below ``keep`` here, and on their way to another host.

    Here they have the same paths, and there their ``names`` below ``destination``. Each connection to the one
    is paired with one to the other. Both ends have the promises of
    :func:`hostenv.machine.bulk.send_files`; every file has a digest. What ends the target does not end the
    source, which others may use: all is received here first, and only then the target's error is raised.
    """
    count = min(len(sources), len(targets))
    transfer = bulk.Transfer(files, count)
    root, label = str(keep), transfer.label

    def work(agent: Agent, landing: place.Landing, way: _Onward) -> Mapping[str, str]:
        while wanted := transfer.take_some():
            bulk.receive(agent, source, wanted, lambda came: way.take(landing.pass_on(came)), on_progress)
        landing.settle()
        return landing.digests

    def put(agent: Agent, data: Iterator[bytearray]) -> None:
        agent.call("place.put", root=destination, label=label, data=data)

    def finish(agent: Agent) -> Mapping[str, str]:
        finished: Mapping[str, str] = agent.call("place.finish", root=destination, label=label)
        return finished

    with bulk.told_as_host_error(sources[0].host, keep):
        place.begin(root=root, label=label, size=transfer.size)
        targets[0].call("place.begin", root=destination, label=label, size=transfer.size)
        with (
            ThreadPoolExecutor(count, thread_name_prefix="onward") as pool,
            contextlib.ExitStack() as ways,
            bulk.landings(count, root, label, source, files) as landings,
        ):
            onward = [
                ways.enter_context(_Onward(names, pool, functools.partial(put, agent), on_progress))
                for agent in targets[:count]
            ]
            landed = bulk.on_each(sources[:count], work, landings, onward)
            digests = bulk.merged((*landed, *bulk.on_each(landings, place.Landing.finish)))
        for way in onward:
            way.result()
        bulk.on_each(targets[:count], finish)
        return digests


class _Onward:
    """One connection to the target: sends on what it is given, and drops that once the target has failed.

    ``put`` sends pieces until it has an answer. The stream ends with the ``with`` block: after an error in
    the middle of a file, so that the target refuses that.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        pool: ThreadPoolExecutor,
        put: Callable[[Iterator[bytearray]], None],
        told: Callable[[int], None] | None,
    ) -> None:
        self._names = names
        self._told = told
        self._gathered = bytearray()
        self._waiting: queue.Queue[bytearray | None] = queue.Queue(_AHEAD)
        self._sending = pool.submit(put, iter(self._waiting.get, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._hand_over(None)

    def take(self, passed: Iterator[stream.Unit | memoryview]) -> None:
        """Send on what lands, each file under its other name."""
        for each in passed:
            if isinstance(each, stream.Unit):
                self._add(each._replace(path=self._names[each.path]).head())
            else:
                self._add(each)

    def result(self) -> None:
        """Wait for the target's answer; raise its error."""
        self._sending.result()

    def _add(self, piece: bytes | memoryview) -> None:
        if len(self._gathered) + len(piece) > PIECE:
            self._flush()
        self._gathered += piece

    def _flush(self) -> None:
        if self._gathered:
            piece, self._gathered = self._gathered, bytearray()
            self._hand_over(piece)
            if self._told:
                self._told(len(piece))

    def _hand_over(self, piece: bytearray | None) -> None:
        while not self._sending.done():
            with contextlib.suppress(queue.Full):
                self._waiting.put(piece, timeout=0.2)
                return
