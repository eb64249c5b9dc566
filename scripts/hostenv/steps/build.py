"""A build: what it is made of, and so which id it has, and what making it means on the host."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.errors import PatchError
from hostenv.spec.series import OVERLAY, check_versions

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

    def overlay_with(self, dist: str) -> Overlay | None:
        """Return the overlay that brings a distribution; None where it comes from its wheel."""
        return next(
            (each for each in self.overlays if dist in {one.name for one in each.distributions}), None
        )

    def check_series(self) -> None:
        """Raise :class:`PatchError` where a series is not for the files that its distribution is made of.

        One for an overlaid distribution names the overlay's digest, one for a wheel's names none, and each is
        for exactly the version that is there.
        """
        problems = [problem for each in self.series if (problem := self._misplaced(each))]
        if problems:
            hint = (
                "a series is for exactly these files: where it was made for them, write the digest there; "
                "else port it, or leave one of them out of the spec"
            )
            raise PatchError("\n".join(problems), hint=hint)
        versions = {entry.name: entry.version for entry in self.lock.entries}
        brought = {one.name: one.version for overlay in self.overlays for one in overlay.distributions}
        check_versions(self.series, {**versions, **brought})

    def _misplaced(self, series: Series) -> str | None:
        overlay = self.overlay_with(series.dist)
        where = f"patches/{series.name}/{OVERLAY}"
        if overlay is None:
            said = f"{where} names an overlay, and none of the spec's brings {series.dist}: remove the file"
            return said if series.overlay else None
        if series.overlay is None:
            return (
                f"{series.dist} comes from overlays/{overlay.name}.toml, and patches/{series.name} does not "
                f"name it: {where} must hold the digest {overlay.digest}"
            )
        if series.overlay != overlay.digest:
            return (
                f"{where} is for an overlay with digest {series.overlay}; overlays/{overlay.name}.toml has "
                f"{overlay.digest}"
            )
        return None

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
