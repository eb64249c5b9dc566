"""``status``: one line a host, now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.commands.ended import ended
from hostenv.report.findings import write_json
from hostenv.report.status import error_document, print_status, status_document
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.status import StatusOptions, status

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.workflows.request import Request

__all__ = ["error_document", "run"]


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Ask the request's hosts side by side; a host that does not answer is named in the failure."""
    fleet = load_fleet(repository / "envspecs")
    lines = status(fleet, fleet.select(request.hosts), StatusOptions(jobs=request.jobs))
    if request.json:
        write_json(status_document(lines), request.json)
    print_status(lines, out)
    failed = [line.name for line in lines if line.error]
    failure = f"{len(failed)} of {counted(len(lines), 'host')}: {', '.join(failed)}" if failed else None
    return ended(failure, (line.error for line in lines))
