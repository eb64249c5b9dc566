"""Sessions whose first word is the host that is read: ``overlay``, ``capture``, ``sync_patches``."""

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
    from hostenv.workflows.events import HostResult
    from hostenv.workflows.request import Request

_WORK: Mapping[str, str] = {
    "overlay": "taking:take_overlay",
    "sync_patches": "sync:sync_patches",
    "capture": "capture:capture",
}


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Carry out the request's session."""
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
    module, _, function = _WORK[request.session].partition(":")
    work: Callable[[Session], tuple[HostResult, ...]] = getattr(
        importlib.import_module(f"hostenv.workflows.{module}"), function
    )
    fleet = load_fleet(repository / "envspecs")
    with Live() as listener:
        locker = Locker(fleet, upgrade=request.upgrade, relock=request.relock)
        return work(Session(fleet=fleet, request=request, locker=locker, listener=listener))
