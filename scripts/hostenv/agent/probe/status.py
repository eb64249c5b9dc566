"""The state of a host in one quick answer: its root, its GPUs, and which builds running processes use."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from hostenv.agent import layout, running
from hostenv.agent.probe import driver, identity
from hostenv.agent.probe.distributions import Budget
from hostenv.agent.probe.processes import Scan, gpu_holders
from hostenv.agent.probe.smi import Smi, search_path
from hostenv.agent.probe.tree import Tree
from hostenv.agent.users import look

if TYPE_CHECKING:
    from hostenv.agent.probe.fact import Json
    from hostenv.agent.wire import Wire

VERSION = 1


def read(
    wire: Wire,
    root: str,
    link: Optional[str] = None,
    units: Optional[List[str]] = None,
    smi_seconds: float = 8.0,
) -> Json:
    """Return the state of ``root`` (see ``root.state``), the GPUs and processes, and who uses which build.

    Nothing is written. ``users`` maps a build's id to the processes that use it, ``through_link`` are those
    that use ``link`` or ``current`` by that path: what they import next comes from whatever is current then.
    """
    began = time.monotonic()
    tree = Tree()
    kernel = driver.read(tree)  # before nvidia-smi, which makes device nodes
    smi = Smi(search_path(), smi_seconds)
    state = layout.state(wire, root, link)
    users, through = _users(layout.Layout(state["root"]), state["link"])
    answered = smi.read()
    scan = Scan(gpu_holders(answered["gpus"]), units or [], Budget(0.0)).run()
    return {
        "version": VERSION,
        "read_at": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(time.monotonic() - began, 3),
        "identity": identity.read(tree),
        "driver": dict(kernel, smi=answered["driver"], cuda=answered["cuda"]),
        "gpus": answered["gpus"],
        "processes": scan,
        "state": state,
        "users": users,
        "through_link": through,
    }


def _users(place: layout.Layout, link: Optional[str]) -> Tuple[Dict[str, List[Json]], List[Json]]:
    names = place.finished_builds()
    seen = look(place, names)
    users = {build: seen.users_of(build) for build in names}
    return {build: each for build, each in users.items() if each}, running.through(link, place.current)
