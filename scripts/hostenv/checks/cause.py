"""Why one path differs between two environments, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hostenv.facts.manifest import Change

if TYPE_CHECKING:
    from hostenv.facts.environment import Claims, Kept
    from hostenv.facts.manifest import Difference, Entry

_BY_CHANGE = {Change.MODE: "mode", Change.LINK: "symlink", Change.MISSING: "missing", Change.EXTRA: "extra"}
_UNTOUCHED = object()


class Cause(StrEnum):
    """Why a path differs, the one that explains most first."""

    VERSION = "version"
    PATCHED = "patched"
    OVERLAID = "overlaid"
    EDITED = "edited"
    MISSING = "missing"
    EXTRA = "extra"
    MODE = "mode"
    SYMLINK = "symlink"


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of two environments: whose its paths are, and what it keeps of its making, if it keeps anything."""

    claims: Claims
    kept: Kept | None
    site: str | None

    def owners(self, path: str) -> dict[str, str | None]:
        """Return the normalised names of the distributions that own a path → its sha256 in RECORD."""
        claims = self.claims.owners.get(path, {})
        return {key.partition("==")[0]: digest for key, digest in claims.items()}

    def within_site(self, path: str) -> str | None:
        """Return a path relative to ``site-packages``, ``None`` for one outside of it."""
        if self.site is None or not path.startswith(f"{self.site}/"):
            return None
        return path[len(self.site) + 1 :]

    def applied(self, path: str) -> object:
        """Return the sha256 that a series gave to a path, ``None`` if it removed it."""
        within = self.within_site(path)
        return self.kept.applied.get(within, _UNTOUCHED) if self.kept and within else _UNTOUCHED

    def series(self, distribution: str | None) -> str | None:
        """Return the name of the series that changed a distribution."""
        for each in self.kept.inputs.series if self.kept else ():
            name, version = each[:2]
            if name == distribution:
                return f"{name}-{version}"
        return None

    def is_edited(self, path: str, entry: Entry | None) -> bool:
        """Tell whether a file has neither the bytes that its wheel gave it nor those of a series.

        Files whose bytes depend on where the environment lies cannot be told.
        """
        if entry is None or path.startswith("bin/"):
            return False
        applied = self.applied(path)
        known = [applied] if applied is not _UNTOUCHED else list(self.owners(path).values())
        return bool(known) and None not in known and entry.sha256 not in known


class Finder:
    """Finds owners and causes for the differences of two sides."""

    def __init__(self, reference: Side, target: Side) -> None:
        self._reference = reference
        self._target = target

    def distribution(self, path: str) -> str | None:
        """Return the distribution that a path belongs to or lies with; ``None`` for no one's."""
        for side in (self._reference, self._target):
            if owners := side.owners(path):
                return max(owners)
        for side in (self._reference, self._target):
            if path in side.claims.beside:
                return side.claims.beside[path]
        return None

    def within_site(self, path: str) -> str | None:
        """Return a path relative to ``site-packages``, ``None`` for one outside of it."""
        return self._reference.within_site(path) or self._target.within_site(path)

    def cause(self, difference: Difference) -> tuple[Cause, str]:
        """Return why a path differs, and what a person wants to know beside it, or an empty text."""
        owner = self.distribution(difference.path)
        owned = bool(self._reference.owners(difference.path) or self._target.owners(difference.path))
        return (
            (self._overlaid(owner) if owned and not self._is_later(difference) else None)
            or (self._version(owner) if owned else None)
            or self._patched(difference, owner)
            or self._by_hand(difference, owned=owned)
        )

    def _is_later(self, difference: Difference) -> bool:
        """Tell whether the only side that keeps its making was changed after it: its overlay is not why.

        The other side was made by hand, perhaps the one that the overlay was taken from.
        """
        sides = ((self._reference, difference.reference), (self._target, difference.target))
        made = [(side, entry) for side, entry in sides if side.kept]
        if len(made) != 1:
            return False
        side, entry = made[0]
        return difference.change is Change.MODE or side.is_edited(difference.path, entry)

    def _overlaid(self, owner: str | None) -> tuple[Cause, str] | None:
        one, other = (
            side.kept.overlaid.get(owner or "") if side.kept else None
            for side in (self._reference, self._target)
        )
        kept = [side.kept.inputs.overlays if side.kept else () for side in (self._reference, self._target)]
        if one == other and (one is None or kept[0] == kept[1]):
            return None
        return Cause.OVERLAID, _sided("by {}", one, other)

    def _version(self, owner: str | None) -> tuple[Cause, str] | None:
        one = self._reference.claims.versions.get(owner or "")
        other = self._target.claims.versions.get(owner or "")
        if one == other:
            return None
        return Cause.VERSION, f"{one or 'not there'} → {other or 'not there'}"

    def _patched(self, difference: Difference, owner: str | None) -> tuple[Cause, str] | None:
        """Name the series where the sides differ in what theirs made of the file, and it is as made."""
        if difference.change is Change.MODE:
            return None  # the bytes are equal: both are what the series made
        wanted = [side.applied(difference.path) for side in (self._reference, self._target)]
        found = [entry.sha256 if entry else None for entry in (difference.reference, difference.target)]
        if wanted[0] == wanted[1] or not any(one == other for one, other in zip(wanted, found, strict=True)):
            return None
        names = [
            side.series(owner) or "a series" if sha256 is not _UNTOUCHED else None
            for side, sha256 in zip((self._reference, self._target), wanted, strict=True)
        ]
        return Cause.PATCHED, _sided("by {}", *names)

    def _by_hand(self, difference: Difference, *, owned: bool) -> tuple[Cause, str]:
        if difference.change is not Change.CONTENT:
            nobodys = difference.change in {Change.MISSING, Change.EXTRA} and not owned
            return Cause(_BY_CHANGE[difference.change]), "owned by nobody" if nobodys else ""
        edited = [
            name
            for name, side, entry in (
                ("the reference", self._reference, difference.reference),
                ("the target", self._target, difference.target),
            )
            if side.is_edited(difference.path, entry)
        ]
        if edited:
            return Cause.EDITED, f"on {' and '.join(edited)}"
        recorded = [side.owners(difference.path) for side in (self._reference, self._target)]
        if all(recorded) and recorded[0] != recorded[1]:
            return Cause.VERSION, "another wheel of the same version"
        return Cause.EDITED, ""


def _sided(text: str, one: str | None, other: str | None) -> str:
    if one and other:
        both = text.format(one) if one == other else f"{text.format(one)} → {text.format(other)}"
        return f"{both}, not the same"
    return text.format(one or other) + (" on the reference only" if one else " on the target only")
