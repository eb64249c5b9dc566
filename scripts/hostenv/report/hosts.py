"""What a session did on its hosts: a screenful for people, and the same as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hostenv.agent.amounts import counted
from hostenv.errors import Outcome
from hostenv.report.findings import findings_document, print_verdict, printable, write_json
from hostenv.report.lines import error_lines, labelled

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from rich.console import Console

    from hostenv.errors import HostenvError
    from hostenv.workflows.events import HostResult

RESULTS_VERSION = 1
"""Version of the document that ``docs/schema/results.schema.json`` describes."""


def print_results(results: Sequence[HostResult], out: Console) -> None:
    """Print one block a host: what it is now, what was found, what to type next."""
    for result in results:
        mark, style = ("✗", "bold red") if result.error else ("✓", "bold green")
        line = Text(f"{mark} {result.host}", style).append(f"  {result.headline}", "default")
        out.print(line.append(f"  {result.seconds:.1f} s", "dim"), soft_wrap=True)
        if result.error:
            error_lines(result.error, result.host, out)
        if result.changed:
            _print_facts(result, out)
        if result.verdict and (result.changed or result.error):
            print_verdict(result.verdict, out)
        for note in result.notes:
            labelled(Text("  ! ", "yellow"), printable(note), out, style="yellow")
        for command in result.next:
            out.print(Text("  next  ", "dim").append(command, "cyan"), soft_wrap=True)


def _print_facts(result: HostResult, out: Console) -> None:
    facts = {
        "build": result.path,
        "generation": result.generation,
        "fingerprint": result.fingerprint,
        "interpreter": f"CPython {result.interpreter}" if result.interpreter else None,
    }
    for name, value in facts.items():
        if value is not None:
            out.print(Text(f"  {name:<12}", "dim").append(str(value)), soft_wrap=True)


def write_results(
    results: Sequence[HostResult], session: str, path: pathlib.Path, error: HostenvError | None = None
) -> None:
    """Write the results as JSON; ``error`` is what stopped the session before any host.

    Raises :class:`~hostenv.errors.HostenvError` where the file cannot be written.
    """
    document = {
        "version": RESULTS_VERSION,
        "session": session,
        "outcome": error.outcome.value if error else outcome_of(results),
        "error": _error_document(error),
        "hosts": [_document(result) for result in results],
    }
    write_json(document, path)


def outcome_of(results: Sequence[HostResult]) -> str:
    """Return ``done``, ``partial`` where some hosts failed, else the common reason or ``failed``."""
    errors = [result.error.outcome for result in results if result.error]
    if not errors:
        return "done"
    if len(errors) < len(results):
        return Outcome.PARTIAL.value
    return errors[0].value if len(set(errors)) == 1 else Outcome.FAILED.value


def failure_line(results: Sequence[HostResult]) -> str | None:
    """Return the line that ends a session which did not succeed everywhere; ``None`` where it did."""
    failed = [f"{result.host} ({result.error.outcome})" for result in results if result.error]
    return f"{len(failed)} of {counted(len(results), 'host')}: {', '.join(failed)}" if failed else None


def _document(result: HostResult) -> dict[str, object]:
    error = result.error
    return {
        "host": result.host,
        "outcome": error.outcome.value if error else "done",
        "headline": result.headline,
        "changed": result.changed,
        "build": result.build,
        "path": result.path,
        "generation": result.generation,
        "fingerprint": result.fingerprint,
        "interpreter": result.interpreter,
        "seconds": round(result.seconds, 3),
        "error": _error_document(error),
        "checks": findings_document(result.verdict) if result.verdict else None,
        "notes": list(result.notes),
        "next": list(result.next),
    }


def _error_document(error: HostenvError | None) -> dict[str, object] | None:
    return {"message": error.message, "hint": error.hint} if error else None
