"""Comparing environments: fingerprints first, and only where these differ, everything."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostenv.checks import comparison
from hostenv.checks.cause import Cause, Side
from hostenv.checks.comparison import Comparison, Demands, Outcome
from hostenv.checks.textdiff import LARGEST, TextDifference, text_difference
from hostenv.errors import HostenvError, InputError, RefusedError
from hostenv.machine.fleet import run_on_hosts
from hostenv.workflows.demands import besides, demands_of
from hostenv.workflows.environment import open_environment, places, require_right_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostenv.checks.comparison import LayerState
    from hostenv.facts.interpreter import Interpreter
    from hostenv.facts.manifest import Difference, Manifest
    from hostenv.machine.fleet import Result, Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.rules import Layer
    from hostenv.workflows.environment import Environment, Place
    from hostenv.workflows.events import Listener
    from hostenv.workflows.request import Request

TEXTS = 40
"""Files of an environment whose text is compared with ``--diff``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """An environment as it was compared; of one as it was built, ``files`` and ``bytes`` are not told."""

    label: str
    path: str
    build: str | None
    fingerprint: str | None
    interpreter: Interpreter
    files: int | None
    bytes: int | None
    read: int
    """Bytes that had to be read on the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetResult:
    """What came of one target, or the error that kept it from being compared.

    ``layers`` only where the spec names this reference; ``hidden_texts`` counts those beyond :data:`TEXTS`.
    """

    label: str
    seconds: float
    environment: Matched | None = None
    comparison: Comparison | None = None
    interpreter: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    layers: Mapping[Layer, LayerState] = field(default_factory=dict)
    demands: Demands = field(default_factory=Demands)
    texts: Mapping[str, TextDifference] = field(default_factory=dict)
    hidden_texts: int = 0
    error: HostenvError | None = None

    @property
    def ok(self) -> bool:
        """Whether the target is what the reference is, in all that must be."""
        return self.comparison is not None and self.comparison.outcome in {Outcome.EQUAL, Outcome.ALLOWED}


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchReport:
    """The reference, and every target held against it."""

    reference: Matched
    targets: tuple[TargetResult, ...]


def match(fleet: Fleet, request: Request, listener: Listener) -> MatchReport:
    """Compare every target with the reference, or one environment with what was built there.

    Nothing is written on any host. Raises :class:`HostenvError` where the reference cannot be read; a
    target's error is its result.
    """
    wanted = places(fleet, request.hosts)
    if len(wanted) == 1 and len(request.hosts) > 1:
        label = wanted[0].label
        raise InputError(
            "reference and target are one place", hint=f"nox -s match -- {label} compares it with its making"
        )
    with contextlib.ExitStack() as stack:
        opened, failed = open_all(fleet, wanted, request, listener, stack)
        label = wanted[0].label
        if label in failed:
            raise failed[label]
        if len(wanted) == 1:
            return _drift(opened[label], listener, request)
        return _Session(opened, failed, request, listener).compare(wanted)


def open_all(
    fleet: Fleet,
    wanted: Sequence[Place],
    request: Request,
    listener: Listener,
    stack: contextlib.ExitStack,
) -> tuple[dict[str, Environment], dict[str, HostenvError]]:
    """Look at every place, side by side; return what is open by label, closed with ``stack``, and errors."""

    def look(place: Place, turn: Turn) -> Environment:
        listener.phase(place.label, "look")
        try:
            environment = open_environment(fleet, place, turn)
            stack.callback(environment.close)
            environment.read(listener, rehash=request.rehash)
            require_right_machine(fleet, environment)
        finally:
            listener.finished(place.label)
        return environment

    results = run_on_hosts({place.label: place for place in wanted}, look, jobs=request.jobs)
    opened = {name: result.value for name, result in results.items() if result.value}
    return opened, {name: result.error for name, result in results.items() if result.error}


class _Session:
    """A reference and its targets, all looked at."""

    def __init__(
        self,
        opened: Mapping[str, Environment],
        failed: Mapping[str, HostenvError],
        request: Request,
        listener: Listener,
    ) -> None:
        self._opened = opened
        self._failed = failed
        self._request = request
        self._listener = listener

    def compare(self, wanted: Sequence[Place]) -> MatchReport:
        """Compare the first place with each of the others."""
        reference = self._opened[wanted[0].label]
        targets = [self._opened[place.label] for place in wanted[1:] if place.label in self._opened]
        unequal = [target for target in targets if not _same_fingerprint(reference, target)]
        found: dict[str, TargetResult] = {}
        if unequal:
            found = self._explain(reference, unequal)
        results = []
        for place in wanted[1:]:
            if place.label in self._failed:
                error = self._failed[place.label]
                results.append(TargetResult(label=place.label, seconds=0.0, error=error))
            else:
                plain = _result(reference, self._opened[place.label], Comparison())
                results.append(found.get(place.label, plain))
        return MatchReport(reference=matched(reference), targets=tuple(results))

    def _explain(self, reference: Environment, targets: Sequence[Environment]) -> dict[str, TargetResult]:
        """Fetch the manifests, then ask the reference once for the owners of all that differs anywhere.

        One target's failure does not stop another, as it does not when they are opened.
        """
        manifest = reference.manifest(self._listener)

        def differences(target: Environment, turn: Turn) -> tuple[Difference, ...]:
            del turn
            return manifest.differences(target.manifest(self._listener))

        by_label = {target.place.label: target for target in targets}
        differing = run_on_hosts(by_label, differences, jobs=self._request.jobs)
        side = side_of(reference, {each.path for found in differing.values() for each in found.value or ()})

        def explain(target: Environment, turn: Turn) -> TargetResult:
            del turn
            found = differing[target.place.label]
            if found.error:
                raise found.error
            return self._explain_one(reference, side, target, found.value or ())

        explained = run_on_hosts(by_label, explain, jobs=1)  # the reference's agent answers one at a time
        return {name: target_result(each) for name, each in explained.items()}

    def _explain_one(
        self, reference: Environment, side: Side, target: Environment, differences: Sequence[Difference]
    ) -> TargetResult:
        begun = time.monotonic()
        demands = besides(_demands(reference, target), reference, target, differences)
        unread = (
            *comparison.unread("reference", reference.tree.problems, demands),
            *comparison.unread("target", target.tree.problems, demands),
        )
        other = side_of(target, {each.path for each in differences})
        compared = comparison.compare(side, other, differences, unread, demands)
        result = _result(reference, target, compared)
        if self._request.diff:
            texts, hidden = _texts(reference, target, compared)
            result = replace(result, texts=texts, hidden_texts=hidden)
        return replace(result, seconds=time.monotonic() - begun)


def target_result(result: Result[TargetResult]) -> TargetResult:
    """Return what came of one target, its error included."""
    return result.value or TargetResult(label=result.name, seconds=result.seconds, error=result.error)


def _drift(environment: Environment, listener: Listener, request: Request) -> MatchReport:
    """Hold a build against the manifest that was kept when it was made."""
    kept = environment.look.kept
    label = environment.place.label
    if kept is None:
        raise RefusedError(
            f"{label}: {environment.look.path} was not built by hostenv: there is nothing to hold it against",
            hint=f"nox -s match -- REFERENCE {label}",
        )
    now = matched(environment)
    as_built = replace(
        now, label=f"{label} as built", fingerprint=kept.fingerprint, files=None, bytes=None, read=0
    )
    demands = Demands(ignore=_ignored(environment))
    compared = Comparison()
    texts: Mapping[str, TextDifference] = {}
    if kept.fingerprint is None or environment.tree.fingerprint != kept.fingerprint:
        manifest: Manifest = environment.kept_manifest()
        differences = manifest.differences(environment.manifest(listener))
        side = side_of(environment, {each.path for each in differences})
        unread = comparison.unread("target", environment.tree.problems, demands)
        compared = comparison.compare(side, side, differences, unread, demands)
        if request.diff:
            told = TextDifference(why="the text as built is not kept; compare with another host's")
            texts = {each.path: told for group in compared.groups for each in group.differing[:1]}
    result = TargetResult(
        label=label,
        seconds=0.0,
        environment=now,
        comparison=compared,
        demands=demands,
        texts=texts,
    )
    return MatchReport(reference=as_built, targets=(result,))


def _same_fingerprint(one: Environment, other: Environment) -> bool:
    return one.tree.fingerprint is not None and one.tree.fingerprint == other.tree.fingerprint


def side_of(environment: Environment, paths: Iterable[str]) -> Side:
    """Ask a host whose these paths are."""
    look = environment.look
    return Side(claims=environment.claims(sorted(paths)), kept=look.kept, site=look.site)


def _demands(reference: Environment, target: Environment) -> Demands:
    return demands_of(reference, reference.place.spec, target)


def _ignored(environment: Environment) -> tuple[str, ...]:
    capture = environment.place.spec.capture
    return capture.ignore if capture else ()


def _result(reference: Environment, target: Environment, compared: Comparison) -> TargetResult:
    said = target.place.spec.reference
    is_reference = said is not None and said.host == reference.place.spec.name
    layers = comparison.layer_states(reference.look.kept, target.look.kept) if is_reference else {}
    return TargetResult(
        label=target.place.label,
        seconds=0.0,
        environment=matched(target),
        comparison=compared,
        interpreter=comparison.interpreter_differences(reference.tree.interpreter, target.tree.interpreter),
        layers=layers,
        demands=_demands(reference, target),
    )


def matched(environment: Environment) -> Matched:
    """Return what a report says of an environment."""
    tree = environment.tree
    return Matched(
        label=environment.place.label,
        path=environment.look.path,
        build=environment.look.build,
        fingerprint=tree.fingerprint,
        interpreter=tree.interpreter,
        files=tree.files,
        bytes=tree.bytes,
        read=tree.read if environment.look.tree else 0,
    )


def _texts(
    reference: Environment, target: Environment, compared: Comparison
) -> tuple[dict[str, TextDifference], int]:
    """Compare the texts of files that differ, another version's aside: at most :data:`TEXTS`."""
    worth = [
        each
        for group in compared.groups
        for each in group.differing
        if each.cause not in {Cause.VERSION, Cause.MODE, Cause.SYMLINK}
    ]
    shown = worth[:TEXTS]
    sides = [
        environment.texts([each.path for each in shown if getattr(each, name)], LARGEST)
        for environment, name in ((reference, "reference"), (target, "target"))
    ]
    found = {}
    for each in shown:
        one, other = (side.get(each.path, {"text": None, "why": None}) for side in sides)
        why = one["why"] or other["why"]
        if why:
            found[each.path] = TextDifference(why=why)
        else:
            found[each.path] = text_difference(each.path, one["text"], other["text"])
    return found, len(worth) - len(shown)
