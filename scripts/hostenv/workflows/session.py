"""What all hosts of one session share, and running a workflow on each of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostenv.errors import HostenvError
from hostenv.machine.fleet import raise_bugs, run_on_hosts
from hostenv.steps.depot import Depot
from hostenv.steps.payload import Payload
from hostenv.workflows.events import HostResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostenv.machine.fleet import Turn
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

        One host's failure does not stop another. A bug is raised, once every host has ended.
        """
        if chosen is None:
            chosen = self.fleet.select(self.request.hosts)
        specs = {spec.name: spec for spec in chosen}

        def on_one(spec: Spec, turn: Turn) -> HostResult:
            try:
                return work(self, spec, turn)
            finally:
                self.listener.finished(spec.name)

        results = run_on_hosts(specs, on_one, jobs=self.request.jobs)
        raise_bugs(results)
        return tuple(
            replace(result.value or _failed(name, result.error), seconds=result.seconds)
            for name, result in results.items()
        )


def _failed(name: str, error: BaseException | None) -> HostResult:
    if not isinstance(error, HostenvError):
        raise TypeError(f"{name}: neither a result nor an error") from error
    return HostResult(host=name, headline=error.outcome.value, error=error)
