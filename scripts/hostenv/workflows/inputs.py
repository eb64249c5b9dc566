"""What a build of a host is made of, and whether its overlays can work there."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hostenv.checks.overlay_fits import gpu_misfits, has_gpu_code, misfits
from hostenv.errors import RefusedError
from hostenv.facts.host import HostFacts
from hostenv.facts.host_targets import gpu_targets
from hostenv.spec.overlay import load_overlays
from hostenv.spec.series import check_versions, load_selected
from hostenv.steps.build import BuildInputs
from hostenv.workflows.probe import ProbeOptions, questions

if TYPE_CHECKING:
    from pathlib import Path

    from hostenv.spec.lock import Lock
    from hostenv.spec.spec import Spec
    from hostenv.workflows.host import OpenHost


def inputs_of(repository: Path, spec: Spec, lock: Lock) -> BuildInputs:
    """Return what a spec's build is made of: its lock, and the series and overlays of the repository.

    Raises :class:`~hostenv.errors.PatchError` and :class:`~hostenv.errors.InputError` with what is wrong.
    """
    series = load_selected(repository / "patches", (each.folder for each in spec.env.patches))
    overlays = load_overlays(repository / "overlays", (each.name for each in spec.overlays))
    inputs = BuildInputs(lock=lock, series=series, bytecode=spec.build.bytecode, overlays=overlays)
    inputs.check_series()
    check_versions(series, {entry.name: entry.version for entry in lock.entries})
    return inputs


def check_fit(host: OpenHost, inputs: BuildInputs) -> None:
    """Raise :class:`RefusedError` where an overlay's binaries cannot work on the host: nothing was copied."""
    state, spec = host.state, host.spec
    python = inputs.lock.platform.python
    problems = [
        line
        for overlay in inputs.overlays
        for line in misfits(overlay, arch=state.arch, glibc=state.glibc, python=python)
    ]
    if not problems and any(has_gpu_code(overlay) for overlay in inputs.overlays):
        problems = _gpu_problems(host, inputs)
    if problems:
        raise RefusedError(
            f"{spec.name}: overlays that would not work there; nothing was copied:\n" + "\n".join(problems),
            hint="take an overlay from a machine like this one, or waive the finding in checks.allow",
        )


def _gpu_problems(host: OpenHost, inputs: BuildInputs) -> list[str]:
    asked = questions(host.spec, ProbeOptions(exports=False, search_seconds=0.0))
    facts = HostFacts.from_dict(host.agent.call("probe.host", **asked), name=host.spec.name)
    targets, today = gpu_targets(facts), dt.datetime.now(dt.UTC).date()
    uses = {use.name: use for use in host.spec.overlays}
    return [
        line
        for overlay in inputs.overlays
        for line in gpu_misfits(overlay, uses[overlay.name], targets, host.spec.checks.allow, today=today)
    ]
