"""Sessions that change hosts and say of each what became of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hostenv.commands.ended import ended
from hostenv.errors import HostenvError
from hostenv.machine.here import told_here
from hostenv.report.hosts import failure_line, print_results, write_results
from hostenv.report.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.locking import Locker
from hostenv.workflows.session import Session

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.machine.fleet import Turn
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import HostResult
    from hostenv.workflows.request import Request

_WORK: Mapping[str, str] = {
    "build_env": "build_env",
    "lock": "lock",
    "fetch": "fetch",
    "switch": "switch",
    "rollback": "switch",
    "prune": "builds",
}
"""Session → the module of workflows that has a function of its name, imported when it is asked for."""


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Carry out the request's session on its hosts."""
    try:
        with told_here():
            results = _carry_out(request, repository)
    except HostenvError as error:
        if request.json:
            write_results((), request.session, request.json, error)
        raise
    if request.json:
        write_results(results, request.session, request.json)
    print_results(results, out)
    return ended(failure_line(results), (result.error for result in results))


def _carry_out(request: Request, repository: pathlib.Path) -> tuple[HostResult, ...]:
    fleet = load_fleet(repository / "envspecs")
    with Live() as listener:
        locker = Locker(fleet, upgrade=request.upgrade, relock=request.relock)
        session = Session(fleet=fleet, request=request, locker=locker, listener=listener)
        workflow = importlib.import_module(f"hostenv.workflows.{_WORK[request.session]}")
        work: Callable[[Session, Spec, Turn], HostResult] = getattr(workflow, request.session)
        return session.run(work)
