"""The frame of rules: missing facts, gates, merging, waivers."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.checks.finding import Finding, Severity
from hostenv.checks.judge import Facts, Rule, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TODAY = dt.date(2026, 12, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiver:
    rule: str
    object: str
    reason: str = "known"
    until: dt.date = TODAY


def _old(facts: Facts) -> Iterator[Finding]:
    if facts[Driver].version < 580:
        yield OLD.finding(object="driver", message="too old", fix="install 580")


OLD = Rule(id="driver-old", severity=Severity.ERROR, kind="K29", reference="here", check=_old)


def emitting(*findings: Finding, gates: bool = False) -> Rule:
    def check(facts: Facts) -> Iterable[Finding]:
        del facts
        return findings

    return Rule(id="r", severity=Severity.NOTE, reference="here", check=check, unknown_gates=gates)


def finding(name: str, severity: Severity = Severity.ERROR, cause: str | None = None) -> Finding:
    return Finding(rule="r", severity=severity, object=name, message="bad", cause=cause, evidence=(name,))


def test_a_fault_is_an_error_and_fails_the_session() -> None:
    verdict = judge(Facts(Driver(version=570)), [OLD], today=TODAY)
    (found,) = verdict.findings
    assert (found.rule, found.kind, found.severity, found.fix) == (
        "driver-old",
        "K29",
        Severity.ERROR,
        "install 580",
    )
    assert not verdict.passed


def test_a_sound_host_is_silent() -> None:
    verdict = judge(Facts(Driver(version=580)), [OLD], today=TODAY)
    assert verdict.findings == ()
    assert verdict.passed


def test_a_fact_that_was_not_read_is_unknown_never_ok() -> None:
    (found,) = judge(Facts(), [OLD], today=TODAY).findings
    assert found.severity is Severity.UNKNOWN
    assert found.object == "Driver"


def test_unknown_fails_only_where_the_rule_says_so() -> None:
    unknown = finding("x", Severity.UNKNOWN)
    assert judge(Facts(), [emitting(unknown)], today=TODAY).passed
    assert not judge(Facts(), [emitting(unknown, gates=True)], today=TODAY).passed


def test_worst_comes_first() -> None:
    all_kinds = [finding(s.value, s) for s in (Severity.NOTE, Severity.WARNING, Severity.UNKNOWN)]
    verdict = judge(Facts(), [emitting(*all_kinds, finding("error"))], today=TODAY)
    assert [f.object for f in verdict.findings] == ["error", "unknown", "warning", "note"]


def test_findings_that_say_the_same_are_one_with_all_objects_and_evidence() -> None:
    (found,) = judge(Facts(), [emitting(finding("b"), finding("a"), finding("c"))], today=TODAY).findings
    assert (found.object, found.also, found.evidence) == ("a", ("b", "c"), ("a", "b", "c"))


def test_the_worst_of_one_cause_speaks_for_it() -> None:
    mild, bad = finding("mild", Severity.WARNING, "libx"), finding("bad", Severity.ERROR, "libx")
    (found,) = judge(Facts(), [emitting(mild, bad)], today=TODAY).findings
    assert (found.object, found.severity, found.also) == ("bad", Severity.ERROR, ("mild",))


def test_a_waiver_holds_on_its_last_day_by_rule_or_by_kind() -> None:
    for name in ("driver-old", "K29"):
        verdict = judge(Facts(Driver(version=1)), [OLD], [Waiver(rule=name, object="driver")], today=TODAY)
        assert verdict.passed
        assert [w.finding.object for w in verdict.waived] == ["driver"]


def test_a_waiver_covers_its_object_or_pattern_only() -> None:
    rule = emitting(finding("a/x.so"), finding("b/x.so"))
    verdict = judge(Facts(), [rule], [Waiver(rule="r", object="a/*")], today=TODAY)
    assert [f.object for f in verdict.findings] == ["b/x.so"]


def test_an_expired_waiver_turns_even_a_note_into_an_error() -> None:
    late = Waiver(rule="r", object="n", until=TODAY - dt.timedelta(days=1), reason="soon")
    verdict = judge(Facts(), [emitting(finding("n", Severity.NOTE))], [late], today=TODAY)
    assert [f.severity for f in verdict.findings] == [Severity.ERROR]
    assert "2026-11-30 (soon)" in verdict.findings[0].evidence[-1]
    assert not verdict.passed


def test_a_waiver_that_nothing_needs_is_noted_if_its_rule_ran() -> None:
    waivers = [Waiver(rule="r", object="gone"), Waiver(rule="other", object="gone")]
    verdict = judge(Facts(), [emitting()], waivers, today=TODAY)
    assert [(f.rule, f.severity) for f in verdict.findings] == [("waiver-unused", Severity.NOTE)]


def test_a_command_of_a_fix_can_be_typed_as_it_stands() -> None:
    rule = Rule(
        id="stale",
        severity=Severity.ERROR,
        reference="",
        check=lambda _: [
            Finding(rule="stale", severity=Severity.ERROR, object="a", message="", fix="nox -s lock -- HOST"),
            Finding(rule="stale", severity=Severity.ERROR, object="b", message="no fix"),
        ],
    )
    verdict = judge(Facts(), [rule], today=dt.date(2026, 1, 1))
    assert [finding.fix for finding in verdict.on("ct200").findings] == ["nox -s lock -- ct200", None]
    assert not verdict.on("ct200").passed
