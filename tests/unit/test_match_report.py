"""What ``match`` shows of very many distributions, and of names that would steer a terminal."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from hostenv import commands
from hostenv.checks.cause import Cause
from hostenv.checks.comparison import Comparison, Differing, Group
from hostenv.facts.manifest import Entry
from hostenv.report import match
from hostenv.workflows.match import Matched, MatchReport, TargetResult
from kit.facts import INTERPRETER

ESCAPE = "x\x1b[31m"


def report(groups: int) -> MatchReport:
    reference = Matched(
        label=ESCAPE,
        path=ESCAPE,
        build=None,
        fingerprint=None,
        interpreter=INTERPRETER,
        files=1,
        bytes=1,
        read=0,
    )
    differing = Differing(
        path=f"lib/{ESCAPE}",
        cause=Cause.EDITED,
        detail=ESCAPE,
        demanded=True,
        reference=Entry(0o644, 1, "a" * 64),
        target=Entry(0o644, 1, "b" * 64),
    )
    found = tuple(
        Group(
            distribution=f"demo-{number}",
            reference_version=ESCAPE,
            target_version="2",
            differing=(dataclasses.replace(differing, path=f"lib/path-{number}"), differing),
        )
        for number in range(groups)
    )
    target = TargetResult(
        label=ESCAPE, seconds=0.0, comparison=Comparison(groups=found), interpreter={"libc": (ESCAPE, "1")}
    )
    return MatchReport(reference=reference, targets=(target,))


def printed(found: MatchReport) -> str:
    out = io.StringIO()
    match.print_report(found, Console(file=out, width=200))
    return out.getvalue()


def test_no_name_or_version_steers_the_terminal() -> None:
    found = report(2)
    assert "\x1b" not in printed(found)
    assert r"x\x1b[31m" in printed(found)
    assert "\x1b" not in (match.failure_line(found) or "")
    assert commands.shown(f"a: {ESCAPE}\n  → b") == "a: x\\x1b[31m\n  → b"


def test_of_very_many_distributions_the_last_ones_have_no_paths_and_it_is_said() -> None:
    told = printed(report(match.LISTED + 7))
    assert f"demo-{match.LISTED + 6}" in told
    assert f"path-{match.LISTED - 1}" in told
    assert f"path-{match.LISTED}" not in told
    assert "the paths of the last 7 distributions are not shown" in told
    assert "are not shown" not in printed(report(match.LISTED))
