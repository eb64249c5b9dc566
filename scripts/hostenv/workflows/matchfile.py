"""Comparing environments with the manifest of a capture: the machine that it was taken from may be gone."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hostenv.checks import comparison, handmade
from hostenv.checks.comparison import Comparison, Demands
from hostenv.checks.textdiff import TextDifference
from hostenv.facts.manifest_saved import SavedManifest
from hostenv.workflows.environment import places
from hostenv.workflows.match import Matched, MatchReport, TargetResult, matched, open_all, side_of

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from hostenv.facts.manifest import Difference
    from hostenv.spec.fleet import Fleet
    from hostenv.workflows.environment import Environment
    from hostenv.workflows.events import Listener
    from hostenv.workflows.request import Request


def match_manifest(fleet: Fleet, request: Request, path: pathlib.Path, listener: Listener) -> MatchReport:
    """Compare every place that the request names with a saved manifest. Nothing is written on any host.

    Raises :class:`~hostenv.errors.InputError` where the file is none; a target's error is its result.
    """
    saved = SavedManifest.load(path)
    wanted = places(fleet, request.hosts)
    results = []
    with contextlib.ExitStack() as stack:
        opened, failed = open_all(fleet, wanted, request, listener, stack)
        for place in wanted:
            if place.label in failed:
                results.append(TargetResult(label=place.label, seconds=0.0, error=failed[place.label]))
            else:
                results.append(_compared(fleet, saved, opened[place.label], request, listener))
    return MatchReport(reference=_reference(saved), targets=tuple(results))


def _reference(saved: SavedManifest) -> Matched:
    return Matched(
        label=f"{saved.host} as captured on {saved.taken}",
        path=saved.venv,
        build=saved.build,
        fingerprint=saved.tree.fingerprint,
        interpreter=saved.tree.interpreter,
        files=saved.tree.files,
        bytes=saved.tree.bytes,
        read=0,
    )


def _compared(
    fleet: Fleet, saved: SavedManifest, target: Environment, request: Request, listener: Listener
) -> TargetResult:
    begun = time.monotonic()
    demands, compared = _demands(fleet, saved, target), Comparison()
    if saved.tree.fingerprint is None or saved.tree.fingerprint != target.tree.fingerprint:
        differences = saved.manifest.differences(target.manifest(listener))
        ignore = (*demands.ignore, *_aside(saved, target, differences))
        demands = Demands(layers=demands.layers, may_differ=demands.may_differ, ignore=ignore)
        unread = (
            *comparison.unread("reference", saved.tree.problems, demands),
            *comparison.unread("target", target.tree.problems, demands),
        )
        side = side_of(target, {each.path for each in differences})
        compared = comparison.compare(side, side, differences, unread, demands)
    told = TextDifference(why="a manifest keeps no text; compare with a host")
    shown = [each.path for group in compared.groups for each in group.differing[:1]] if request.diff else []
    return TargetResult(
        label=target.place.label,
        seconds=time.monotonic() - begun,
        environment=matched(target),
        comparison=compared,
        interpreter=comparison.interpreter_differences(saved.tree.interpreter, target.tree.interpreter),
        demands=demands,
        texts=dict.fromkeys(shown, told),
    )


def _demands(fleet: Fleet, saved: SavedManifest, target: Environment) -> Demands:
    """Return what the target's spec demands of this reference, and where both specs say not to look."""
    specs = [target.place.spec, *([fleet.specs[saved.host]] if saved.host in fleet.specs else [])]
    ignore = tuple(pattern for spec in specs if spec.capture for pattern in spec.capture.ignore)
    said = target.place.spec.reference
    if said is None or said.host != saved.host:
        return Demands(ignore=ignore)
    return Demands(layers=frozenset(said.equal), may_differ=said.may_differ, ignore=ignore)


def _aside(saved: SavedManifest, target: Environment, differences: Sequence[Difference]) -> tuple[str, ...]:
    """Return what a hand-made environment has in a form of its own, as ``match`` of two does."""
    if saved.build and target.look.build:
        return ()
    paths = [each.path for each in differences]
    run = {path for path in paths if path in saved.manifest.entries and path not in saved.stale}
    aside = handmade.stale if saved.build or not target.look.build else handmade.aside
    return aside(differences, run | target.run_regardless(paths))
