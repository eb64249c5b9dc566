"""What all hosts of one session share, and running a workflow on each of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.errors import BugError, RefusedError
from hostenv.machine.fleet import run_on_hosts
from hostenv.steps.depot import Depot
from hostenv.steps.payload import Payload
from hostenv.workflows.events import HostResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostenv.machine.fleet import Result, Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import Listener
    from hostenv.workflows.locking import Locker
    from hostenv.workflows.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One call of a nox session.

    ``depot`` and ``payload`` hold the wheels and the overlays' contents that are sent to hosts: had once, for
    all of them.
    """

    fleet: Fleet
    request: Request
    locker: Locker
    listener: Listener
    depot: Depot = field(default_factory=Depot)
    payload: Payload = field(default_factory=Payload)

    def run(
        self, work: Callable[[Session, Spec, Turn], HostResult], chosen: Iterable[Spec] | None = None
    ) -> tuple[HostResult, ...]:
        """Run ``work`` on every host that the request names, or is chosen, side by side; a result a host.

        One host's failure does not stop another, except where the request bounds the failures
        (``--max-fail``): the hosts that were not started by then are refused. A bug is its host's result,
        too: nobody else's is lost.
        """
        if chosen is None:
            chosen = self.fleet.select(self.request.hosts)
        specs = {spec.name: spec for spec in chosen}

        def on_one(spec: Spec, turn: Turn) -> HostResult:
            turn.ends_with(self.depot.stopped.set)  # no host is given up but by an interrupt: for all of them
            try:
                return work(self, spec, turn)
            finally:
                self.listener.finished(spec.name)

        failures = _Failures(self.request.max_fail)
        jobs = self.request.serial or self.request.jobs
        results = run_on_hosts(specs, on_one, jobs=jobs, enough=failures.too_many)
        return tuple(_of(results[name]) if name in results else failures.refused(name) for name in specs)


class _Failures:
    """Counts the hosts that failed, up to what the operator accepts; ``None``: any number."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._failed: list[str] = []

    def too_many(self, result: Result[HostResult]) -> bool:
        """Take one host's result; tell whether no further host may be started."""
        if result.value is None or not result.value.ok:
            self._failed.append(result.name)
        return self._most is not None and len(self._failed) > self._most

    def refused(self, name: str) -> HostResult:
        """Return the result of a host that was not started."""
        failed = ", ".join(self._failed)
        count = counted(len(self._failed), "host")
        error = RefusedError(
            f"{name}: not started: {count} failed before ({failed})",
            hint="mend them and run again, or let more fail with --max-fail N",
        )
        return HostResult(host=name, headline=error.outcome.value, error=error)


def _of(result: Result[HostResult]) -> HostResult:
    if result.value:
        return replace(result.value, seconds=result.seconds)
    error = result.error or BugError(result.name, TypeError("neither a result nor an error"))
    return HostResult(host=result.name, headline=error.outcome.value, error=error, seconds=result.seconds)
