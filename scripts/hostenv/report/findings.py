"""Findings as people and programs see them, and the console on which everything is printed."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from typing import IO, TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hostenv.checks.finding import Finding, Severity
from hostenv.errors import HostenvError, InputError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Mapping, Sequence

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
_EVIDENCE_SHOWN = 4
_INDENT = 9


class _Console(Console):
    """A console that raises where nobody reads any more; rich's own ends the program without a word."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(file: IO[str] | None = None) -> Console:
    """Return a console: colour and full width on a terminal, plain text of :data:`PLAIN_WIDTH` elsewhere.

    What the output's encoding lacks (✓ in latin-1) is replaced: a session's result must not end in a
    traceback after the work is done.
    """
    if isinstance(stream := file or sys.stdout, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    made = _Console(file=file, highlight=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made = _Console(
            file=file, highlight=False, emoji=False, no_color=True, color_system=None, width=PLAIN_WIDTH
        )
    return made


def check_json(path: pathlib.Path) -> None:
    """Raise :class:`InputError` where ``--json`` could not be written, before anything is done."""
    if to_output(path):
        return
    try:
        if path.exists() and not (path.is_file() or path.is_char_device()):
            raise InputError(f"--json {path}: is not a file")
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InputError(f"--json {path}: cannot be written: {error.strerror}") from error


def to_output(path: pathlib.Path | None) -> bool:
    """Tell whether ``--json -`` asks for the document on standard output: what people read goes elsewhere."""
    return path is not None and str(path) == "-"


def write_json(document: Mapping[str, object], path: pathlib.Path) -> None:
    """Write what ``--json`` asks for. Raises :class:`~hostenv.errors.HostenvError` where it cannot be.

    The document is ASCII, whatever the encoding of standard output.
    """
    text = json.dumps(document, indent=1) + "\n"
    if to_output(path):
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HostenvError(f"--json {path}: cannot be written: {error.strerror}") from error


def error_fields(error: HostenvError) -> dict[str, object]:
    """Return the part ``error`` of a document."""
    return {"outcome": error.outcome.value, "message": error.message, "hint": error.hint}


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
    """Print the findings, what was waived, and one line that counts them."""
    print_findings(verdict.findings, out)
    for waived in verdict.waived:
        line = f"waived until {waived.until.isoformat()}: {waived.finding.rule} {waived.finding.object}"
        out.print(Text(printable(f"{line} ({waived.reason})"), "dim"), soft_wrap=True)
    out.print(Text(summary_line(verdict), "" if verdict.passed else "bold red"))


def print_findings(findings: Sequence[Finding], out: Console) -> None:
    """Print findings in their order.

    An error, a warning, an unknown: a block, with its evidence and what can be typed, which is never wrapped.
    A note: what it says, and no more; the JSON has its evidence.
    """
    for finding in findings:
        for indent, line in _lines(finding):
            out.print(Padding(line, (0, 0, 0, indent), expand=False))
        if finding.fix and finding.severity is not Severity.NOTE:
            out.print(Text("         → ", "green").append(printable(finding.fix)), soft_wrap=True)


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


def _lines(finding: Finding) -> Iterator[tuple[int, Text]]:
    """Yield a finding's lines, each with its indentation."""
    head = Text(f"{finding.severity:<8} ", _STYLES[finding.severity])
    head.append(printable(finding.object), "bold" if finding.severity is not Severity.NOTE else "")
    if finding.also:
        head.append(f" and {len(finding.also)} more", "dim")
    yield 0, head.append(f"  {finding.rule}{f' {finding.kind}' if finding.kind else ''}", "dim")
    yield _INDENT, Text(printable(finding.message))
    if finding.severity is Severity.NOTE:
        return
    if finding.also:
        yield _INDENT, Text(_some("also: ", finding.also), "dim")
    for line in finding.evidence[:_EVIDENCE_SHOWN]:
        yield _INDENT, Text(f"· {printable(line)}", "dim")
    if len(finding.evidence) > _EVIDENCE_SHOWN:
        yield _INDENT, Text(f"· and {len(finding.evidence) - _EVIDENCE_SHOWN} more: --json has all", "dim")


def _some(head: str, names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_ALSO_SHOWN])
    rest = len(names) - _ALSO_SHOWN
    return f"{head}{shown}{f' and {rest} more' if rest > 0 else ''}"


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
