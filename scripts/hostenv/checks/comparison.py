"""Two environments held against each other: what differs, grouped by distribution, each with its cause."""

from __future__ import annotations

import fnmatch
import posixpath
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from hostenv.checks.cause import Cause, Finder
from hostenv.spec.rules import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostenv.checks.cause import Side
    from hostenv.facts.environment import Kept
    from hostenv.facts.interpreter import Interpreter
    from hostenv.facts.manifest import Difference, Entry, TreeProblem

_INTERPRETER = ("implementation", "version", "abi", "present", "system_site", "machine", "libc")
"""What is compared of two interpreters; beside it, a kernel's version makes no environment another."""

_LAYER_OF = {Cause.VERSION: Layer.LOCK, Cause.PATCHED: Layer.PATCHES, Cause.OVERLAID: Layer.OVERLAYS}


class Outcome(StrEnum):
    """``ALLOWED``: what differs may differ, by the spec. ``UNKNOWN``: a file could not be read."""

    EQUAL = "equal"
    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    DIFFERENT = "different"


class LayerState(StrEnum):
    """How a layer of two builds compares; ``UNKNOWN`` where one of them was not made by hostenv."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """What must be equal.

    ``layers``, and always what belongs to none. ``may_differ``: patterns of paths in ``site-packages`` that
    are reported and not demanded; ``ignore``: patterns of paths in the environment that are not looked at.
    ``*`` goes across folders, a leading ``**/`` may match nothing, a trailing ``/`` means all below.
    """

    layers: frozenset[Layer] = frozenset(Layer)
    may_differ: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Differing:
    """One path that differs, why, and whether it had to be equal. ``detail`` says which side did it."""

    path: str
    cause: Cause
    detail: str
    demanded: bool
    reference: Entry | None
    target: Entry | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """What differs of one distribution (``None``: of none). A version is ``None`` where it is not there."""

    distribution: str | None
    reference_version: str | None
    target_version: str | None
    differing: tuple[Differing, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A path on one side that could not be read, so that nothing is known of it."""

    side: str
    path: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What came of comparing. ``ignored`` counts paths that differ where nobody looks."""

    groups: tuple[Group, ...] = ()
    unread: tuple[Unread, ...] = ()
    ignored: int = 0

    @property
    def outcome(self) -> Outcome:
        """The verdict; what is unknown is never equal."""
        differing = [each for group in self.groups for each in group.differing]
        if any(each.demanded for each in differing):
            return Outcome.DIFFERENT
        if self.unread:
            return Outcome.UNKNOWN
        return Outcome.ALLOWED if differing else Outcome.EQUAL


def differing_paths(differences: Iterable[Difference], unread: Sequence[Unread]) -> tuple[Difference, ...]:
    """Leave out what only seems to differ, because one side could not be read there."""
    unknown = {each.path for each in unread}
    return tuple(each for each in differences if not _hidden(each.path, unknown))


def unread(side: str, problems: Iterable[TreeProblem], demands: Demands) -> tuple[Unread, ...]:
    """Return the problems of one side, those aside that lie where nobody looks."""
    return tuple(
        Unread(side=side, path=each.path, reason=each.reason)
        for each in problems
        if not matches(each.path, demands.ignore)
    )


def compare(
    reference: Side,
    target: Side,
    differences: Iterable[Difference],
    unreadable: Sequence[Unread] = (),
    demands: Demands | None = None,
) -> Comparison:
    """Explain ``differences`` of two environments; both sides must know whose each of their paths is."""
    demands = demands or Demands()
    finder = Finder(reference, target)
    found: list[tuple[str, Differing]] = []
    ignored = 0
    for difference in differing_paths(differences, unreadable):
        if matches(difference.path, demands.ignore):
            ignored += 1
            continue
        cause, detail = finder.cause(difference)
        differing = Differing(
            path=difference.path,
            cause=cause,
            detail=detail,
            demanded=_is_demanded(difference.path, cause, finder, demands),
            reference=difference.reference,
            target=difference.target,
        )
        found.append((finder.distribution(difference.path) or "", differing))
    groups = tuple(_group(name, list(each), reference, target) for name, each in _grouped(found))
    return Comparison(groups=groups, unread=tuple(unreadable), ignored=ignored)


def interpreter_differences(one: Interpreter, other: Interpreter) -> dict[str, tuple[str, str]]:
    """Return what differs of two interpreters, in words: told beside a comparison, never part of it."""
    pairs = {name: (str(getattr(one, name)), str(getattr(other, name))) for name in _INTERPRETER}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def layer_states(one: Kept | None, other: Kept | None) -> dict[Layer, LayerState]:
    """Compare what two builds were made of, layer by layer."""
    if one is None or other is None:
        return dict.fromkeys(Layer, LayerState.UNKNOWN)
    pairs = {
        Layer.LOCK: (one.inputs.wheels, other.inputs.wheels),
        Layer.PATCHES: (one.inputs.series, other.inputs.series),
        Layer.OVERLAYS: (one.inputs.overlays, other.inputs.overlays),
    }
    return {
        layer: LayerState.EQUAL if first == second else LayerState.DIFFERENT
        for layer, (first, second) in pairs.items()
    }


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Tell whether a path fits one of the patterns that :class:`Demands` describes."""
    return any(_matches(path, pattern) for pattern in patterns)


def _matches(path: str, pattern: str) -> bool:
    if pattern.endswith("/"):
        pattern += "*"
    return any(fnmatch.fnmatchcase(path, form) for form in {pattern, pattern.removeprefix("**/")})


def _hidden(path: str, unknown: set[str]) -> bool:
    """Tell whether a path, or a folder above it, could not be read on one side."""
    while path:
        if path in unknown:
            return True
        path = posixpath.dirname(path)
    return False


def _is_demanded(path: str, cause: Cause, finder: Finder, demands: Demands) -> bool:
    layer = _LAYER_OF.get(cause)
    within = finder.within_site(path)
    may_differ = within is not None and matches(within, demands.may_differ)
    return not may_differ and (layer is None or layer in demands.layers)


def _grouped(found: list[tuple[str, Differing]]) -> Iterable[tuple[str, Iterable[Differing]]]:
    """Group by distribution, what belongs to none last."""
    ordered = sorted(found, key=lambda pair: (pair[0] == "", pair[0]))
    for name, pairs in groupby(ordered, key=lambda pair: pair[0]):
        yield name, (differing for _, differing in pairs)


def _group(name: str, differing: list[Differing], reference: Side, target: Side) -> Group:
    order = list(Cause)
    return Group(
        distribution=name or None,
        reference_version=reference.claims.versions.get(name),
        target_version=target.claims.versions.get(name),
        differing=tuple(sorted(differing, key=lambda each: (order.index(each.cause), each.path))),
    )
