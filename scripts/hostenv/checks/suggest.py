"""The smallest change that makes an environment pass: which distributions to try, and facts as they would be.

Nothing is looked up here. A proposal is what the same judge says of the changed facts; what it would still
reject is none.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.checks.finding import Severity
from hostenv.checks.metadata import Wanted, demands
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.objects import LoadFacts
from hostenv.facts.site import SiteFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts, Verdict
    from hostenv.facts.distributions import Distribution
    from hostenv.facts.objects import Load

_MOST_BLAMED = 5
_MOST_TOGETHER = 2
_NVIDIA = re.compile(
    r"\A(?:lib)?(?:cuda|cudnn|cublas|cufft|cusparse|cusolver|curand|nccl|nvrtc|nvJitLink|nvshmem)"
)
_TORCH = re.compile(r"\Alib(?:torch|c10|shm)|_Z\w*?(?:3c10|2at|5torch|6caffe2)|\Aaoti_torch_")
_RUNTIMES = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
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
    """

    changes: tuple[Change, ...]
    source: str
    open: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of ``[env]`` that make the change in a spec."""
        pins = [f'"{each.name}=={each.after}"' for each in self.changes if each.after]
        out = [f'"{each.name}"' for each in self.changes if each.after is None]
        return (
            *([f"constraints = [{', '.join(pins)}]"] if pins else []),
            *([f"excludes = [{', '.join(out)}]"] if out else []),
        )


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


def changed_by_versions(
    facts: Facts, changes: Sequence[Change], resolved: Mapping[NormalizedName, str]
) -> Facts:
    """Return the facts after changes of which only the versions are known.

    Objects of a changed distribution are left out: they cannot be judged before they are there. So are
    objects whose missing library or symbol a changed distribution may bring. ``resolved``: versions of all
    that was resolved with them; they tell for which CUDA another torch is.
    """
    installed, site, loads = facts[Installed], facts[SiteFacts], facts[LoadFacts]
    gone = {each.name for each in changes}
    out = {each.name for each in changes if each.after is None}
    kept = tuple(each for each in installed.distributions if each.key not in gone)
    template = {each.key: each for each in installed.distributions}
    new = tuple(
        _unseen(template.get(each.name, installed.distributions[0]), each.name, each.after)
        for each in changes
        if each.after
    )
    theirs = {
        site.within(each.path)
        for each in site.objects
        if each.owners and {canonicalize_name(owner.partition("==")[0]) for owner in each.owners} & gone
    }
    versions = {each.name: each.after for each in changes if each.after}
    return facts.but(
        replace(
            installed,
            distributions=(*kept, *new),
            conflicts=tuple(each for each in installed.conflicts if not _claimed_by(each.claims, out)),
        ),
        replace(
            site,
            objects=tuple(each for each in site.objects if site.within(each.path) not in theirs),
            operators=replace(site.operators, registered={})
            if gone & {canonicalize_name(name) for name in site.operators.makers}
            else site.operators,
        ),
        replace(
            loads,
            preload=None if "torch" in gone or _may_help(gone, loads.preload) else loads.preload,
            objects=tuple(
                each
                for each in loads.objects
                if each.path not in theirs and not _may_help(gone, each.verdict)
            ),
            installed={name: version for name, version in loads.installed.items() if name not in gone}
            | versions,
            cuda=_cuda(resolved) or loads.cuda if "torch" in gone else loads.cuda,
        ),
    )


def _unseen(template: Distribution, name: NormalizedName, version: str) -> Distribution:
    """Return a distribution of which only the name and the version are known; its resolver saw the rest."""
    return replace(
        template,
        name=str(name),
        version=version,
        requires=(),
        requires_python=None,
        tags=(),
        editable=False,
        mismatched=(),
        missing=(),
        unverified=(),
        problems=(),
    )


def _cuda(resolved: Mapping[NormalizedName, str]) -> str | None:
    """Return the CUDA that a resolved torch brings (``13.0``)."""
    for name in _RUNTIMES:
        if (version := resolved.get(canonicalize_name(name))) is not None:
            return ".".join(version.split(".")[:2])
    return None


def _may_help(names: set[NormalizedName], load: Load | None) -> bool:
    """Tell whether what an object lacks is something that one of ``names`` may bring."""
    if load is None or load.loads is True:
        return False
    of_nvidia = bool(_NVIDIA.search(load.missing_library or load.symbol or ""))
    of_torch = bool(_TORCH.search(load.missing_library or load.symbol or ""))
    return (of_torch and "torch" in names) or (
        of_nvidia and any(name == "torch" or name.startswith("nvidia-") for name in names)
    )


def _claimed_by(claims: Mapping[str, str], names: set[NormalizedName]) -> bool:
    return bool({canonicalize_name(owner.partition("==")[0]) for owner in claims} & names)


def not_judged(before: Facts, after: Facts) -> tuple[str, ...]:
    """Say what the changed facts leave open: objects that are not there yet, or may be helped."""
    count = len(before[LoadFacts].objects) - len(after[LoadFacts].objects)
    return (f"{count} objects: judged when the wheels are there",) if count else ()


def laid_over(facts: Facts, reference: Facts, names: Iterable[NormalizedName], loads: LoadFacts) -> Facts:
    """Return the facts after whole distributions of a reference were laid over.

    ``loads`` is what the loader says of it: the simulation on the files as they would lie.
    """
    wanted = set(names)
    installed, theirs = facts[Installed], reference[Installed]
    site, other = facts[SiteFacts], reference[SiteFacts]
    new = [each for each in theirs.distributions if each.key in wanted]
    taken_over = wanted & {
        canonicalize_name(name) for name in (*site.operators.makers, *other.operators.makers)
    }
    operators = replace(
        other.operators if taken_over else site.operators,
        sources={
            **{path: each for path, each in site.operators.sources.items() if _key(each.owner) not in wanted},
            **{path: each for path, each in other.operators.sources.items() if _key(each.owner) in wanted},
        },
    )
    return facts.but(
        loads,
        replace(
            installed,
            distributions=(*(each for each in installed.distributions if each.key not in wanted), *new),
            conflicts=tuple(each for each in installed.conflicts if not _claimed_by(each.claims, wanted)),
        ),
        replace(
            site,
            objects=(
                *(each for each in site.objects if not _owned(each.owners, wanted)),
                *(each for each in other.objects if _owned(each.owners, wanted)),
            ),
            operators=operators,
        ),
    )


def laid_objects(
    facts: Facts, reference: Facts, venv: str, names: Iterable[NormalizedName]
) -> dict[str, str | None]:
    """Return what ``abi.objects`` is to see: path below site-packages → the reference's file, or nothing."""
    wanted = set(names)
    site, other = facts[SiteFacts], reference[SiteFacts]
    gone: dict[str, str | None] = {
        site.within(each.path): None for each in site.objects if _owned(each.owners, wanted)
    }
    return gone | {
        other.within(each.path): f"{venv}/{each.path}"
        for each in other.objects
        if _owned(each.owners, wanted)
    }


def differing(facts: Facts, reference: Facts, names: Iterable[NormalizedName]) -> tuple[Change, ...]:
    """Return how the versions of ``names`` differ between an environment and a reference that has them."""
    mine, theirs = facts[Installed].by_name(), reference[Installed].by_name()
    return tuple(
        Change(name=name, before=mine[name].version if name in mine else None, after=theirs[name].version)
        for name in names
        if name in theirs and (name not in mine or mine[name].version != theirs[name].version)
    )


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


def _owned(owners: Iterable[str], wanted: set[NormalizedName]) -> bool:
    return bool({_key(owner) for owner in owners} & wanted)


def _key(owner: str) -> NormalizedName:
    return canonicalize_name(owner.partition("==")[0])
