"""The fetch on a host: what to bring is read from standard input, progress is told in lines of JSON.

Run from memory by the agent (:mod:`hostenv.agent.remote_fetch`) with an interpreter of the host, 3.11 or
later, and the controller's own requests and truststore.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from hostenv.agent.wheelhouse import Wheel, Wheelhouse
from hostenv.errors import SupplyError
from hostenv.index.fetch import fetch
from hostenv.index.source import Login, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.index.fetch import Progress


def main() -> None:
    """Bring what standard input asks for; the last line says ``done`` or ``error``."""
    request = json.load(sys.stdin)
    try:
        carry_out(request)
    except SupplyError as error:
        _say(error=error.message, hint=error.hint)
    else:
        _say(done=True)


def carry_out(request: Mapping[str, Any]) -> None:
    """Bring ``sources`` into ``folder`` with ``logins``; ``wrong`` files there go first."""
    house = Wheelhouse(request["folder"])
    for wrong in request["wrong"]:
        house.discard(Wheel(*wrong))
    logins = {place: Login(**each) for place, each in request["logins"].items()}
    sources = [Source(**each) for each in request["sources"]]
    fetch(sources, house, logins=logins, on_progress=_progress)


def _progress(progress: Progress) -> None:
    _say(bytes=progress.bytes_done)


def _say(**line: object) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")
