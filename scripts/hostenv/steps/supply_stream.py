"""Sending what a host lacks from the controller's wheelhouse, as one checked stream."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from hostenv.agent.amounts import megabytes
from hostenv.errors import UnreachableError
from hostenv.machine.bulk import File

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.agent.wheelhouse import Wheel
    from hostenv.machine.agent import Agent


class Sender(Protocol):
    """A machine that files can be sent to: a host's reach, or a relay."""

    @property
    def agent(self) -> Agent:
        """The agent there."""

    def send_files(
        self,
        source: pathlib.Path,
        destination: str,
        files: Sequence[File],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, str]:
        """Put files there: :func:`hostenv.machine.bulk.send_files`."""


class Total:
    """Adds up bytes that several threads report, and tells the sum, which ``done`` is, too."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self.done = 0
        self._adding = threading.Lock()

    def add(self, count: int) -> None:
        """Add to the sum."""
        with self._adding:
            self.done += count
            done = self.done
        self._tell(done)


def send(
    reach: Sender,
    root: str,
    source: pathlib.Path,
    files: Sequence[Wheel],
    *,
    on_progress: Callable[[int], None],
) -> None:
    """Put files of the wheelhouse ``source`` into that of the host, each under its hash.

    The agent holds the host's lock. Small files come first: what a cut connection has brought by then stays,
    and the next run sends the rest. Raises :class:`~hostenv.errors.HostError` for other bytes than the names
    say, :class:`~hostenv.errors.UnreachableError` where the connection ends.
    """
    if not files:
        return
    ordered = sorted(files, key=lambda file: file.size)
    wanted = [
        File(path=f"{file.sha256}/{file.filename}", size=file.size, sha256=file.sha256) for file in ordered
    ]
    total = Total(on_progress)
    try:
        reach.send_files(source, f"{root}/wheelhouse", wanted, on_progress=total.add)
    except UnreachableError as error:
        size = megabytes(sum(file.size for file in files))
        raise UnreachableError(
            f"{error.message}; {megabytes(total.done)} of {size} were on their way",
            hint="run the session again: what arrived whole stays, the rest is sent then",
        ) from error
    reach.agent.call("wheelhouse.adopt", root=root, wheels=[tuple(file) for file in files])
