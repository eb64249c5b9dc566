"""Facts of hosts for tests: a recorded probe, with changes."""

from __future__ import annotations

import copy
import json
import lzma
import pathlib
from typing import TYPE_CHECKING, Any

from hostenv.facts.host import HostFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA = pathlib.Path(__file__).parents[1] / "data" / "h200"


def recorded(name: str = "probe-idle") -> dict[str, Any]:
    """Return a probe's answer as it was recorded on a real GPU host."""
    answer: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
    return answer


def changed(changes: Mapping[str, Any], name: str = "probe-idle") -> dict[str, Any]:
    """Return a recorded answer with values replaced: ``{"identity.boot_id": "…"}``.

    A path names a fact or a plain value; a fact gets the value, and ``None`` makes it unknown.
    """
    answer = recorded(name)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = answer
        for parent in parents:
            place = place[parent]
        is_fact = isinstance(place.get(last), dict) and "how" in place[last]
        if is_fact and value is None:
            place[last] = {"unknown": "made unknown", "how": place[last]["how"]}
        elif is_fact:
            place[last] = {"value": copy.deepcopy(value), "how": place[last]["how"]}
        else:
            place[last] = copy.deepcopy(value)
    return answer


def facts(changes: Mapping[str, Any] | None = None, name: str = "probe-idle") -> HostFacts:
    """Return a recorded probe as facts, with values replaced as :func:`changed` does."""
    return HostFacts.from_dict(changed(changes or {}, name), name="recorded")


def write_saved_facts(path: pathlib.Path) -> pathlib.Path:
    """Write the recorded host's saved facts, exports included, as ``probe --save`` does; return the path."""
    path.write_bytes(lzma.decompress((_DATA / "facts.json.xz").read_bytes()))
    return path
