"""Making a host's lock without building anything: from a laptop, for a platform that may lie elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted, megabytes
from hostenv.machine.reach import Reach
from hostenv.workflows.events import HostResult
from hostenv.workflows.host import read_state
from hostenv.workflows.locking import platform_of

if TYPE_CHECKING:
    from hostenv.machine.fleet import Turn
    from hostenv.spec.lockplatform import LockPlatform
    from hostenv.spec.spec import Spec
    from hostenv.workflows.session import Session


def lock(session: Session, spec: Spec, turn: Turn) -> HostResult:
    """Resolve for the host's platform and write its lock, where it is missing, stale or to be upgraded.

    A host behind SSH is not contacted: what its spec leaves open of its platform is an error.
    """
    platform = _platform(session, spec, turn)
    locked = session.locker.lock(
        spec, platform, lambda: session.listener.phase(spec.name, "resolve"), allowed=True
    )
    size = f"{counted(len(locked.lock.entries), 'package')}, {megabytes(locked.lock.size)} of wheels"
    lines = locked.plan()
    if not lines:
        return HostResult(host=spec.name, headline=f"{locked.path.name} answers the spec: {size}")
    session.listener.plan(spec.name, lines)
    if session.request.dry_run:
        return HostResult(host=spec.name, headline="dry run: nothing was changed")
    locked.write()
    return HostResult(host=spec.name, headline=f"{locked.path.name} written: {size}", changed=True)


def _platform(session: Session, spec: Spec, turn: Turn) -> LockPlatform:
    python = session.request.python
    if not spec.is_local:
        return platform_of(spec, None, None, python=python)
    reach = Reach(spec)
    turn.ends_with(reach.close)
    with reach:
        return platform_of(spec, read_state(reach.agent, spec), reach.agent, python=python)
