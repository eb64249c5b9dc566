"""What ``match`` found: a page for people, every path as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from hostenv.agent.amounts import counted, megabytes
from hostenv.checks.cause import Cause
from hostenv.checks.comparison import Outcome
from hostenv.report.findings import printable
from hostenv.report.lines import error_lines, failed

if TYPE_CHECKING:
    from rich.console import Console

    from hostenv.checks.comparison import Differing, Group
    from hostenv.errors import HostenvError
    from hostenv.facts.manifest import Entry
    from hostenv.workflows.match import Matched, MatchReport, TargetResult

VERSION = 1
"""Version of the document that ``docs/schema/match.schema.json`` describes."""

SHOWN = 12
"""Paths of a distribution that are shown; the JSON has all."""

LISTED = 200
"""Distributions whose paths are shown: a table takes 5 ms, and nobody reads thousands of them."""

_MARKS = {
    Outcome.EQUAL: ("✓", "bold green", "equal"),
    Outcome.ALLOWED: ("✓", "bold green", "equal in all that must be; the rest may differ"),
    Outcome.UNKNOWN: ("✗", "bold magenta", "unknown: some files could not be read"),
    Outcome.DIFFERENT: ("✗", "bold red", "different"),
}


def print_report(found: MatchReport, out: Console) -> None:
    """Print the reference, then one block a target."""
    line = Text("reference  ", "dim").append(printable(found.reference.label), "bold")
    out.print(line.append(f"  {_described(found.reference)}", "default"), soft_wrap=True)
    for target in found.targets:
        _print_target(target, out)


def _print_target(target: TargetResult, out: Console) -> None:
    if target.error:
        error_lines(target.error, target.label, out, head=failed(printable(target.label)))
    if target.comparison is None:
        return
    mark, style, headline = _MARKS[target.comparison.outcome]
    line = Text(f"{mark} {printable(target.label)}", style).append(f"  {headline}", "default")
    if target.environment:
        line.append(f"  {_described(target.environment)}", "dim")
    out.print(line, soft_wrap=True)
    for each in _beside(target):
        out.print(Text(f"  {printable(each)}", "dim"), soft_wrap=True)
    for number, group in enumerate(target.comparison.groups):
        _print_group(group, out, paths=number < LISTED)
    more = len(target.comparison.groups) - LISTED
    if more > 0:
        words = f"  the paths of the last {counted(more, 'distribution')} are not shown; --json FILE has all"
        out.print(Text(words, "dim"), soft_wrap=True)
    for problem in target.comparison.unread:
        words = f"  unknown  {printable(problem.path)}: {printable(problem.reason)} (on the {problem.side})"
        out.print(Text(words, "magenta"), soft_wrap=True)
    _print_texts(target, out)


def _described(matched: Matched) -> str:
    read = f", {megabytes(matched.read)} read" if matched.read else ", nothing read"
    fingerprint = (matched.fingerprint or "no fingerprint")[:16]
    told = f"{printable(matched.path)}  {fingerprint}"
    if matched.files is None or matched.bytes is None:
        return told
    return f"{told}  {counted(matched.files, 'file')}, {megabytes(matched.bytes)}{read}"


def _beside(target: TargetResult) -> list[str]:
    """Return what is told beside the differences."""
    lines = [
        f"interpreter  {name}: {one} → {other}" for name, (one, other) in sorted(target.interpreter.items())
    ]
    for layer, state in target.layers.items():
        demanded = "" if layer in target.demands.layers else " (may differ)"
        lines.append(f"layer        {layer}: {state}{demanded}")
    if target.comparison and target.comparison.ignored:
        paths = counted(target.comparison.ignored, "path that differs", "paths that differ")
        lines.append(f"ignored      {paths}: capture.ignore, or as installers have them")
    return lines


def _print_group(group: Group, out: Console, *, paths: bool) -> None:
    versions = {group.reference_version, group.target_version} - {None}
    told = [printable(each) for each in sorted(map(str, versions))]
    name = group.distribution or "of no distribution"
    title = Text(f"  {printable(name)}", "bold").append(f" {' → '.join(told)}", "dim")
    counts = Counter(each.cause for each in group.differing)
    title.append(f"  {', '.join(f'{count} {cause}' for cause, count in counts.items())}", "default")
    out.print(title, soft_wrap=True)
    if not paths:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(overflow="fold", max_width=44)
    if None in (group.reference_version, group.target_version) and counts.keys() == {Cause.VERSION}:
        side = "on the target" if group.target_version is None else "on the reference"
        words = f"    not there {side}: {counted(len(group.differing), 'file')}; --json FILE has all"
        out.print(Text(words, "yellow" if any(each.demanded for each in group.differing) else "dim"))
        return
    shown = group.differing[:SHOWN]
    for each in shown:
        style = "yellow" if each.demanded else "dim"
        table.add_row(
            Text(f"    {each.cause}", style),
            Text(printable(_within_site(each.path))),
            Text(printable(_detail(each)), "dim"),
        )
    out.print(table)
    if len(group.differing) > len(shown):
        out.print(Text(f"    and {len(group.differing) - len(shown)} more; --json FILE has all", "dim"))


def _detail(each: Differing) -> str:
    one, other = each.reference, each.target
    parts = [each.detail] if each.detail else []
    if one and other:
        if one.target != other.target:
            parts.append(f"{_kind(one)} → {_kind(other)}")
        elif one.mode != other.mode:
            parts.append(f"mode {one.mode:o} → {other.mode:o}")
    if not each.demanded:
        parts.append("may differ")
    return ", ".join(parts)


def _within_site(path: str) -> str:
    """Return a path as people name it, below site-packages where it lies there; the JSON has it whole."""
    return path.partition("/site-packages/")[2] or path


def _kind(entry: Entry) -> str:
    return "a file" if entry.target is None else f"link to {entry.target}"


def _print_texts(target: TargetResult, out: Console) -> None:
    for path, difference in target.texts.items():
        if difference.why:
            out.print(Text(f"  {printable(path)} {difference.why}", "dim"), soft_wrap=True)
        for line in difference.lines:
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            out.print(Text(f"  {printable(line)}", style), soft_wrap=True)
        if difference.cut:
            out.print(Text(f"  … {difference.cut} more lines", "dim"))
    if target.hidden_texts:
        out.print(Text(f"  the texts of {target.hidden_texts} more files are not shown", "dim"))


def failure_line(found: MatchReport) -> str | None:
    """Return the line that ends a session in which something is not equal; ``None`` where all is."""
    failed = [f"{printable(target.label)} ({_outcome(target)})" for target in found.targets if not target.ok]
    total = len(found.targets)
    return (
        f"{len(failed)} of {total} not equal to {printable(found.reference.label)}: {', '.join(failed)}"
        if failed
        else None
    )


def document(found: MatchReport) -> dict[str, object]:
    """Return the report as what ``--json`` writes (``docs/schema/match.schema.json``)."""
    return {
        "version": VERSION,
        "equal": all(target.ok for target in found.targets),
        "error": None,
        "reference": _environment_document(found.reference),
        "targets": [_target_document(target) for target in found.targets],
    }


def error_document(error: HostenvError) -> dict[str, object]:
    """Return what ``--json`` writes where nothing could be compared."""
    return {
        "version": VERSION,
        "equal": False,
        "error": _error_document(error),
        "reference": None,
        "targets": [],
    }


def _error_document(error: HostenvError | None) -> dict[str, object] | None:
    if error is None:
        return None
    return {"outcome": error.outcome.value, "message": error.message, "hint": error.hint}


def _environment_document(matched: Matched | None) -> dict[str, object] | None:
    if matched is None:
        return None
    return {
        "place": matched.label,
        "path": matched.path,
        "build": matched.build,
        "fingerprint": matched.fingerprint,
        "interpreter": asdict(matched.interpreter),
        "files": matched.files,
        "bytes": matched.bytes,
        "read": matched.read,
    }


def _outcome(target: TargetResult) -> str:
    if target.comparison is None:
        return target.error.outcome.value if target.error else "failed"
    return target.comparison.outcome.value


def _target_document(target: TargetResult) -> dict[str, object]:
    compared = target.comparison
    return {
        "place": target.label,
        "outcome": _outcome(target),
        "error": _error_document(target.error),
        "environment": _environment_document(target.environment),
        "interpreter": {
            name: {"reference": one, "target": other} for name, (one, other) in target.interpreter.items()
        },
        "layers": [
            {"layer": layer.value, "state": state.value, "demanded": layer in target.demands.layers}
            for layer, state in target.layers.items()
        ],
        "distributions": [_group_document(group, target) for group in (compared.groups if compared else ())],
        "unknown": [asdict(each) for each in (compared.unread if compared else ())],
        "ignored": compared.ignored if compared else 0,
        "seconds": round(target.seconds, 3),
    }


def _group_document(group: Group, target: TargetResult) -> dict[str, object]:
    return {
        "distribution": group.distribution,
        "reference_version": group.reference_version,
        "target_version": group.target_version,
        "differing": [_differing_document(each, target) for each in group.differing],
    }


def _differing_document(each: Differing, target: TargetResult) -> dict[str, object]:
    text = target.texts.get(each.path)
    return {
        "path": each.path,
        "cause": each.cause.value,
        "detail": each.detail,
        "demanded": each.demanded,
        "reference": _entry_document(each.reference),
        "target": _entry_document(each.target),
        "diff": list(text.lines) if text and not text.why else None,
    }


def _entry_document(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    if entry.target is not None:
        return {"link": entry.target, "mode": None, "size": None, "sha256": None}
    return {"link": None, "mode": f"{entry.mode:o}", "size": entry.size, "sha256": entry.sha256}
