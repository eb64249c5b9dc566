"""The smallest change that makes a failing environment pass, found with the judge that failed it."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.checks import changed, suggest
from hostenv.checks.judge import judge
from hostenv.checks.suggest import Change, Proposal
from hostenv.facts.candidates import Candidate, Excerpt
from hostenv.facts.distributions import Installed
from hostenv.facts.gpu_code import GpuCodeFacts, runtime_of
from hostenv.facts.objects import LoadFacts
from hostenv.facts.site import SiteFacts
from hostenv.spec.lockplatform import LockPlatform
from hostenv.steps.alternatives import alternatives

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.changed import Brought
    from hostenv.checks.judge import Facts, Rule, Verdict
    from hostenv.spec.spec import Spec
    from hostenv.steps.pylock import PylockPackage
    from hostenv.workflows.candidates import Reference, Wheels

    Resolved = Mapping[NormalizedName, PylockPackage]
    Simulate = Callable[[Sequence[Excerpt], Sequence[str]], Mapping[str, Any]]

_MOST = 5
"""Names of which sets are tried on the index."""
_MOST_HELD = 3
"""Versions of a distribution that are tried because their wheels are there, the newest first."""
_MOST_REJECTED = 4
"""Versions that the judge rejects before a distribution is given up."""
_ENOUGH = 2
"""Proposals after which the search ends; the first is the smallest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """An environment that did not pass, with what it takes to judge it again.

    ``simulate`` asks its host what the loader would say with these objects laid over it, and nothing at those
    paths; ``wheels`` are what lies in its wheelhouse. ``own``: a build of the spec, not just any environment.
    ``fixed`` are distributions whose versions the spec's series and overlays hold: no proposal changes them.
    """

    spec: Spec
    facts: Facts
    verdict: Verdict
    rules: Sequence[Rule]
    simulate: Simulate
    wheels: Wheels
    own: bool = True
    fixed: frozenset[NormalizedName] = frozenset()

    def judged(self, facts: Facts) -> Verdict:
        """Return the verdict on changed facts."""
        return judge(facts, self.rules, self.spec.checks.allow, today=dt.datetime.now(dt.UTC).date())

    def takes(self, facts: Facts, changes: Sequence[Change], laid: Collection[NormalizedName] = ()) -> bool:
        """Tell whether the judge takes changed facts, the spec saying what it then says."""
        facts = facts.but(runtime_of(facts[LoadFacts]))
        if self.own:
            facts = facts.but(suggest.asked(changes, self.spec.env, laid).wanted)
        return suggest.accepted(self.facts, self.verdict, self.judged(facts))

    def with_laid(self, brought: Brought, excerpts: Sequence[Excerpt], changes: Sequence[Change]) -> Facts:
        """Return the facts with whole distributions laid over, the loader simulated on their objects."""
        out = {each.name for each in changes if each.after is None}
        gone = changed.objects_of(self.facts, {*brought.names, *out})
        answer = self.simulate(excerpts, gone)
        loads = LoadFacts.from_dict(answer)
        new = {str(each.name): each.after for each in changes if each.after}
        kept = {name: version for name, version in loads.installed.items() if name not in out}
        loads = replace(loads, installed={**kept, **new})
        gpu = GpuCodeFacts.from_dict(answer["gpu_code"])
        return changed.laid_over(self.facts, brought, out, loads, gpu)

    def proposal(
        self,
        changes: tuple[Change, ...],
        source: str,
        left: tuple[str, ...] = (),
        *,
        laid: Collection[NormalizedName] = (),
    ) -> Proposal:
        """Return a proposal with the lines and commands that carry it out, those of overlays apart."""
        lines = suggest.asked(changes, self.spec.env, laid).lines(self.spec.env)
        commands = []
        if self.own:
            relocked = self.spec.is_local or not lines
            commands = [] if relocked else [f"nox -s lock -- {self.spec.name}"]
            commands.append(f"nox -s build_env -- {self.spec.name}")
        return Proposal(changes=changes, source=source, open=left, env=lines, commands=tuple(commands))


