"""Sending files from a root on this host to a root on another host, by this host's own ssh.

The bytes take the short way: the controller, behind a slow line, sees none of them.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Dict, Iterable, Iterator, Sequence

from hostenv.agent.client import agent_behind
from hostenv.agent.layout import Layout
from hostenv.agent.stream import Piece, Wanted, send
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
    folder: str,
    files: Sequence[Sequence[Any]],
) -> None:
    """Put files (path, sha256, size) of ``folder`` under ``root`` into the same folder under ``target``.

    ``target`` is on the host behind ``argv``, an ssh that starts an agent there. Nothing is written before
    that host has shown ``machine_id``: its name may mean another machine here. The controller's own agent
    there holds its lock.
    """
    ordered = sorted(files, key=lambda file: file[2])
    with agent_behind(argv) as there:
        _require_machine(there.call("root.state", root=target), machine_id)
        label = uuid.uuid4().hex[:16]
        place = os.path.join(target, folder)
        there.call("place.begin", root=place, label=label, size=sum(size for _, _, size in ordered))
        wanted = [Wanted(path, sha256) for path, sha256, _ in ordered]
        stream = _counted(wire, send(os.path.join(Layout(root).root, folder), wanted))
        there.call("place.put", root=place, label=label, data=stream)
        there.call("place.finish", root=place, label=label)


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
