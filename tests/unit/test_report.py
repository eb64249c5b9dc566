"""Findings as people and programs see them."""

from __future__ import annotations

import datetime as dt
import io
import json
import pathlib
import re
from typing import TYPE_CHECKING

from rich.console import Console

from hostenv.checks.finding import Finding, Severity
from hostenv.checks.judge import Verdict
from hostenv.checks.waivers import Waived
from hostenv.errors import HostError
from hostenv.report.findings import console, findings_document, print_verdict
from hostenv.report.lines import error_lines, failed, line
from hostenv.report.live import Live
from kit.schema import violations

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs/schema/findings.schema.json").read_text(encoding="utf-8")
)
FIX = "nox -s lock -- " + "a-host-with-a-name-that-is-long " * 4 + "--upgrade numpy"
FINDING = Finding(
    rule="metadata-closure",
    severity=Severity.ERROR,
    kind="K47",
    object="numpy",
    message="numpy is required and not installed: importing it fails",
    evidence=("sglang 0.5.15 requires numpy[all]>=2",),
    fix=FIX,
    also=("a", "b", "c", "d", "e", "f"),
)
NOTE = Finding(rule="r", severity=Severity.NOTE, object="odd\nname\udcff[red]", message="[bold]not markup")
VERDICT = Verdict(
    findings=(FINDING, NOTE),
    waived=(Waived(finding=NOTE, reason="why", until=dt.date(2027, 1, 31)),),
    passed=False,
)


def printed(verdict: Verdict) -> str:
    out = io.StringIO()
    print_verdict(verdict, console(out))
    return out.getvalue()


def test_json_keeps_to_its_published_schema() -> None:
    document = json.loads(json.dumps(findings_document(VERDICT)))
    assert violations(document, SCHEMA) == []
    assert document["version"] == SCHEMA["properties"]["version"]["const"]
    assert document["findings"][0]["fix"] == FIX


def test_the_schema_refuses_what_is_not_in_it() -> None:
    document = findings_document(VERDICT) | {"passed": 1, "extra": None}
    assert len(violations(document, SCHEMA)) == 2


def test_worst_first_and_a_fix_can_be_copied_from_one_line() -> None:
    lines = printed(VERDICT).splitlines()
    assert lines[0].startswith("error")
    assert f"         → {FIX}" in lines
    assert lines[-1] == "checks failed: 1 error, 1 note, 1 waived"


def test_away_from_a_terminal_there_are_no_control_characters() -> None:
    text = printed(VERDICT)
    assert "\x1b" not in text
    assert "[bold]not markup" in text
    assert "odd\\nname\\udcff[red]" in text
    text.encode("utf-8")


def test_a_terminal_gets_colour() -> None:
    out = io.StringIO()
    print_verdict(VERDICT, Console(file=out, force_terminal=True, color_system="standard", width=80))
    assert "\x1b[" in out.getvalue()


def test_a_narrow_terminal_folds_paths_and_cuts_nothing() -> None:
    out = io.StringIO()
    path = "very/long/" * 12 + "end.so"
    long = Finding(rule="r", severity=Severity.WARNING, object=path, message="m")
    print_verdict(Verdict(findings=(long,), waived=(), passed=True), Console(file=out, width=60))
    assert "…" not in out.getvalue()
    assert "".join(out.getvalue().split()).count("very/long/") >= 8


def test_nothing_found_is_one_line() -> None:
    assert printed(Verdict(findings=(), waived=(), passed=True)) == "checks passed: nothing found\n"


def on_terminal(width: int, show: Callable[[Console], None]) -> list[str]:
    out = io.StringIO()
    show(Console(file=out, force_terminal=True, color_system=None, width=width, highlight=False))
    return out.getvalue().splitlines()


PLAN = "fetch    128 of 128 wheels, 265.1 MB, into /srv/a/long/path/to/wheelhouse and then some"


def test_a_line_is_wrapped_between_words_below_its_own_words() -> None:
    assert on_terminal(40, lambda out: line(PLAN, out, indent=2)) == [
        "  fetch    128 of 128 wheels, 265.1 MB,",
        "           into",
        "           /srv/a/long/path/to/wheelhouse",
        "           and then some",
    ]


def test_a_word_longer_than_the_terminal_stays_whole() -> None:
    path = "/srv/" + "x" * 100
    assert f"           {path}" in on_terminal(40, lambda out: line(f"build    in {path}", out, indent=2))


def test_a_log_has_every_line_whole() -> None:
    out = io.StringIO()
    line(PLAN, console(out), indent=2)
    assert out.getvalue() == f"  {PLAN}\n"


def test_an_error_names_its_host_once_and_keeps_control_characters_away() -> None:
    error = HostError("ct200: no room\x1b[2J on a disk", hint="make some")
    assert on_terminal(80, lambda out: error_lines(error, "ct200", out, head=failed("ct200"))) == [
        "✗ ct200  no room\\x1b[2J on a disk",
        "  → make some",
    ]


def test_progress_fits_into_eighty_columns() -> None:
    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=True, color_system=None, width=80, legacy_windows=False))
    with live:
        live.phase("a-host-with-name", "overlays", 265_100_000)
        live.advance("a-host-with-name", 110_000_000)
        live.phase("other", "install")
        assert live._progress
        live._progress.refresh()
        live.finished("a-host-with-name")
        live.finished("other")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    rows = [row.strip() for row in re.split(r"[\r\n]", shown) if "overlays" in row]
    assert any("110.0 MB of 265.1 MB" in row for row in rows)
    assert all(len(row) <= 80 for row in rows)
    assert "?" not in shown, "an unknown size is not told"
