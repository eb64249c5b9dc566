"""The smallest change that makes an environment pass: which distributions to try, and what a spec says then.

Nothing is looked up here. A proposal is what the same judge says of the changed facts; what it would still
reject is none.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from hostenv.agent.amounts import counted
from hostenv.checks.finding import Severity
from hostenv.checks.metadata import Wanted, demands
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.objects import LoadFacts
from hostenv.facts.site import SiteFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts, Verdict
    from hostenv.facts.distributions import Distribution

_MOST_BLAMED = 5
_MOST_TAKEN = 6
_MOST_TOGETHER = 2
_OWNER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-\d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One distribution that becomes another version, goes (``after`` is ``None``), or comes (``before``)."""

    name: NormalizedName
    before: str | None
    after: str | None

    @property
    def line(self) -> str:
        """The change in words."""
        return f"{self.name} {self.before or 'not installed'} → {self.after or 'left out'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A change that the judge takes.

    ``source`` says where its files come from; ``open`` what could not be judged before they are there.
    ``env`` are lines of the spec's ``[env]``, each instead of the one of its key; ``overlays`` lines for the
    end of the spec; ``commands`` what to run then, in this order.
    """

    changes: tuple[Change, ...]
    source: str
    open: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class Wishes(Protocol):
    """What a spec's ``[env]`` says to the resolver (:class:`hostenv.spec.environment.Env`)."""

    @property
    def requires(self) -> Sequence[Requirement]:
        """What is asked for."""

    @property
    def constraints(self) -> Sequence[Requirement]:
        """What whatever is installed must meet."""

    @property
    def overrides(self) -> Sequence[Requirement]:
        """What counts instead of every other requirement of its name."""

    @property
    def excludes(self) -> Sequence[NormalizedName]:
        """What is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What ``[env]`` says after a change, as its lines have it."""

    requires: tuple[Requirement, ...]
    constraints: tuple[Requirement, ...]
    overrides: tuple[Requirement, ...]
    excludes: tuple[NormalizedName, ...]

    @property
    def wanted(self) -> Wanted:
        """What the rules hold an environment against."""
        return Wanted(requires=self.requires, overrides=self.overrides, excludes=self.excludes)

    def lines(self, before: Wishes) -> tuple[str, ...]:
        """Return the whole lines that are not as they were."""
        tables = (
            ("requires", before.requires, self.requires),
            ("constraints", before.constraints, self.constraints),
            ("overrides", before.overrides, self.overrides),
            ("excludes", before.excludes, self.excludes),
        )
        return tuple(
            f"{key} = {json.dumps([str(each) for each in new])}"
            for key, old, new in tables
            if [str(each) for each in old] != [str(each) for each in new]
        )


def asked(changes: Iterable[Change], wishes: Wishes, laid: Collection[NormalizedName] = ()) -> Asked:
    """Return what a spec says so that changes come about, with all that it says already.

    A version becomes a constraint; where the spec itself asks for the distribution in other words, that line
    is changed instead. Of what an overlay lays (``laid``) no line may ask for another version.
    """
    versions = {each.name: each.after for each in changes if each.after}
    out = {each.name for each in changes if each.after is None}
    requires = [_with(each, versions, laid) for each in wishes.requires]
    overrides = [
        _with(each, versions, laid) for each in wishes.overrides if not _against(each, versions, laid)
    ]
    stated = {str(each) for each in (*requires, *overrides)}
    pins = [Requirement(f"{name}=={version}") for name, version in versions.items() if name not in laid]
    named = {canonicalize_name(each.name) for each in overrides}
    return Asked(
        requires=tuple(each for each in requires if canonicalize_name(each.name) not in out),
        constraints=(
            *(
                each
                for each in wishes.constraints
                if canonicalize_name(each.name) not in out and not _against(each, versions)
            ),
            *(each for each in pins if str(each) not in stated and canonicalize_name(each.name) not in named),
        ),
        overrides=tuple(each for each in overrides if canonicalize_name(each.name) not in out),
        excludes=(
            *(each for each in wishes.excludes if each not in versions),
            *sorted(out - {*wishes.excludes}),
        ),
    )


def ranges(wishes: Wishes, names: Collection[NormalizedName]) -> tuple[str, ...]:
    """Return what a spec says of the versions of ``names``, single ones aside: these are what may change."""
    return tuple(
        str(each)
        for each in (*wishes.requires, *wishes.constraints)
        if canonicalize_name(each.name) in names
        and not any(part.operator.startswith("==") and part.version[-1:] != "*" for part in each.specifier)
    )


def _against(
    asked: Requirement,
    versions: Mapping[NormalizedName, str],
    only: Collection[NormalizedName] | None = None,
) -> bool:
    """Tell whether a requirement does not let in the version that its distribution gets."""
    name = canonicalize_name(asked.name)
    version = versions.get(name) if only is None or name in only else None
    return version is not None and not asked.specifier.contains(version, prereleases=True)


def _with(
    asked: Requirement, versions: Mapping[NormalizedName, str], laid: Collection[NormalizedName]
) -> Requirement:
    """Return a requirement that lets in the version of its distribution, extras and marker as they were."""
    if not _against(asked, versions):
        return asked
    new = Requirement(str(asked))
    name = canonicalize_name(asked.name)
    new.specifier = SpecifierSet("" if name in laid else f"=={versions[name]}")
    return new


def blamed(facts: Facts, verdict: Verdict) -> tuple[NormalizedName, ...]:
    """Return the installed distributions that the errors are about, the most blamed first, at most five."""
    counts: dict[NormalizedName, int] = {}
    for finding in verdict.findings:
        if finding.severity is Severity.ERROR:
            for name in blamed_by(facts, finding):
                counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))[:_MOST_BLAMED]


