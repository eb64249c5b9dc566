"""The uv on the host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Optional

from hostenv.agent.probe.command import Command, find
from hostenv.agent.probe.fact import Json, UnknownError, fact, known, unknown

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_PLACES = "~/.local/bin:~/.cargo/bin:/usr/local/bin:/usr/bin"


class Uv:
    """``uv --version``, started early and collected late; it reads no configuration and writes no cache."""

    def __init__(self, path: str, tree: Tree) -> None:
        places = ":".join(os.path.expanduser(place) for place in _PLACES.split(":"))
        self._how = f"PATH, {_PLACES}"
        self._program = find("uv", f"{path}:{places}", tree)
        self._asked: Any = None
        if self._program:
            try:
                argv = (self._program, "--no-config", "--no-cache", "--version")
                self._asked = Command(argv, {"PATH": path})
            except UnknownError as error:
                self._asked = error

    def read(self, timeout: float) -> Json:
        """Return path and version; ``None`` where there is no uv."""
        if self._program is None:
            return known(None, self._how)
        if isinstance(self._asked, UnknownError):
            return unknown(self._asked.reason, self._how)
        return fact(f"{self._program} --version", self._read, timeout)

    def _read(self, timeout: float) -> Dict[str, Optional[str]]:
        words = self._asked.result(timeout).split()
        if len(words) < 2 or words[0] != "uv":  # noqa: PLR2004  "uv 0.13.9 (…)"
            raise UnknownError("does not answer like uv")
        return {"path": self._program, "version": words[1]}
