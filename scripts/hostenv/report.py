"""What a person, or a program reading JSON, sees of a session."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hostenv.checks.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from hostenv.checks.judge import Verdict

FINDINGS_VERSION = 1
"""Version of the document that ``docs/schema/findings.schema.json`` describes."""

PLAIN_WIDTH = 100
"""Columns where there is no terminal: wide enough for paths, narrow enough for a CI's page."""

_STYLES = {
    Severity.ERROR: "bold red",
    Severity.UNKNOWN: "magenta",
    Severity.WARNING: "yellow",
    Severity.NOTE: "dim",
}
_ALSO_SHOWN = 4


def console(file: IO[str] | None = None) -> Console:
    """Return a console: colour and full width on a terminal, plain text of :data:`PLAIN_WIDTH` elsewhere."""
    made = Console(file=file, highlight=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(
            file=file, highlight=False, emoji=False, no_color=True, color_system=None, width=PLAIN_WIDTH
        )
    return made


def findings_document(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as what ``--json`` writes (``docs/schema/findings.schema.json``)."""
    return {
        "version": FINDINGS_VERSION,
        "passed": verdict.passed,
        "findings": [_finding_document(finding) for finding in verdict.findings],
        "waived": [
            {
                "finding": _finding_document(waived.finding),
                "reason": waived.reason,
                "until": waived.until.isoformat(),
            }
            for waived in verdict.waived
        ],
    }


def print_verdict(verdict: Verdict, out: Console) -> None:
    """Print the findings as a table, worst first, then what can be typed, then one line that counts them.

    A fix stands on a line of its own, never wrapped: it can be copied.
    """
    if verdict.findings:
        out.print(findings_table(verdict.findings))
    fixes = dict.fromkeys(finding.fix for finding in verdict.findings if finding.fix)
    for fix in fixes:
        out.print(Text("  → ", "green").append(printable(fix)), soft_wrap=True)
    for waived in verdict.waived:
        line = f"waived until {waived.until.isoformat()}: {waived.finding.rule} {waived.finding.object}"
        out.print(Text(printable(f"{line} ({waived.reason})"), "dim"), soft_wrap=True)
    out.print(Text(summary_line(verdict), "" if verdict.passed else "bold red"))


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return the findings as a table; long paths are folded, never cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("severity", no_wrap=True)
    table.add_column("rule", overflow="fold", max_width=24)
    table.add_column("object", overflow="fold", max_width=32)
    table.add_column("what", overflow="fold", ratio=1)
    for finding in findings:
        table.add_row(
            Text(finding.severity, _STYLES[finding.severity]),
            Text(finding.rule + (f" {finding.kind}" if finding.kind else "")),
            Text(printable(finding.object)),
            _what(finding),
        )
    return table


def summary_line(verdict: Verdict) -> str:
    """Return one line that counts what was found."""
    counts = [
        (sum(finding.severity is severity for finding in verdict.findings), severity) for severity in _STYLES
    ]
    told = [f"{count} {_plural(severity, count)}" for count, severity in counts if count]
    waived = [f"{len(verdict.waived)} waived"] if verdict.waived else []
    return (
        f"checks {'passed' if verdict.passed else 'failed'}: {', '.join([*told, *waived]) or 'nothing found'}"
    )


def printable(value: str) -> str:
    r"""Return text that any terminal can show on one line: control characters and lone surrogates escaped.

    >>> printable("odd\nname\udcff")
    'odd\\nname\\udcff'
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in value
    )


def _what(finding: Finding) -> RenderableType:
    return Group(*_lines(finding))


def _lines(finding: Finding) -> Iterator[Text]:
    yield Text(printable(finding.message))
    if finding.also:
        shown = ", ".join(printable(name) for name in finding.also[:_ALSO_SHOWN])
        rest = len(finding.also) - _ALSO_SHOWN
        yield Text(f"also: {shown}{f' and {rest} more' if rest > 0 else ''}", "dim")
    for line in finding.evidence:
        yield Text(f"· {printable(line)}", "dim")


def _finding_document(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "kind": finding.kind,
        "object": finding.object,
        "also": list(finding.also),
        "message": finding.message,
        "evidence": list(finding.evidence),
        "fix": finding.fix,
    }


def _plural(severity: Severity, count: int) -> str:
    return severity.value if count == 1 or severity is Severity.UNKNOWN else f"{severity.value}s"
