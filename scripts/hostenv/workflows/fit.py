"""Whether the overlays of a build can work on its host: asked before a byte of them is copied."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hostenv.checks.overlay_closure import Provided, closure, wanted
from hostenv.checks.overlay_fits import gpu_misfits, has_gpu_code, misfits
from hostenv.errors import RefusedError
from hostenv.facts.host import HostFacts
from hostenv.facts.host_targets import gpu_targets
from hostenv.workflows.probe import ProbeOptions, questions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostenv.steps.build import BuildInputs
    from hostenv.workflows.host import OpenHost


_SHOWN = 12


class Fit:
    """The overlays of one build, held against one host: its facts are read once, where they are needed."""

    def __init__(self, host: OpenHost, inputs: BuildInputs) -> None:
        self._host = host
        self._inputs = inputs
        self._wanted = wanted(inputs.overlays)
        self._facts: HostFacts | None = None

    def check(self, wheels: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return what cannot be told, a line each.

        ``wheels`` are the paths of the build's wheels on the host, None: where they will lie, if they do not
        already. Raises :class:`RefusedError` where an overlay's binaries cannot work: nothing was copied.
        """
        state, spec = self._host.state, self._host.spec
        python = self._inputs.lock.platform.python
        problems = [
            line
            for overlay in self._inputs.overlays
            for line in misfits(overlay, arch=state.arch, glibc=state.glibc, python=python)
        ]
        unknown: tuple[str, ...] = ()
        if not problems and any(overlay.binaries for overlay in self._inputs.overlays):
            problems = self._gpu_problems()
            missing, unknown = self._libraries(self._places() if wheels is None else wheels)
            problems += missing
        if problems:
            more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            raise RefusedError(
                f"{spec.name}: overlays that would not work there; nothing was copied:\n"
                + "\n".join([*problems[:_SHOWN], *more]),
                hint="take an overlay from a machine like this one, or waive the finding in checks.allow",
            )
        return unknown

    def _places(self) -> Sequence[str]:
        house = f"{self._host.state.root}/wheelhouse"
        return [f"{house}/{entry.sha256}/{entry.filename}" for entry in self._inputs.wheels]

    def _probed(self) -> HostFacts:
        if self._facts is None:
            spec = self._host.spec
            asked = questions(spec, ProbeOptions(exports=False, search_seconds=0.0))
            asked["libraries"] = [*dict.fromkeys([*asked["libraries"], *self._wanted])]
            self._facts = HostFacts.from_dict(self._host.agent.call("probe.host", **asked), name=spec.name)
        return self._facts

    def _gpu_problems(self) -> list[str]:
        inputs, spec = self._inputs, self._host.spec
        if not any(has_gpu_code(overlay) for overlay in inputs.overlays):
            return []
        targets, today = gpu_targets(self._probed()), dt.datetime.now(dt.UTC).date()
        uses = {use.name: use for use in spec.overlays}
        return [
            line
            for overlay in inputs.overlays
            for line in gpu_misfits(overlay, uses[overlay.name], targets, spec.checks.allow, today=today)
        ]

    def _searched(self) -> list[str]:
        """Return the folders on the host to which objects lead the loader by themselves."""
        binaries = (binary for overlay in self._inputs.overlays for binary in overlay.binaries)
        return sorted({folder for binary in binaries for folder in binary.search})

    def _libraries(self, wheels: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
        """Return the libraries that nobody has, and those of which that cannot be told."""
        if not self._wanted:
            return [], ()
        seen = self._host.agent.call("wheelhouse.libraries", wheels=list(wheels), folders=self._searched())
        provided = Provided(
            laid=frozenset(seen["names"]),
            unread=tuple(seen["unread"]),
            host=self._probed().libraries,
            folders={folder: frozenset(names) for folder, names in seen["folders"].items()},
        )
        today = dt.datetime.now(dt.UTC).date()
        found = closure(self._inputs.overlays, provided, self._host.spec.checks.allow, today=today)
        return list(found.missing), found.unknown
