"""Where an environment that was made by hand is not what a spec's lock, series and overlays make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.checks.comparison import matches
from hostenv.spec.overlaylist import NOBODY, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostenv.facts.distributions import Distribution, Installed
    from hostenv.spec.overlay import Overlay

_ABSENT = "-"


def drift_of_handmade(
    installed: Installed,
    *,
    wheels: Mapping[str, str],
    overlays: Sequence[Overlay],
    applied: Mapping[str, str | None],
    ignore: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a line for each distribution, and each file, that is not as described.

    ``wheels``: normalised name → version; ``applied``: path in site-packages → sha256 that a series gives it,
    ``None`` for a removed one. Files that overlays lay of distributions are the caller's to compare, by
    digest, with what a series makes of them; those that belong to nobody are compared here.
    """
    wanted = {**wheels, **{each.name: each.version for overlay in overlays for each in overlay.distributions}}
    overlaid = {each.name for overlay in overlays for each in overlay.distributions}
    laid = {file.path for overlay in overlays for file in overlay.files}
    there: dict[str, Distribution] = {each.key: each for each in installed.distributions}
    for name in sorted(wanted.keys() - there.keys()):
        yield f"missing  {name} {wanted[name]} is not installed"
    for name in sorted(there.keys() - wanted.keys()):
        yield f"extra    {name} {there[name].version} is in no lock and no overlay"
    for name in sorted(wanted.keys() & there.keys()):
        if not _same_version(wanted[name], there[name].version):
            yield f"version  {name}: {there[name].version} is installed, the spec says {wanted[name]}"
    found: dict[str, str | None] = {}
    for each in installed.distributions:
        if each.key not in overlaid:
            found |= {installed.within_site(item.path): item.found for item in each.mismatched}
            found |= {installed.within_site(path): None for path in each.missing}
    found |= {installed.within_site(path): digest for path, digest in installed.unowned.items()}
    skipped = {installed.within_site(path) for path in installed.unowned if matches(path, ignore)}
    for path, digest in sorted(found.items()):
        if path in laid or path in skipped or (path in applied and applied[path] == digest):
            continue
        state = "edited  " if digest else "removed "
        yield f"{state} {path}"
    yield from _unread(installed, ignore)
    yield from _loose(overlays, found)
    for path in sorted(applied.keys() - found.keys() - laid):
        yield f"pristine {path}: the series was not applied"


def _unread(installed: Installed, ignore: Sequence[str]) -> Iterator[str]:
    """Say what could not be read: neither found different nor missing, nobody knows what it is."""
    for each in installed.tree.problems:
        if not matches(each.path, ignore):
            yield f"unread   {installed.within_site(each.path)} {each.reason}"


def _loose(overlays: Sequence[Overlay], found: Mapping[str, str | None]) -> Iterator[str]:
    for overlay in overlays:
        for file in overlay.files:
            is_loose = file.dist == NOBODY and not file.path.startswith(PREFIX)
            if is_loose and found.get(file.path, _ABSENT) != (file.sha256 or None):
                yield f"overlay  {file.path} is not what overlays/{overlay.name} has"


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except ValueError:
        return one == other
