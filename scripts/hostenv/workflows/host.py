"""A host under a writing session: reached, proven to be the one meant, and its state read."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.facts.root import RootState
from hostenv.machine.reach import Reach
from hostenv.steps.identity import Seen, require_identity, require_managed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostenv.machine.agent import Agent
    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenHost:
    """A host that this session may write to."""

    spec: Spec
    reach: Reach
    state: RootState

    @property
    def agent(self) -> Agent:
        """The agent on the first connection."""
        return self.reach.agent


@contextlib.contextmanager
def open_for_writing(fleet: Fleet, spec: Spec, turn: Turn) -> Iterator[OpenHost]:
    """Reach a host for a session that writes; nothing is written before its identity has matched.

    Raises :class:`~hostenv.errors.RefusedError` where the spec says ``observe`` or the machine is another,
    :class:`~hostenv.errors.UnreachableError` where it cannot be reached.
    """
    require_managed(spec)
    reach = Reach(spec, specs=fleet.specs.values())
    turn.ends_with(reach.close)
    with reach:
        state = read_state(reach.agent, spec)
        seen = Seen(machine_id=state.machine_id, host_key=reach.host_key)
        require_identity(spec, seen, fleet.specs.values())
        yield OpenHost(spec=spec, reach=reach, state=state)


def read_state(agent: Agent, spec: Spec) -> RootState:
    """Read what stands under the host's root; nothing is written."""
    link = str(spec.host.link) if spec.host.link else None
    return RootState.from_answer(agent.call("root.state", root=str(spec.host.root), link=link), spec.name)


def who(session: str) -> Mapping[str, str]:
    """Return who runs this session, as the lock, a receipt and a hold name it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not be in any passwd; OSError from 3.13 on
        user = f"uid {os.getuid()}"
    return {"by": f"{user}@{socket.gethostname()}", "session": session}
