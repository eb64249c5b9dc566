"""What all series of a build make, each of the files that it is for: a locked wheel's or an overlay's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.steps.pristineoverlay import PristineOverlay, touched
from hostenv.steps.series import compute, compute_on

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostenv.steps.build import BuildInputs
    from hostenv.steps.series import SeriesResult


def touched_by(inputs: BuildInputs) -> Mapping[str, int]:
    """Return sha256 → size in bytes of what the series of a build read of its overlays."""
    wanted: dict[str, int] = {}
    for each in inputs.series:
        overlay = inputs.overlay_with(each.dist)
        wanted |= touched(overlay, each) if overlay else {}
    return wanted


def compute_all(inputs: BuildInputs, wheels: Mapping[str, Path], store: Path) -> tuple[SeriesResult, ...]:
    """Compute every series of a build.

    ``wheels``: name → wheel of the series that are for one; ``store`` holds what :func:`touched_by` names.
    Raises :class:`~hostenv.errors.PatchError` for the first that does not apply exactly.
    """
    results = []
    for each in inputs.series:
        overlay = inputs.overlay_with(each.dist)
        if overlay:
            results.append(compute_on(each, PristineOverlay(overlay, each.dist, store)))
        else:
            results.append(compute(each, wheels[each.dist]))
    return tuple(results)
