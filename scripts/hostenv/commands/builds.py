"""``builds``: list and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv import report, report_builds
from hostenv.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.builds import builds

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.workflows.request import Request


def run(request: Request, repository: pathlib.Path, out: Console) -> str | None:
    """List the builds of the request's hosts."""
    with Live() as listener:
        found = builds(load_fleet(repository / "envspecs"), request, listener)
    report_builds.print_builds(found, out)
    if request.json:
        report.write_json(report_builds.document(found), request.json)
    return report_builds.failure_line(found)