def _named(finding: Finding, owners: Mapping[str, tuple[str, ...]]) -> Iterator[NormalizedName]:
    for path in (finding.object, *finding.also):
        yield canonicalize_name(path)
        yield from (canonicalize_name(owner.partition("==")[0]) for owner in owners.get(path, ()))
    for line in finding.evidence:
        if " requires " in line:
            yield canonicalize_name(line.partition(" ")[0])
    if (found := _OWNER.match(finding.message)) is not None:
        yield canonicalize_name(found[1])


def _owners(facts: Facts) -> Mapping[str, tuple[str, ...]]:
    site = facts[SiteFacts]
    return {site.within(each.path): each.owners for each in site.objects}


def together(names: Sequence[NormalizedName]) -> Iterator[tuple[NormalizedName, ...]]:
    """Yield the sets to try, the smallest first."""
    for size in range(1, min(len(names), _MOST_TOGETHER) + 1):
        yield from itertools.combinations(names, size)


def superfluous(facts: Facts) -> tuple[NormalizedName, ...]:
    """Return the owners of contested paths that nobody requires, where another owner is required."""
    installed = facts[Installed]
    markers = installed.tree.interpreter.markers()
    if markers is None:
        return ()
    held = demands(installed, facts.get(Wanted) or Wanted(), markers).held
    required = {demand.name for demand in held}
    found = []
    for conflict in installed.conflicts:
        names = {canonicalize_name(owner.partition("==")[0]) for owner in conflict.claims}
        if names & required and "/" in installed.within_site(conflict.path):
            found += sorted(names - required)
    return tuple(dict.fromkeys(found))


def missing(facts: Facts) -> tuple[NormalizedName, ...]:
    """Return the names that are required and not installed."""
    installed = facts[Installed]
    markers = installed.tree.interpreter.markers()
    if markers is None:
        return ()
    wanted = facts.get(Wanted) or Wanted()
    held = demands(installed, wanted, markers).held
    present = {*installed.by_name(), *wanted.excludes}
    return tuple(sorted({demand.name for demand in held} - present))


def renamed(facts: Facts, coming: Iterable[NormalizedName]) -> tuple[Change, ...]:
    """Return what has to go when some distributions come: their own older names."""
    present = facts[Installed].by_name()
    names = set(coming)
    return tuple(
        Change(name=each.before, before=present[each.before].version, after=None)
        for each in stack_tables().renamed
        if each.after in names and each.before in present
    )


def neighbours(installed: Installed, names: Iterable[NormalizedName]) -> tuple[Distribution, ...]:
    """Return the distributions that require one of ``names``, or that one of them requires; torch always."""
    markers = installed.tree.interpreter.markers() or {}
    wanted, present = set(names), installed.by_name()
    near: set[NormalizedName] = {canonicalize_name("torch")} - wanted
    for demand in demands(installed, Wanted(), markers).held if markers else ():
        by = canonicalize_name(demand.by.partition(" ")[0])
        if demand.name in wanted and by not in wanted:
            near.add(by)
        elif by in wanted and demand.name not in wanted:
            near.add(demand.name)
    return tuple(present[name] for name in sorted(near) if name in present)


def not_judged(before: Facts, after: Facts) -> tuple[str, ...]:
    """Say what a change by versions alone leaves open: objects that are not there yet, or may be helped."""
    count = len(before[LoadFacts].objects) - len(after[LoadFacts].objects)
    return (f"{counted(count, 'object')}: judged when the wheels are there",) if count else ()


def able(facts: Facts, theirs: Installed, verdict: Verdict) -> tuple[NormalizedName, ...]:
    """Return what of a reference may mend an environment, the likeliest first, at most six.

    That is what is missing or blamed, in whatever version the reference has it (its bytes may be others),
    and what goes with these there and has another version here.
    """
    mine, other = facts[Installed].by_name(), theirs.by_name()
    first = [name for name in (*missing(facts), *blamed(facts, verdict)) if name in other]
    near = (
        each.key
        for each in neighbours(theirs, first)
        if each.key in mine and mine[each.key].version != each.version
    )
    return tuple(dict.fromkeys((*first, *near)))[:_MOST_TAKEN]


def taken_over(facts: Facts, theirs: Installed, names: Iterable[NormalizedName]) -> tuple[Change, ...]:
    """Return what changes where distributions of a reference are laid over; their older names go."""
    mine, other = facts[Installed].by_name(), theirs.by_name()
    changes = tuple(
        Change(name=name, before=mine[name].version if name in mine else None, after=other[name].version)
        for name in names
    )
    return changes + renamed(facts, names)


def accepted(facts: Facts, before: Verdict, after: Verdict) -> bool:
    """Tell whether a change is worth proposing.

    The judge takes it, but for errors that were there before and are about no distribution (a driver, a
    missing system library): no change of distributions mends those.
    """
    if before.passed:
        return False
    if after.passed:
        return True
    known = {(each.rule, each.object) for each in before.findings}
    left = [each for each in after.findings if each.severity is Severity.ERROR]
    return (
        len(left) < sum(each.severity is Severity.ERROR for each in before.findings)
        and all((each.rule, each.object) in known for each in left)
        and not any(blamed_by(facts, each) for each in left)
    )


def blamed_by(facts: Facts, finding: Finding) -> tuple[NormalizedName, ...]:
    """Return the installed distributions that a finding is about."""
    present = facts[Installed].by_name()
    return tuple(dict.fromkeys(name for name in _named(finding, _owners(facts)) if name in present))
