"""Waivers: findings that a spec accepts for a reason and until a date (``checks.allow``)."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from hostenv.checks.finding import Finding, Severity

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterable, Sequence


class Waiver(Protocol):
    """What a spec's entry of ``checks.allow`` says.

    ``rule`` is a rule's id or the catalogue's kind, ``object`` the finding's object or a pattern of
    :mod:`fnmatch`; ``until`` is the last day on which the waiver holds.
    """

    @property
    def rule(self) -> str:
        """A rule's id, or a kind."""

    @property
    def object(self) -> str:
        """What is waived."""

    @property
    def reason(self) -> str:
        """Why it is accepted."""

    @property
    def until(self) -> dt.date:
        """The last day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waived:
    """A finding that a waiver covers; shown in the receipt."""

    finding: Finding
    reason: str
    until: dt.date


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The findings that are left, and those that are waived."""

    findings: tuple[Finding, ...]
    waived: tuple[Waived, ...]


def apply(
    findings: Iterable[Finding], waivers: Sequence[Waiver], ran: Collection[str], today: dt.date
) -> Outcome:
    """Sort findings into those that stand and those that are waived.

    A finding whose waiver has expired stands, and is an error whatever it was before: somebody promised to
    be done by then. A waiver that nothing needs any more becomes a note, if its rule ran (``ran``: ids and
    kinds), so that specs do not collect dead ones.
    """
    left: list[Finding] = []
    waived: list[Waived] = []
    used: set[int] = set()
    for finding in findings:
        matching = [number for number, waiver in enumerate(waivers) if covers(waiver, finding)]
        used.update(matching)
        waiver = max((waivers[number] for number in matching), key=lambda w: w.until, default=None)
        if waiver is None:
            left.append(finding)
        elif waiver.until < today:
            left.append(_expired(finding, waiver))
        else:
            waived.append(Waived(finding=finding, reason=waiver.reason, until=waiver.until))
    left += [_unused(w) for number, w in enumerate(waivers) if number not in used and w.rule in ran]
    return Outcome(findings=tuple(left), waived=tuple(waived))


def covers(waiver: Waiver, finding: Finding) -> bool:
    """Tell whether the waiver names this finding's rule (or kind) and object."""
    return waiver.rule in {finding.rule, finding.kind} and (
        waiver.object == finding.object or fnmatch.fnmatchcase(finding.object, waiver.object)
    )


def _expired(finding: Finding, waiver: Waiver) -> Finding:
    line = f"waived until {waiver.until.isoformat()} ({waiver.reason}); that day has passed"
    return replace(finding, severity=Severity.ERROR, evidence=(*finding.evidence, line))


def _unused(waiver: Waiver) -> Finding:
    return Finding(
        rule="waiver-unused",
        severity=Severity.NOTE,
        object=waiver.object,
        message=f"the waiver of {waiver.rule} matches no finding",
        evidence=(f"reason given: {waiver.reason}",),
        fix="remove it from checks.allow",
    )