def proposals(failing: Failing, reference: Reference | None) -> tuple[Proposal, ...]:
    """Return the changes that make the environment pass, the smallest first, then those judged whole."""
    if failing.verdict.passed:
        return ()
    found: list[Proposal] = []
    for proposal in _all(failing, reference):
        if all(proposal.changes != each.changes for each in found):
            found.append(proposal)
        if len(found) == _ENOUGH:
            break
    return tuple(sorted(found, key=lambda each: (len(each.changes), bool(each.open))))


def _all(failing: Failing, reference: Reference | None) -> Iterator[Proposal]:
    yield from _left_out(failing)
    if reference is not None:
        yield from _Overlays(failing, reference).search()
    yield from _Index(failing).search()


def _left_out(failing: Failing) -> Iterator[Proposal]:
    names = suggest.superfluous(failing.facts)
    present = failing.facts[Installed].by_name()
    changes = tuple(Change(name=name, before=present[name].version, after=None) for name in names)
    if changes:
        after = changed.changed_by_versions(failing.facts, changes, {})
        if failing.takes(after, changes):
            left = suggest.not_judged(failing.facts, after)
            yield failing.proposal(changes, "none: the other owner's files are laid again", left)


class _Index:
    """Other versions on the index: judged by their wheels where these lie in the wheelhouse."""

    def __init__(self, failing: Failing) -> None:
        self._failing = failing
        self._installed = failing.facts[Installed]
        self._present = self._installed.by_name()
        self._tried: set[tuple[Change, ...]] = set()

    def search(self) -> Iterator[Proposal]:
        """Yield proposals, those with the fewest free distributions first."""
        platform = _platform(self._installed)
        blamed = suggest.blamed(self._failing.facts, self._failing.verdict)
        names = (*suggest.missing(self._failing.facts), *blamed)
        names = tuple(name for name in names if name not in self._failing.fixed)[:_MOST]
        enough = len(blamed)
        for free in suggest.together(names) if platform else ():
            if len(free) > enough:
                return
            for proposal in self._of(free, platform) if platform else ():
                enough = len(free)
                yield proposal

    def _of(self, free: tuple[NormalizedName, ...], platform: LockPlatform) -> Iterator[Proposal]:
        """Yield what makes ``free`` fit: first versions whose wheels are there, then what the index has."""
        rejected: list[str] = []
        if len(free) == 1:
            (name,) = free
            mine = self._present.get(name)
            rejected = [f"{name}!={mine.version}"] if mine else []
            held = map(str, self._failing.wheels.versions(name, platform))
            others = [version for version in held if mine is None or mine.version != version]
            for version in others[:_MOST_HELD]:
                yield from self._resolved(free, platform, [f"{name}=={version}"], rejected)
        while len(rejected) <= _MOST_REJECTED:
            before = len(rejected)
            for proposal in self._resolved(free, platform, rejected, rejected):
                yield proposal
                return
            if len(rejected) == before:
                return

    def _resolved(
        self,
        free: tuple[NormalizedName, ...],
        platform: LockPlatform,
        also: Sequence[str],
        rejected: list[str],
    ) -> Iterator[Proposal]:
        """Yield what uv finds where the judge takes it; ``rejected`` learns what its wheels speak against."""
        env = self._failing.spec.env
        beside = suggest.neighbours(self._installed, free)
        ranges = suggest.ranges(env, free)
        resolved = alternatives(free, beside, self._present, env, platform, also=(*also, *ranges))
        changes = self._changes(free, resolved or {})
        if not resolved or not changes or changes in self._tried:
            return
        if any(each.name in self._failing.fixed for each in changes):
            return
        self._tried.add(changes)
        versions = {name: each.version for name, each in resolved.items()}
        by_version = changed.changed_by_versions(self._failing.facts, changes, versions)
        if not self._failing.takes(by_version, changes):
            return
        after, held, left = self._with_wheels(changes, resolved, platform, versions)
        if not self._failing.takes(after, changes):
            rejected += [f"{each.name}!={each.after}" for each in changes if each.name in held]
            return
        told = f"the index; {', '.join(sorted(held))}: judged by the wheel" if held else "the index"
        yield self._failing.proposal(changes, told, left)

    def _changes(self, free: tuple[NormalizedName, ...], resolved: Resolved) -> tuple[Change, ...]:
        present = self._present
        changes = tuple(
            Change(name=name, before=present[name].version if name in present else None, after=each.version)
            for name, each in sorted(resolved.items())
            if (name in free or name in present)
            and (name not in present or present[name].version != each.version)
        )
        return changes + suggest.renamed(self._failing.facts, [each.name for each in changes])

    def _with_wheels(
        self,
        changes: tuple[Change, ...],
        resolved: Resolved,
        platform: LockPlatform,
        versions: Mapping[NormalizedName, str],
    ) -> tuple[Facts, frozenset[NormalizedName], tuple[str, ...]]:
        """Return the facts with what wheels tell, whose wheels told it, and what is left open."""
        failing = self._failing
        packages = [resolved[each.name] for each in changes if each.name in resolved]
        looked = failing.wheels.look(packages, platform, failing.facts[SiteFacts].operators)
        held = {name: each for name, each in looked.items() if isinstance(each, Candidate)}
        mine = tuple(each for each in changes if each.name in held or each.after is None)
        rest = tuple(each for each in changes if each not in mine)
        if held:
            brought = changed.brought_by_wheels(held.values())
            excerpts = [excerpt for each in held.values() for excerpt in each.excerpts]
            facts = failing.with_laid(brought, excerpts, mine)
        else:
            facts, rest = failing.facts, changes
        after = changed.changed_by_versions(facts, rest, versions) if rest else facts
        unread = tuple(
            f"{name} {versions[name]}: {each.why}"
            for name, each in looked.items()
            if not isinstance(each, Candidate)
        )
        return after, frozenset(held), (*suggest.not_judged(facts, after), *unread)


