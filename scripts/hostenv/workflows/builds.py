"""The builds of hosts: listing them, and removing those that nothing uses."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import megabytes
from hostenv.facts.builds import RootBuilds
from hostenv.machine.fleet import run_on_hosts
from hostenv.machine.reach import Reach
from hostenv.spec.lock import Lock
from hostenv.steps.prune import Contents, Prune, Wheel, removable
from hostenv.workflows.events import HostResult
from hostenv.workflows.host import open_for_writing, who

if TYPE_CHECKING:
    from hostenv.errors import HostenvError
    from hostenv.machine.agent import Agent
    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import Listener
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.request import Request
    from hostenv.workflows.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBuilds:
    """The builds of one host, or the error that kept them from being read."""

    host: str
    seconds: float
    found: RootBuilds | None = None
    error: HostenvError | None = None


def builds(fleet: Fleet, request: Request, listener: Listener) -> tuple[HostBuilds, ...]:
    """Read the builds of the request's hosts, side by side; nothing is written."""

    def read(spec: Spec, turn: Turn) -> RootBuilds:
        reach = Reach(spec, specs=fleet.specs.values())
        turn.ends_with(reach.close)
        listener.phase(spec.name, "builds")
        try:
            with reach:
                return read_builds(reach.agent, spec)
        finally:
            listener.finished(spec.name)

    specs = {spec.name: spec for spec in fleet.select(request.hosts)}
    results = run_on_hosts(specs, read, jobs=request.jobs)
    return tuple(
        HostBuilds(host=name, seconds=result.seconds, found=result.value, error=result.error)
        for name, result in results.items()
    )


def read_builds(agent: Agent, spec: Spec) -> RootBuilds:
    """Read the builds under the root that a spec names."""
    return RootBuilds.from_answer(agent.call("builds.list", root=str(spec.host.root)), spec.name)


def prune(session: Session, spec: Spec, turn: Turn) -> HostResult:
    """Remove the builds beyond ``build.keep`` that nothing uses, and what killed sessions left."""
    request = session.request
    with open_for_writing(session.fleet, spec, turn) as host:
        session.listener.phase(spec.name, "builds")
        found = read_builds(host.agent, spec)
        going = removable(found.builds, spec.build.keep)
        wheels = _wheels(session.fleet, host, found, going) if request.wheels else ()
        step = Prune(builds=going, wheels=wheels, contents=_contents(host, found, going))
        lines = step.plan(found, despite_unknown=request.despite_unknown)
        if not lines:
            return HostResult(host=spec.name, headline="nothing to remove")
        session.listener.plan(spec.name, lines)
        if request.dry_run:
            return HostResult(host=spec.name, headline="dry run: nothing was changed")
        session.listener.phase(spec.name, "remove")
        done = step.apply(
            host.agent, found.root, who(request.session), despite_unknown=request.despite_unknown
        )
    return HostResult(
        host=spec.name,
        headline=f"{len(done.removed)} removed, {megabytes(done.freed)} freed",
        changed=bool(done.removed),
        notes=tuple(f"build {build} stays: it {why}" for build, why in done.kept.items()),
    )


def _contents(host: OpenHost, found: RootBuilds, going: tuple[object, ...]) -> Contents:
    """Return what lies in the host's store for no build that stays."""
    staying = [each.build for each in found.builds if each not in going]
    answer = host.agent.call("builds.contents", root=found.root, builds=staying)
    return Contents(files=answer["files"], size=answer["size"])


def _wheels(fleet: Fleet, host: OpenHost, found: RootBuilds, going: tuple[object, ...]) -> tuple[Wheel, ...]:
    """Return the wheels that neither a build that stays nor any lock of the host names."""
    locked = [entry.sha256 for lock in _locks(fleet, host.spec) for entry in lock.entries]
    if host.spec.supply.python:
        locked.append(host.spec.supply.python.sha256)
    staying = [each.build for each in found.builds if each not in going]
    answer = host.agent.call("builds.wheels", root=found.root, builds=staying, locked=locked)
    return tuple(Wheel(sha256=each["sha256"], name=each["name"], size=each["size"]) for each in answer)


def _locks(fleet: Fleet, spec: Spec) -> list[Lock]:
    paths = (fleet.folder / "locks").glob(f"{glob.escape(spec.lock_owner)}.cp*.txt")
    return [Lock.parse(path.read_text(encoding="utf-8"), document=path.name) for path in sorted(paths)]
