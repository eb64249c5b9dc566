"""The frame in which rules live: facts by type, rules, and the verdict over all of them.

A rule is a pure function over :class:`Facts` and a value that describes it. Adding one is adding a function
and its test, and naming it in :data:`hostenv.checks.rules.RULES`::

    def _too_old(facts: Facts) -> Iterator[Finding]:
        driver = facts[DriverFacts]            # not read? The judge then says "unknown", never "ok"
        if driver.version < MINIMUM:
            yield TOO_OLD.finding(
                object="driver",
                message=f"every CUDA call fails at the first launch: the driver is {driver.version}",
                evidence=(f"needed: {MINIMUM} (CUDA 13.0 release notes, table 3)",),
                fix="install a newer driver, or lock torch for CUDA 12",
            )

    TOO_OLD = Rule(
        id="driver-too-old", severity=Severity.ERROR, kind="K29",
        reference="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/", check=_too_old,
    )
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

from hostenv.checks import waivers as waiving
from hostenv.checks.finding import Finding, Severity

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostenv.checks.waivers import Waived, Waiver

T = TypeVar("T")

_WORST_FIRST = (Severity.ERROR, Severity.UNKNOWN, Severity.WARNING, Severity.NOTE)


class MissingFactError(LookupError):
    """A rule asked for a fact that was not read. Only the judge catches it."""

    def __init__(self, kind: type[object]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


class Facts:
    """What is known about one environment on one host, found by type.

    Holds at most one value of each type; a later one replaces an earlier one.
    """

    __slots__ = ("_known",)

    def __init__(self, *known: object) -> None:
        self._known: Mapping[type[object], object] = {type(value): value for value in known}

    def __getitem__(self, kind: type[T]) -> T:
        """Return the fact of that type; :class:`MissingFactError` otherwise: let it pass, the judge tells."""
        if kind not in self._known:
            raise MissingFactError(kind)
        return cast("T", self._known[kind])

    def but(self, *known: object) -> Facts:
        """Return the same facts with some of them replaced."""
        return Facts(*self._known.values(), *known)

    def get(self, kind: type[T]) -> T | None:
        """Return the fact of that type, or ``None``: for facts that a rule can do without."""
        return cast("T | None", self._known.get(kind))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One kind of fault and how it is seen.

    ``severity`` is what its findings have unless they say otherwise; ``kind`` the catalogue's number;
    ``reference`` where the rule comes from (document, standard or thread). ``unknown_gates``: a session
    fails too when this rule could not know.
    """

    id: str
    severity: Severity
    reference: str
    check: Callable[[Facts], Iterable[Finding]]
    kind: str | None = None
    unknown_gates: bool = False

    def finding(  # noqa: PLR0913  a finding's fields, all by keyword
        self,
        *,
        object: str,  # noqa: A002  the field's name, also in the spec's waivers
        message: str,
        severity: Severity | None = None,
        evidence: Sequence[str] = (),
        fix: str | None = None,
        cause: str | None = None,
    ) -> Finding:
        """Return a finding of this rule."""
        return Finding(
            rule=self.id,
            severity=severity or self.severity,
            object=object,
            message=message,
            kind=self.kind,
            evidence=tuple(evidence),
            fix=fix,
            cause=cause,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What all rules say together: findings worst first, what was waived, and whether a session may go on."""

    findings: tuple[Finding, ...]
    waived: tuple[Waived, ...]
    passed: bool

    def on(self, host: str) -> Verdict:
        """Return the same with ``HOST`` in the commands of its fixes, which no rule knows, set to a name."""
        named = (
            replace(each, fix=each.fix.replace("-- HOST", f"-- {host}")) if each.fix else each
            for each in self.findings
        )
        return replace(self, findings=tuple(named))


def judge(facts: Facts, rules: Iterable[Rule], waivers: Sequence[Waiver] = (), *, today: dt.date) -> Verdict:
    """Run every rule over the facts and return the verdict.

    A session passes when no error is left, and no ``unknown`` of a rule whose ``unknown_gates`` is set.
    Findings with one cause become one (:func:`merged`); waivers are applied before, object by object.
    """
    ran = tuple(rules)
    found = [finding for rule in ran for finding in _run(rule, facts)]
    outcome = waiving.apply(found, waivers, {r.id for r in ran} | {r.kind for r in ran if r.kind}, today)
    gating = {rule.id for rule in ran if rule.unknown_gates}
    return Verdict(
        findings=merged(outcome.findings),
        waived=outcome.waived,
        passed=not any(
            finding.severity is Severity.ERROR
            or (finding.severity is Severity.UNKNOWN and finding.rule in gating)
            for finding in outcome.findings
        ),
    )


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, worst first, those with one cause as one.

    One cause: the same ``cause`` where it is given, else the same rule, severity, message and fix. The
    worst speaks for all; the other objects stand in ``also``, the evidence of all is kept once.
    """
    groups: dict[object, list[Finding]] = {}
    for finding in sorted(findings, key=_order):
        key = finding.cause or (finding.rule, finding.severity, finding.message, finding.fix)
        groups.setdefault(key, []).append(finding)
    return tuple(_one(group) for group in groups.values())


def _one(group: Sequence[Finding]) -> Finding:
    first, *others = group
    objects = dict.fromkeys(name for finding in group for name in (finding.object, *finding.also))
    evidence = dict.fromkeys(line for finding in group for line in finding.evidence)
    del objects[first.object]
    return replace(first, also=tuple(objects), evidence=tuple(evidence)) if others else first


def _run(rule: Rule, facts: Facts) -> tuple[Finding, ...]:
    try:
        return tuple(rule.check(facts))
    except MissingFactError as error:
        return (
            rule.finding(
                object=error.kind.__name__,
                severity=Severity.UNKNOWN,
                message=f"not judged: {error.kind.__name__} was not read on this host",
            ),
        )


def _order(finding: Finding) -> tuple[int, str, str]:
    return _WORST_FIRST.index(finding.severity), finding.rule, finding.object