class _Overlays:
    """Whole distributions of a reference, the fewest that do."""

    def __init__(self, failing: Failing, reference: Reference) -> None:
        self._failing = failing
        self._reference = reference

    def search(self) -> Iterator[Proposal]:
        """Yield the smallest sets that mend it; where only a large one does, one without a needless part."""
        names = suggest.able(self._failing.facts, self._reference.installed, self._failing.verdict)
        names = tuple(name for name in names if name not in self._failing.fixed)
        enough = 0
        for taken in suggest.together(names):
            if enough and len(taken) > enough:
                return
            if proposal := self._proposed(taken):
                enough = len(taken)
                yield proposal
        if not enough and (proposal := self._proposed(names)):
            yield self._least(names, proposal)

    def _least(self, names: tuple[NormalizedName, ...], proposal: Proposal) -> Proposal:
        for name in reversed(names):
            fewer = tuple(each for each in names if each != name)
            if smaller := self._proposed(fewer):
                names, proposal = fewer, smaller
        return proposal

    def _proposed(self, names: tuple[NormalizedName, ...]) -> Proposal | None:
        if not names:
            return None
        failing, reference = self._failing, self._reference
        changes = suggest.taken_over(failing.facts, reference.installed, names)
        brought, found = reference.bring(names)
        if not failing.takes(failing.with_laid(brought, found, changes), changes, names):
            return None
        overlay = re.sub(r"[^A-Za-z0-9._-]", "-", f"{'-'.join(names)}-of-{reference.host}")
        source = f"whole distributions of {reference.host}:{reference.venv}"
        proposal = failing.proposal(changes, source, laid=names)
        return replace(
            proposal,
            overlays=(*inherited_overlays(failing.spec), "[[overlays]]", f'name = "{overlay}"'),
            commands=(reference.command(overlay, names), *proposal.commands),
        )


def inherited_overlays(spec: Spec) -> Iterator[str]:
    """Yield the lines of a class's overlays: a list of the spec's own replaces it, so they stand in both."""
    document = f"{spec.path.parent.name}/{spec.path.name}"
    for use in spec.overlays if spec.overlays_of not in {None, document} else ():
        yield f"[[overlays]]  # of {spec.overlays_of}, whose list this one replaces"
        yield f"name = {json.dumps(use.name)}"
        if use.require_arch:
            yield f"require-arch = {json.dumps(use.require_arch)}"


def _platform(installed: Installed) -> LockPlatform | None:
    interpreter = installed.tree.interpreter
    if interpreter.python is None or interpreter.glibc is None:
        return None
    return LockPlatform(python=interpreter.python, arch=interpreter.machine, glibc=interpreter.glibc)
