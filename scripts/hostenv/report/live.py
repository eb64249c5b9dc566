"""Progress while a session works: live lines on a terminal, a line a phase in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from hostenv.agent.amounts import megabytes
from hostenv.errors import HostenvError
from hostenv.report.findings import console as made_console
from hostenv.report.lines import line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from rich.console import Console
    from rich.progress import Progress, Task, TaskID


@dataclass(slots=True)
class _Phase:
    name: str
    total: int | None
    began: float
    done: int = 0


class Live:
    """A listener that shows one line a host. Safe to call from several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or made_console(sys.stderr)
        self._lock = threading.Lock()
        self._phases: dict[str, _Phase] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress = _progress(self._console) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def plan(self, host: str, lines: Sequence[str]) -> None:
        """Print what is about to change.

        Raises :class:`HostenvError` where it cannot be shown: then nothing may change.
        """
        with self._lock:
            self._end(host)
            try:
                self._console.print(Text(host, "bold").append(": plan", "default"), soft_wrap=True)
                for each in lines:
                    line(each, self._console, indent=2)
            except OSError as error:
                raise HostenvError(
                    f"{host}: the plan cannot be shown: {error.strerror}",
                    hint="nothing was changed; standard error must lead somewhere",
                ) from error

    def phase(self, host: str, name: str, total: int | None = None) -> None:
        """End the host's phase and begin another, of ``total`` bytes where they are known."""
        with self._lock:
            self._end(host)
            self._phases[host] = _Phase(name, total, time.monotonic())
            if self._progress:
                self._tasks[host] = self._progress.add_task(name, host=host, total=total, done="")

    def advance(self, host: str, done: int) -> None:
        """Show ``done`` bytes of the phase."""
        phase = self._phases.get(host)
        if phase is None:
            return
        phase.done = done
        if self._progress:
            self._progress.update(self._tasks[host], completed=done)

    def finished(self, host: str) -> None:
        """End the host's last phase."""
        with self._lock:
            self._end(host)

    def _end(self, host: str) -> None:
        phase = self._phases.pop(host, None)
        if phase is None:
            return
        seconds = time.monotonic() - phase.began
        if self._progress:
            self._progress.remove_task(self._tasks.pop(host))
        if seconds >= _WORTH_A_LINE or phase.total:
            size = f"  {megabytes(phase.done)}" if phase.total else ""
            with contextlib.suppress(OSError):  # the work goes on where nobody looks
                self._console.print(Text(f"  {host}  {phase.name}{size}  {seconds:.1f} s"), soft_wrap=True)


_BAR = 10
"""Columns of a bar: the line of a host with a long name fits into 80."""

_WORTH_A_LINE = 0.3
"""Seconds below which a phase leaves no line."""


def _progress(console: Console) -> Progress:
    from rich import progress  # noqa: PLC0415  20 ms, which a log need not wait for
    from rich.table import Column  # noqa: PLC0415

    class Bytes(progress.ProgressColumn):
        """Bytes of how many, and how fast; nothing for a phase of unknown length."""

        def get_table_column(self) -> Column:
            return Column(no_wrap=True)

        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text()
            told = f"{megabytes(task.completed)} of {megabytes(task.total)}"
            return Text(f"{told}  {megabytes(task.speed)}/s" if task.speed else told)

    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.fields[host]}", style="bold", markup=False),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=_BAR),
        progress.TimeElapsedColumn(),
        Bytes(),
        console=console,
        transient=True,
    )
