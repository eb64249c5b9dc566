"""``builds``: list and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.commands.ended import ended
from hostenv.report.builds import document, error_document, failure_line, print_builds
from hostenv.report.findings import write_json
from hostenv.report.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.builds import builds

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.workflows.request import Request

__all__ = ["error_document", "run"]


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """List the builds of the request's hosts."""
    with Live() as listener:
        found = builds(load_fleet(repository / "envspecs"), request, listener)
    if request.json:
        write_json(document(found), request.json)
    print_builds(found, out)
    return ended(failure_line(found), (host.error for host in found))
