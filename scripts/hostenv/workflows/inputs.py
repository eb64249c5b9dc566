"""What a build of a host is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.spec.overlay import load_overlays
from hostenv.spec.series import load_selected
from hostenv.steps.build import BuildInputs

if TYPE_CHECKING:
    from pathlib import Path

    from hostenv.spec.lock import Lock
    from hostenv.spec.spec import Spec


def inputs_of(repository: Path, spec: Spec, lock: Lock) -> BuildInputs:
    """Return what a spec's build is made of: its lock, and the series and overlays of the repository.

    Raises :class:`~hostenv.errors.PatchError` and :class:`~hostenv.errors.InputError` with what is wrong.
    """
    series = load_selected(repository / "patches", (each.folder for each in spec.env.patches))
    overlays = load_overlays(repository / "overlays", (each.name for each in spec.overlays))
    inputs = BuildInputs(lock=lock, series=series, bytecode=spec.build.bytecode, overlays=overlays)
    inputs.check_series()
    return inputs
