"""Comparing environments with the manifest of a capture: the machine that it was taken from may be gone."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hostenv.checks import comparison
from hostenv.checks.comparison import Comparison
from hostenv.checks.textdiff import TextDifference
from hostenv.facts.manifest_saved import SavedManifest
from hostenv.machine.fleet import run_on_hosts
from hostenv.workflows.demands import besides, demands_of
from hostenv.workflows.environment import places
from hostenv.workflows.match import (
    Matched,
    MatchReport,
    TargetResult,
    matched,
    open_all,
    side_of,
    target_result,
)

if TYPE_CHECKING:
    import pathlib

    from hostenv.machine.fleet import Turn
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

    def compared(target: Environment, turn: Turn) -> TargetResult:
        del turn
        return _compared(fleet, saved, target, request, listener)

    with contextlib.ExitStack() as stack:
        opened, failed = open_all(fleet, wanted, request, listener, stack)
        ended = run_on_hosts(opened, compared, jobs=request.jobs)
    results = {name: target_result(each) for name, each in ended.items()}
    results |= {name: TargetResult(label=name, seconds=0.0, error=error) for name, error in failed.items()}
    targets = tuple(results[place.label] for place in wanted)
    return MatchReport(reference=_reference(saved), targets=targets)


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
    demands, compared = demands_of(saved, fleet.specs.get(saved.host), target), Comparison()
    if saved.tree.fingerprint is None or saved.tree.fingerprint != target.tree.fingerprint:
        differences = saved.manifest.differences(target.manifest(listener))
        demands = besides(demands, saved, target, differences)
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
