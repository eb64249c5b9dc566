"""The commands: words to a request, a workflow over its hosts, results to the screen and to JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv import arguments, report, report_hosts
from hostenv.errors import HostenvError
from hostenv.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.build_env import build_env
from hostenv.workflows.fetch import fetch
from hostenv.workflows.lock import lock
from hostenv.workflows.locking import Locker
from hostenv.workflows.session import Session
from hostenv.workflows.switch import rollback, switch

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.machine.fleet import Turn
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import HostResult
    from hostenv.workflows.request import Request

_ON_HOSTS: Mapping[str, Callable[[Session, Spec, Turn], HostResult]] = {
    "build_env": build_env,
    "lock": lock,
    "fetch": fetch,
    "switch": switch,
    "rollback": rollback,
}


def run(name: str, words: Sequence[str], repository: pathlib.Path) -> str | None:
    """Carry out a session; return the line to fail with where some host did not get there.

    Raises :class:`~hostenv.errors.HostenvError` for what stops the session before any host.
    """
    out = report.console()
    try:
        request = arguments.parse(name, words)
    except arguments.HelpRequested as text:
        out.print(str(text), markup=False, soft_wrap=True)
        return None
    try:
        results = _carry_out(request, repository)
    except HostenvError as error:
        if request.json:
            report_hosts.write_results((), name, request.json, error)
        raise
    report_hosts.print_results(results, out)
    if request.json:
        report_hosts.write_results(results, name, request.json)
    return report_hosts.failure_line(results)


def _carry_out(request: Request, repository: pathlib.Path) -> tuple[HostResult, ...]:
    fleet = load_fleet(repository / "envspecs")
    with Live() as listener:
        locker = Locker(fleet, upgrade=request.upgrade, relock=request.relock)
        session = Session(fleet=fleet, request=request, locker=locker, listener=listener)
        return session.run(_ON_HOSTS[request.session])
