"""``match``: compare and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv import report, report_match
from hostenv.errors import HostenvError
from hostenv.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.match import match

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.workflows.request import Request


def run(request: Request, repository: pathlib.Path, out: Console) -> str | None:
    """Compare the environments that the request names."""
    try:
        with Live() as listener:
            found = match(load_fleet(repository / "envspecs"), request, listener)
    except HostenvError as error:
        if request.json:
            report.write_json(report_match.error_document(error), request.json)
        raise
    report_match.print_report(found, out)
    if request.json:
        report.write_json(report_match.document(found), request.json)
    return report_match.failure_line(found)
