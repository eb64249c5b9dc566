"""``verify_abi``: judge and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.commands.ended import ended
from hostenv.machine.here import told_here
from hostenv.report.abi import error_document, failure_line, print_verdicts, write_verdicts
from hostenv.report.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.verify_abi import verify_abi

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.workflows.request import Request

__all__ = ["error_document", "run"]


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Judge the environments that the request names."""
    with told_here(), Live() as listener:
        verdicts = verify_abi(load_fleet(repository / "envspecs"), request, listener)
    if request.json:
        write_verdicts(verdicts, request.json)
    print_verdicts(verdicts, out)
    return ended(failure_line(verdicts), (verdict.error for verdict in verdicts))
