"""Filling a host's wheelhouse, so that a later build needs no index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.steps.ground import require_room, require_writable
from hostenv.workflows.events import HostResult
from hostenv.workflows.host import open_for_writing
from hostenv.workflows.locking import platform_of
from hostenv.workflows.supply import supply_for

if TYPE_CHECKING:
    from hostenv.machine.fleet import Turn
    from hostenv.spec.spec import Spec
    from hostenv.workflows.session import Session


def fetch(session: Session, spec: Spec, turn: Turn) -> HostResult:
    """Bring every wheel of the host's lock into its wheelhouse, each checked by its hash."""
    with open_for_writing(session.fleet, spec, turn) as host:
        platform = platform_of(spec, host.state, host.agent)
        locked = session.locker.lock(spec, platform, lambda: session.listener.phase(spec.name, "resolve"))
        require_writable(host.state)
        supply = supply_for(session, host, locked.lock, tools=False)
        count = counted(len(locked.lock.entries), "wheel")
        lines = (*locked.plan(), *supply.plan())
        if not lines:
            return HostResult(host=spec.name, headline=f"nothing to do: all {count} are there")
        if supply.size:
            needed = supply.size + spec.build.min_free
            require_room(host.state, needed, "missing wheels and build.min-free")
        session.listener.plan(spec.name, lines)
        if session.request.dry_run:
            return HostResult(host=spec.name, headline="dry run: nothing was changed")
        locked.write()
        supply.wheels()
    return HostResult(
        host=spec.name,
        headline=f"the wheelhouse holds all {count}",
        changed=True,
        notes=tuple(supply.notes),
    )
