"""Metadata closure: every requirement of every installed distribution is met on that host.

Source: the dependency-specifiers and core-metadata specifications of packaging.python.org. Unlike
``pip check`` and ``uv pip check`` this judges for the host's markers, follows extras that were asked for, and
knows the spec's overrides and excludes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from hostenv.checks.finding import Severity
from hostenv.checks.judge import MissingFactError, Rule
from hostenv.facts.distributions import Distribution, Installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts


_MOST_FINDINGS = 50
"""Findings of the closure that are told one by one; lines of evidence of one finding."""
_LONGEST_LINE = 300
"""Characters of a requirement that cannot be read, as evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What the spec says about requirements: its own, and how it changes those of distributions.

    An override stands in for every requirement of its name; an exclude leaves its name out wherever it is
    required (both as uv does).
    """

    requires: tuple[Requirement, ...] = ()
    overrides: tuple[Requirement, ...] = ()
    excludes: tuple[NormalizedName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One requirement that holds on this host, and who has it (``sglang 0.5.15.post1`` or ``the spec``)."""

    by: str
    requirement: Requirement

    @property
    def name(self) -> NormalizedName:
        """The required distribution."""
        return canonicalize_name(self.requirement.name)

    @property
    def line(self) -> str:
        """The demand as one line of evidence."""
        return f"{self.by} requires {self.requirement}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """All requirements that hold, and lines that are none."""

    held: tuple[Demand, ...]
    unreadable: tuple[tuple[Distribution, str], ...]


def demands(installed: Installed, wanted: Wanted, markers: Mapping[str, str]) -> Demands:
    """Return the requirements that hold under these markers.

    Extras count where somebody asks for them: the spec, or a requirement that itself holds.
    """
    lines, unreadable = _parse(installed, markers)
    own = tuple(
        Demand(by="the spec", requirement=each) for each in wanted.requires if _holds(each, markers, ())
    )
    extras: dict[NormalizedName, set[str]] = defaultdict(set)
    for demand in own:
        extras[demand.name] |= demand.requirement.extras
    while True:
        held = [
            Demand(by=f"{each.name} {each.version}", requirement=requirement)
            for each, requirement, always in lines
            if always or (each.key in extras and _holds(requirement, markers, extras[each.key]))
        ]
        before = sum(map(len, extras.values()))
        for demand in held:
            if demand.requirement.extras:
                extras[demand.name] |= demand.requirement.extras
        if sum(map(len, extras.values())) == before:
            return Demands(held=(*own, *held), unreadable=unreadable)


def _parse(
    installed: Installed, markers: Mapping[str, str]
) -> tuple[list[tuple[Distribution, Requirement, bool]], tuple[tuple[Distribution, str], ...]]:
    """Return the requirements, and whether each holds without any extra; and the lines that are none."""
    lines: list[tuple[Distribution, Requirement, bool]] = []
    unreadable: list[tuple[Distribution, str]] = []
    for each in installed.distributions:
        for line in each.requires:
            read = _requirement(line, markers)
            if read is None:
                unreadable.append((each, line))
            else:
                lines.append((each, *read))
    return lines, tuple(unreadable)


def _requirement(line: str, markers: Mapping[str, str]) -> tuple[Requirement, bool] | None:
    """Return a requirement that can also be judged, and whether it holds where no extra is asked for.

    Numbers are converted only when it is judged, and may be too long: ``int`` takes 4300 digits, and at
    least 640 whatever it is set to. The parser of markers follows parentheses as deep as they go.
    """
    try:
        requirement = Requirement(line)
        holds = _holds(requirement, markers, ())
        if len(line) >= sys.int_info.str_digits_check_threshold:
            for specifier in requirement.specifier:
                specifier.contains("1", prereleases=True)
    except (ValueError, RecursionError):
        return None
    return requirement, holds


def _holds(requirement: Requirement, markers: Mapping[str, str], extras: Iterable[str]) -> bool:
    if requirement.marker is None:
        return True
    names = {canonicalize_name(extra) for extra in extras} | {*extras, ""}
    return any(requirement.marker.evaluate({**markers, "extra": extra}) for extra in names)


def _closure(facts: Facts) -> Iterator[Finding]:
    """Yield what is unmet: all notes, and of errors and unknowns so many that a person can read them."""
    found = list(_every(facts))
    own = sorted(
        (each for each in found if each.rule == CLOSURE.id),
        key=lambda each: each.severity != CLOSURE.severity,
    )
    yield from (each for each in found if each.rule != CLOSURE.id)
    yield from own[:_MOST_FINDINGS]
    rest = own[_MOST_FINDINGS:]
    if rest:
        yield CLOSURE.finding(
            object=f"and {len(rest)} more",
            severity=rest[0].severity,
            message=f"{len(rest)} more of these are not told one by one",
            evidence=_clipped([f"{each.object}: {each.message}" for each in rest]),
            fix="mend those above first, then check again",
        )


def _clipped(lines: Sequence[str]) -> Sequence[str]:
    """Return the first lines of evidence, and how many more there are."""
    rest = len(lines) - _MOST_FINDINGS
    return lines if rest <= 0 else [*lines[:_MOST_FINDINGS], f"and {rest} more"]


def _every(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    wanted = facts.get(Wanted) or Wanted()
    found = demands(installed, wanted, _markers(installed))
    by_name: dict[NormalizedName, list[Demand]] = defaultdict(list)
    for demand in found.held:
        by_name[demand.name].append(demand)
    overrides = {canonicalize_name(each.name): each for each in wanted.overrides}
    present = installed.by_name()
    for name, of_name in sorted(by_name.items()):
        if name in overrides:
            yield from _overridden(overrides[name], of_name, present.get(name), _markers(installed))
        elif name in present:
            yield from _unmet(of_name, present[name])
        else:
            yield _absent(name, of_name, excluded=name in wanted.excludes)
    for each, line in found.unreadable:
        yield CLOSURE.finding(
            object=each.name,
            severity=Severity.UNKNOWN,
            message=f"{each.name} {each.version} states requirements that cannot be read",
            evidence=(f"{each.info}: Requires-Dist: {line[:_LONGEST_LINE]}",),
        )


def _markers(installed: Installed) -> Mapping[str, str]:
    markers = installed.tree.interpreter.markers()
    if markers is None:
        raise MissingFactError(type(installed.tree.interpreter))
    return markers


def _unmet(of_name: list[Demand], present: Distribution) -> Iterator[Finding]:
    unmet = [demand for demand in of_name if not satisfies(present.version, demand.requirement)]
    if not unmet:
        return
    allowed = " and ".join(sorted({str(demand.requirement.specifier) for demand in unmet}))
    yield CLOSURE.finding(
        object=present.name,
        message=f"{present.name} {present.version} is installed where {allowed} is required: "
        "calls into it may fail at import or later",
        evidence=_clipped([demand.line for demand in unmet]),
        fix=f"add a constraint or an override for {present.name} to the spec, then: nox -s lock -- HOST",
    )


def _absent(name: NormalizedName, of_name: list[Demand], *, excluded: bool) -> Finding:
    if excluded:
        return EXCLUDED.finding(
            object=name,
            message="left out by the spec's excludes: code that imports it fails when it gets there",
            evidence=(f"{name}: required by {', '.join(sorted({demand.by for demand in of_name}))}",),
            cause="metadata-excluded",
        )
    return CLOSURE.finding(
        object=name,
        message=f"{name} is required and not installed: importing it fails",
        evidence=_clipped([demand.line for demand in of_name]),
        fix=f'add "{name}" to requires (or to excludes) in the spec, then: nox -s lock -- HOST',
    )


def _overridden(
    override: Requirement, of_name: list[Demand], present: Distribution | None, markers: Mapping[str, str]
) -> Iterator[Finding]:
    """Judge by the override; where it goes against what was required, say so."""
    if not _holds(override, markers, ()):
        return
    by_spec = Demand(by="the spec's override", requirement=override)
    if present is None:
        yield _absent(by_spec.name, [by_spec, *of_name], excluded=False)
        return
    yield from _unmet([by_spec], present)
    against = [demand.line for demand in of_name if not satisfies(present.version, demand.requirement)]
    if against:
        yield OVERRIDDEN.finding(
            object=present.name,
            message=f"{present.name} {present.version} is there by an override, against what is required",
            evidence=_clipped([by_spec.line, *against]),
        )


def satisfies(version: str, requirement: Requirement) -> bool:
    """Tell whether an installed version meets a requirement; pre-releases count, for they are installed.

    A version that is none (a legacy one, or one with more digits than a number may have) meets only a
    requirement without a specifier.
    """
    if not requirement.specifier:
        return True
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except ValueError:  # InvalidVersion is one; so is what int says of 5000 digits
        return False


def _duplicates(facts: Facts) -> Iterator[Finding]:
    by_name: dict[NormalizedName, list[Distribution]] = defaultdict(list)
    for each in facts[Installed].distributions:
        by_name[each.key].append(each)
    for name, several in by_name.items():
        if len(several) > 1:
            yield DUPLICATE.finding(
                object=name,
                message=f"{name} is installed {len(several)} times: which version is found is chance",
                evidence=[f"{each.version}: {each.info}" for each in several],
                fix="build the environment anew; nothing but an unfinished upgrade leaves this",
            )


def _requires_python(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    version = _markers(installed)["python_full_version"]
    for each in installed.distributions:
        if each.requires_python is None:
            continue
        try:
            fits = SpecifierSet(each.requires_python).contains(version, prereleases=True)
        except ValueError:  # InvalidSpecifier is one; so is what int says of 5000 digits
            yield PYTHON.finding(
                object=each.name,
                severity=Severity.UNKNOWN,
                message=f"{each.name} {each.version} states a Requires-Python that cannot be read",
                evidence=(f"{each.info}: Requires-Python: {each.requires_python[:_LONGEST_LINE]}",),
            )
            continue
        if not fits:
            yield PYTHON.finding(
                object=each.name,
                message=f"{each.name} {each.version} is not for Python {version}: importing it may fail",
                evidence=(f"Requires-Python: {each.requires_python}",),
                fix="lock for another Python (python in the spec), or constrain the distribution",
            )


CLOSURE = Rule(
    id="metadata-closure",
    severity=Severity.ERROR,
    kind="K47",
    reference="https://packaging.python.org/en/latest/specifications/dependency-specifiers/",
    check=_closure,
    unknown_gates=True,
)
EXCLUDED = Rule(
    id="metadata-excluded", severity=Severity.NOTE, reference=CLOSURE.reference, check=lambda _: ()
)
"""Found by the closure: it says what the spec's ``excludes`` leave open."""
OVERRIDDEN = Rule(
    id="metadata-overridden", severity=Severity.NOTE, reference=CLOSURE.reference, check=lambda _: ()
)
"""Found by the closure: it names the overrides that matter."""
DUPLICATE = Rule(
    id="metadata-duplicate",
    severity=Severity.ERROR,
    kind="K10",
    reference="https://packaging.python.org/en/latest/specifications/recording-installed-packages/",
    check=_duplicates,
)
PYTHON = Rule(
    id="metadata-python",
    severity=Severity.ERROR,
    kind="K47",
    reference="https://packaging.python.org/en/latest/specifications/core-metadata/#requires-python",
    check=_requires_python,
)

RULES = (CLOSURE, EXCLUDED, OVERRIDDEN, DUPLICATE, PYTHON)
