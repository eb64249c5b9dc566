"""Sending files from a wheelhouse on this host to another host, by this host's own ssh.

The bytes take the short way: the controller, behind a slow line, sees none of them.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Dict, Iterable, Iterator, Sequence

from hostenv.agent.client import agent_behind
from hostenv.agent.layout import Layout
from hostenv.agent.stream import Piece, Wanted, send
from hostenv.agent.wheelhouse import Wheel
from hostenv.agent.wire import AgentError, Wire

_TELL = 4 << 20
"""Bytes between two reports of progress."""


def forward(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire,
    *,
    root: str,
    argv: Sequence[str],
    target: str,
    machine_id: str,
    wheels: Sequence[Sequence[Any]],
) -> None:
    """Put wheels of the wheelhouse under ``root`` into that under ``target`` on the host behind ``argv``.

    ``argv`` is an ssh that starts an agent there. Nothing is written before that host has shown
    ``machine_id``: its name may mean another machine here. The controller's own agent there holds its lock.
    """
    files = sorted((Wheel(*wheel) for wheel in wheels), key=lambda wheel: wheel.size)
    source = Layout(root).wheelhouse
    wanted = [Wanted(f"{wheel.sha256}/{wheel.filename}", wheel.sha256) for wheel in files]
    with agent_behind(argv) as there:
        _require_machine(there.call("root.state", root=target), machine_id)
        label = uuid.uuid4().hex[:16]
        folder = os.path.join(target, "wheelhouse")
        there.call("place.begin", root=folder, label=label, size=sum(wheel.size for wheel in files))
        stream = _counted(wire, send(source, wanted))
        there.call("place.put", root=folder, label=label, data=stream)
        there.call("place.finish", root=folder, label=label)


def _require_machine(state: Dict[str, Any], machine_id: str) -> None:
    found = state["machine"]["machine_id"]
    if found != machine_id:
        message = f"from here the host's name leads to another machine: its machine-id is {found}"
        hint = f"the spec says {machine_id}: correct the relay's ssh configuration, or supply.via"
        raise AgentError(message, hint=hint, outcome="refused")


def _counted(wire: Wire, pieces: Iterable[Piece]) -> Iterator[Piece]:
    done = told = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        if done - told >= _TELL:
            told = done
            wire.event(bytes=done)
