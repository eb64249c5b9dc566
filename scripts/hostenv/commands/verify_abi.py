"""``verify_abi``: judge and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv import report_abi
from hostenv.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.verify_abi import verify_abi

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.workflows.request import Request


def run(request: Request, repository: pathlib.Path, out: Console) -> str | None:
    """Judge the environments that the request names."""
    with Live() as listener:
        verdicts = verify_abi(load_fleet(repository / "envspecs"), request, listener)
    report_abi.print_verdicts(verdicts, out)
    if request.json:
        report_abi.write_verdicts(verdicts, request.json)
    return report_abi.failure_line(verdicts)
