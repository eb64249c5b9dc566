"""The file of a captured host: ``envspecs/HOST.toml`` takes the class that was captured, all else stays."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from enum import Enum

_BUILDS = ("extends", "env", "platform", "overlays", "build", "reference")
"""Keys that say what is built: a file that has one was written by somebody who means it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewHost:
    """A host that no file names yet, as it was seen. ``address`` is an SSH alias."""

    address: str
    machine_id: str | None
    host_key: str | None

    def render(self, venv: str) -> str:
        """Return its file, but for the class: the host is only ever read until somebody says otherwise."""
        lines = ["[host]", f"address = {json.dumps(self.address)}", 'root = "~/hostenv"', 'mode = "observe"']
        if self.machine_id and self.host_key:
            lines += ["", "[identity]", f"machine-id = {json.dumps(self.machine_id)}"]
            lines += [f"host-key = {json.dumps(self.host_key)}"]
        return "\n".join([*lines, "", "[capture]", f"venv = {json.dumps(venv)}"]) + "\n"


class Left(Enum):
    """Why a host's file stays as it is, in words."""

    DECIDED = "it says already what is built there"
    FORM = "no [capture] in it could take the line: add venv there, and what follows"


def completed(text: str, name: str, venv: str | None) -> str | Left:
    """Return a host's file with the class ``name`` taken, every line of it kept.

    ``venv`` is noted where the file names no environment. A file that says already what is built is
    somebody's decision, and one that no added line completes (``capture = { … }``) is theirs to change.
    """
    values = tomllib.loads(text)
    extends = f"classes/{name}"
    if any(key in values for key in _BUILDS):
        return text if values.get("extends") == extends else Left.DECIDED
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if not re.match(r"\s*(#|$)", line)), len(lines))
    made = "".join(
        [*lines[:first], f"extends = {json.dumps(extends)}\n", "" if first == len(lines) else "\n"]
    )
    made += "".join(lines[first:])
    capture = values.get("capture")
    wanted: dict[str, object] = {**values, "extends": extends}
    if venv and not (isinstance(capture, dict) and "venv" in capture):
        made = _with_venv(made, venv, has_table=capture is not None)
        wanted["capture"] = {**(capture if isinstance(capture, dict) else {}), "venv": venv}
    try:
        return made if tomllib.loads(made) == wanted else Left.FORM
    except tomllib.TOMLDecodeError:
        return Left.FORM


def _with_venv(text: str, venv: str, *, has_table: bool) -> str:
    line = f"venv = {json.dumps(venv)}\n"
    if has_table:
        return re.sub(
            r"^\s*\[\s*capture\s*\][^\n]*\n?",
            lambda found: f"{found[0].rstrip()}\n{line}",
            text,
            count=1,
            flags=re.MULTILINE,
        )
    return f"{text.rstrip()}\n\n[capture]\n{line}"
