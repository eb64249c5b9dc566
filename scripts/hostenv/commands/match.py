"""``match``: compare and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.commands.ended import ended
from hostenv.machine.here import told_here
from hostenv.report.findings import write_json
from hostenv.report.live import Live
from hostenv.report.match import document, error_document, failure_line, print_report
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.match import match
from hostenv.workflows.matchfile import match_manifest

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.workflows.request import Request

__all__ = ["error_document", "run"]


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Compare the environments that the request names."""
    with told_here(), Live() as listener:
        fleet = load_fleet(repository / "envspecs")
        if request.manifest:
            found = match_manifest(fleet, request, request.manifest, listener)
        else:
            found = match(fleet, request, listener)
    if request.json:
        write_json(document(found), request.json)
    print_report(found, out)
    return ended(failure_line(found), (target.error for target in found.targets))
