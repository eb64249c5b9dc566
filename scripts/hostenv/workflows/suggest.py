"""The smallest change that makes a failing environment pass, found with the judge that failed it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.checks import suggest
from hostenv.checks.judge import judge
from hostenv.checks.suggest import Change, Proposal
from hostenv.facts.distributions import Installed
from hostenv.facts.gpu_code import GpuCodeFacts
from hostenv.facts.objects import LoadFacts
from hostenv.spec.lockplatform import LockPlatform
from hostenv.steps.alternatives import alternatives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.judge import Facts, Rule, Verdict
    from hostenv.spec.spec import Spec

_MOST = 5
"""Names of which sets are tried on the index."""
_ENOUGH = 2
"""Proposals after which the search ends; the first is the smallest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """An environment that did not pass, with what it takes to judge it again."""

    spec: Spec
    facts: Facts
    verdict: Verdict
    rules: Sequence[Rule]

    def judged(self, facts: Facts) -> Verdict:
        """Return the verdict on changed facts."""
        return judge(facts, self.rules, self.spec.checks.allow, today=dt.datetime.now(dt.UTC).date())


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """An environment that works: its place on the host, and its facts.

    ``simulate`` asks the host what the loader would say with these objects laid over the failing one.
    """

    venv: str
    facts: Facts
    simulate: Callable[[Mapping[str, str | None]], Mapping[str, Any]]


def proposals(failing: Failing, reference: Reference | None) -> tuple[Proposal, ...]:
    """Return the changes that make the environment pass, the smallest first; none where none was found."""
    if failing.verdict.passed:
        return ()
    found: list[Proposal] = []
    for proposal in _all(failing, reference):
        if all(proposal.changes != each.changes for each in found):
            found.append(proposal)
        if len(found) == _ENOUGH:
            break
    return tuple(sorted(found, key=lambda each: len(each.changes)))


def _all(failing: Failing, reference: Reference | None) -> Iterator[Proposal]:
    yield from _left_out(failing)
    names = suggest.blamed(failing.facts, failing.verdict)
    if reference is not None:
        yield from _overlaid(failing, reference, names)
    yield from _from_index(failing, names)


def _left_out(failing: Failing) -> Iterator[Proposal]:
    names = suggest.superfluous(failing.facts)
    present = failing.facts[Installed].by_name()
    changes = tuple(Change(name=name, before=present[name].version, after=None) for name in names)
    if changes:
        yield from _proposed(failing, changes, "none: the other owner's files are laid again", {})


def _from_index(failing: Failing, names: Sequence[NormalizedName]) -> Iterator[Proposal]:
    installed = failing.facts[Installed]
    platform = _platform(installed)
    present = installed.by_name()
    tried: set[tuple[Change, ...]] = set()
    enough = len(names)
    names = (*suggest.missing(failing.facts), *names)[:_MOST]
    for free in suggest.together(names) if platform else ():
        if len(free) > enough:
            return
        beside = suggest.neighbours(installed, free)
        versions = alternatives(free, beside, present, failing.spec.env, platform) if platform else None
        changes = tuple(
            Change(name=name, before=present[name].version if name in present else None, after=version)
            for name, version in sorted((versions or {}).items())
            if (name in free or name in present) and (name not in present or present[name].version != version)
        )
        changes += suggest.renamed(failing.facts, (each.name for each in changes))
        if not changes or not versions or changes in tried:
            continue
        tried.add(changes)
        for proposal in _proposed(failing, changes, "the index", versions):
            enough = len(free)
            yield proposal


def _proposed(
    failing: Failing, changes: tuple[Change, ...], source: str, resolved: Mapping[NormalizedName, str]
) -> Iterator[Proposal]:
    after = suggest.changed_by_versions(failing.facts, changes, resolved)
    if suggest.accepted(failing.facts, failing.verdict, failing.judged(after)):
        yield Proposal(changes=changes, source=source, open=suggest.not_judged(failing.facts, after))


def _overlaid(failing: Failing, reference: Reference, names: Sequence[NormalizedName]) -> Iterator[Proposal]:
    """Yield overlays of whole distributions, the smallest first, each simulated on its files."""
    able = [change.name for change in suggest.differing(failing.facts, reference.facts, names)]
    for taken in suggest.together(able):
        changes = suggest.differing(failing.facts, reference.facts, taken)
        laid = suggest.laid_objects(failing.facts, reference.facts, reference.venv, taken)
        answer = reference.simulate(laid)
        loads = _with_versions(LoadFacts.from_dict(answer), reference.facts[LoadFacts], changes)
        after = suggest.laid_over(failing.facts, reference.facts, taken, loads)
        after = after.but(GpuCodeFacts.from_dict(answer["gpu_code"]))
        if suggest.accepted(failing.facts, failing.verdict, failing.judged(after)):
            yield Proposal(changes=changes, source=f"whole distributions of {reference.venv}")


def _with_versions(loads: LoadFacts, theirs: LoadFacts, changes: Sequence[Change]) -> LoadFacts:
    names = {change.name for change in changes}
    new = {str(change.name): change.after for change in changes if change.after}
    return replace(
        loads,
        installed={**loads.installed, **new},
        cuda=theirs.cuda if loads.package in names else loads.cuda,
    )


def _platform(installed: Installed) -> LockPlatform | None:
    interpreter = installed.tree.interpreter
    if interpreter.python is None or interpreter.glibc is None:
        return None
    return LockPlatform(python=interpreter.python, arch=interpreter.machine, glibc=interpreter.glibc)
