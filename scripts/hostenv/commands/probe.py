"""``probe``: read and show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.commands.ended import ended
from hostenv.report.findings import write_json
from hostenv.report.live import Live
from hostenv.report.probe import print_probe
from hostenv.report.probe_json import error_document, probe_document
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.probe import ProbeOptions, probe

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.workflows.request import Request

__all__ = ["error_document", "run"]


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Probe the request's hosts side by side."""
    fleet = load_fleet(repository / "envspecs")
    options = ProbeOptions(jobs=request.jobs, save=request.save)
    specs = fleet.select(request.hosts)
    with Live() as listener:
        for spec in specs:
            listener.phase(spec.name, "probe")
        found = probe(fleet, specs, options, on_host=lambda name, _: listener.finished(name))
    if request.json:
        write_json(probe_document(found), request.json)
    print_probe(found, out)
    failed = ", ".join(host.name for host in found.failed)
    failure = f"{len(found.failed)} of {counted(len(specs), 'host')}: {failed}" if failed else None
    return ended(failure, (host.error for host in found.failed))
