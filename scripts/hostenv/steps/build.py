"""A build: what it is made of, and so which id it has, and what making it means on the host."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.spec.environment import Bytecode
    from hostenv.spec.lock import Lock, LockEntry
    from hostenv.spec.overlay import Overlay
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
    overlays: tuple[Overlay, ...] = ()

    @property
    def overlaid(self) -> frozenset[str]:
        """The distributions that overlays bring, by normalised name: never installed from a wheel."""
        return frozenset(each.name for overlay in self.overlays for each in overlay.distributions)

    @property
    def wheels(self) -> tuple[LockEntry, ...]:
        """The lock's entries that are installed."""
        return tuple(entry for entry in self.lock.entries if entry.name not in self.overlaid)

    def check_series(self) -> None:
        """Raise :class:`PatchError` where a series is for a distribution that an overlay brings."""
        problems = [
            f"patches/{each.name}: {each.dist} comes from overlays/{overlay.name}.toml "
            f"(digest {overlay.digest[:16]}), and a series is for the locked wheel"
            for each in self.series
            for overlay in self.overlays
            if each.dist in {one.name for one in overlay.distributions}
        ]
        if problems:
            hint = (
                "patch it on the reference and take the overlay again, or leave one of them out of the spec"
            )
            raise PatchError("\n".join(problems), hint=hint)

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
            "wheels": sorted([entry.name, entry.version, entry.sha256] for entry in self.wheels),
            "series": sorted([each.dist, each.version, each.digest] for each in self.series),
            "overlays": sorted(each.digest for each in self.overlays),
            "bytecode": str(self.bytecode),
        }
