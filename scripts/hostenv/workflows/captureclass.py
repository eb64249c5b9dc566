"""The class that a capture writes, and what it may replace: never what somebody wrote there."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

from hostenv.agent.amounts import counted
from hostenv.errors import RefusedError
from hostenv.workflows.capturefiles import write_changed

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

    from hostenv.steps.captured import CapturedClass

_HEAD = re.compile(r"# captured from (?P<origin>.*), sha256 (?P<digest>[0-9a-f]{64})\n")


class ClassFile:
    """``envspecs/classes/NAME.toml``. ``origin`` names the environment: its path, or the build's host.

    Overlays that somebody added to it are kept.
    """

    def __init__(self, path: pathlib.Path, made: CapturedClass, origin: str) -> None:
        self._path = path
        self._made, self._origin = made, origin
        self._there = path.read_text(encoding="utf-8") if path.exists() else None
        self._text = self._rendered()

    def _rendered(self) -> str:
        text = self._made.render()
        head = f"# captured from {self._origin}, sha256 {self._digest(tomllib.loads(text))}\n"
        added = [each for each in _values(self._there).get("overlays", ()) if self._is_added(each)]
        for each in added:
            text += "\n[[overlays]]\n" + "".join(f"{key} = {json.dumps(each[key])}\n" for key in each)
        return head + text

    def _is_added(self, overlay: Mapping[str, object]) -> bool:
        return overlay.get("name") != self._made.name

    def _digest(self, values: Mapping[str, object]) -> str:
        """Return the digest of what a class says, added overlays aside."""
        overlays = values.get("overlays")
        own = [each for each in overlays if not self._is_added(each)] if isinstance(overlays, list) else []
        return hashlib.sha256(json.dumps({**values, "overlays": own}, sort_keys=True).encode()).hexdigest()

    def plan(self) -> str:
        """Say what becomes of it."""
        name = f"envspecs/classes/{self._path.name}"
        told = _told(tomllib.loads(self._text))
        if self._there is None or self._there == self._text:
            return f"class    {name}: {told}"
        return f"class    replaces {name}: {told} (was: {_told(_values(self._there))})"

    def require_replaceable(self) -> None:
        """Raise :class:`RefusedError` where it was edited by hand, or is another environment's."""
        if self._there is None or self._there == self._text:
            return
        head = _HEAD.match(self._there)
        name = f"envspecs/classes/{self._path.name}"
        if head is None or head["digest"] != self._digest(_values(self._there)):
            why = f"{name} was edited by hand since a capture wrote it"
        elif head["origin"] != self._origin:
            why = f"{name} was captured from {head['origin']}, not from {self._origin}"
        else:
            return
        raise RefusedError(
            f"{self._made.host}: {why}", hint="--replace writes it anew, with its overlay and manifest"
        )

    def write(self) -> None:
        """Write it; what is there and says the same stays as it is."""
        self._path.parent.mkdir(exist_ok=True)
        write_changed(self._path, self._text)


def _values(text: str | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text or "")
    except tomllib.TOMLDecodeError:
        return {}


def _told(values: Mapping[str, object]) -> str:
    env = values.get("env")
    env = env if isinstance(env, dict) else {}
    pins, series = len(env.get("requires", ())), len(env.get("patches", ()))
    return f"{counted(pins, 'pin')}, {series} series"
