"""Whether the overlays of a build can work on its host: asked before a byte of them is copied."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hostenv.checks.overlay_fits import gpu_misfits, has_gpu_code, misfits
from hostenv.errors import RefusedError
from hostenv.facts.host import HostFacts
from hostenv.facts.host_targets import gpu_targets
from hostenv.workflows.probe import ProbeOptions, questions

if TYPE_CHECKING:
    from hostenv.steps.build import BuildInputs
    from hostenv.workflows.host import OpenHost


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
