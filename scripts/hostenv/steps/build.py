"""A build: what it is made of, and so which id it has, and what making it means on the host."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.spec.environment import Bytecode
    from hostenv.spec.lock import Lock
    from hostenv.spec.series import Series

LAYOUT = 1
"""Version of what a build looks like on disk: raised when the same inputs would give other bytes."""

ID_LENGTH = 16
"""Hexadecimal digits of a build's id: 64 bits, for a few thousand builds on a host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildInputs:
    """Everything that decides the bytes of a build, and nothing else: a new port is no new build.

    The interpreter counts by its minor version: within one, ABI, bytecode and names are the same, and two
    hosts with two patch levels hold the same build.
    """

    lock: Lock
    series: tuple[Series, ...]
    bytecode: Bytecode

    @property
    def id(self) -> str:
        """The build's name: the digest of its inputs."""
        canonical = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:ID_LENGTH]

    def describe(self) -> Mapping[str, Any]:
        """Return the inputs as JSON, in one order: the text behind the id, kept beside the build."""
        return {
            "layout": LAYOUT,
            "python": f"cpython-{self.lock.platform.python}",
            "wheels": sorted([entry.name, entry.version, entry.sha256] for entry in self.lock.entries),
            "series": sorted([each.dist, each.version, each.digest] for each in self.series),
            "overlays": [],
            "bytecode": str(self.bytecode),
        }
