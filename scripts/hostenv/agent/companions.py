"""How some packages open their objects: after others, which their own Python code opens first.

Reviewed data (``data/companions.json``): a pattern for the objects' paths, and what is opened before them, in
a process that has imported the package of the preload.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from typing import TYPE_CHECKING, Any, List, Optional

from hostenv.agent.preload import Environment, extension

if TYPE_CHECKING:
    from hostenv.agent.loader import Process
    from hostenv.agent.verdicts import Judge, Verdict


class Companions:
    """The list, and the verdicts that it changes."""

    def __init__(self, judge: Judge, place: Environment) -> None:
        data = json.loads(pkgutil.get_data("hostenv.agent", "data/companions.json") or b"{}")
        self._entries = [(re.compile(entry["objects"]), entry["open"]) for entry in data["companions"]]
        self._judge = judge
        self._place = place

    def as_used(self, process: Process, path: str) -> Optional[Verdict]:
        """Judge ``path`` as its package opens it; ``None`` where nothing is known to come before it.

        Where what comes before does not load, its verdict is the answer.
        """
        for pattern, opened in self._entries:
            found = pattern.fullmatch(path)
            if found:
                return self._after(process, [_resolved(entry, found) for entry in opened], path)
        return None

    def _after(self, process: Process, opened: List[Any], path: str) -> Verdict:
        prepared = process.fork()
        site = self._place.site
        for entry in opened:
            first: Optional[str] = os.path.join(site, entry["path"])
            if entry.get("extension"):
                first = extension(self._place, first or "", self._judge.files)
            verdict = self._judge.open(prepared, first or entry["path"], everyone=entry["everyone"])
            if verdict.loads is not True:
                return verdict
        return self._judge.judge(prepared, os.path.join(site, path))


def _resolved(entry: Any, found: re.Match[str]) -> Any:
    return {**entry, "path": entry["path"].format(*found.groups())}
