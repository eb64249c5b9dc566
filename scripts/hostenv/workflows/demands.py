"""What is demanded of a target that is held against a reference, and what is left aside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hostenv.checks import handmade
from hostenv.checks.comparison import Demands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostenv.facts.manifest import Difference
    from hostenv.spec.spec import Spec
    from hostenv.workflows.environment import Environment


class ReferenceSide(Protocol):
    """What is asked of a reference where a target is held against it: one on a host, or one captured."""

    @property
    def host(self) -> str:
        """The name of its spec."""

    @property
    def build(self) -> str | None:
        """Its build's id, where hostenv built it."""

    def run_regardless(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the bytecode among ``paths`` that Python runs whatever its source says."""

    def scripts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """Return what the Python scripts among ``paths`` are: :func:`.handmade.script_form`."""


def demands_of(reference: ReferenceSide, spec: Spec | None, target: Environment) -> Demands:
    """Return what the target's spec demands where it names this reference; everything otherwise.

    ``spec`` is the reference's, if it has one.
    """
    specs = (*([spec] if spec else []), target.place.spec)
    ignore = tuple(pattern for each in specs if each.capture for pattern in each.capture.ignore)
    said = target.place.spec.reference
    if said is None or said.host != reference.host:
        return Demands(ignore=ignore)
    return Demands(layers=frozenset(said.equal), may_differ=said.may_differ, ignore=ignore)


def besides(
    demands: Demands, reference: ReferenceSide, target: Environment, differences: Sequence[Difference]
) -> Demands:
    """Return demands that leave aside what a hand-made environment has in a form of its own.

    Where a build of hostenv's is held against a reference made by hand; of others made by hand only bytecode
    that Python does not run, and of two builds nothing.
    """
    if reference.build and target.build:
        return demands
    paths = [each.path for each in differences]
    run = reference.run_regardless(paths) | target.run_regardless(paths)
    if reference.build or not target.build:
        aside = handmade.stale(differences, run)
    else:
        aside = handmade.aside(differences, run, reference.scripts(paths), target.scripts(paths))
    return replace(demands, ignore=(*demands.ignore, *aside))
