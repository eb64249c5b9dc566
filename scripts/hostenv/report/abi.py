"""What ``verify_abi`` found: a table for people, every shared object as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hostenv.agent.amounts import counted
from hostenv.errors import Outcome
from hostenv.report.findings import findings_document, print_verdict, write_json
from hostenv.report.lines import error_lines, failed

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from rich.console import Console

    from hostenv.checks.suggest import Proposal
    from hostenv.errors import HostenvError
    from hostenv.workflows.verify_abi import HostVerdict, Judged

VERSION = 1
"""Version of the document that ``docs/schema/verify_abi.schema.json`` describes."""


def print_verdicts(verdicts: Sequence[HostVerdict], out: Console) -> None:
    """Print one block an environment: what was judged against what, and the findings."""
    for verdict in verdicts:
        judged = verdict.judged
        if verdict.error:
            error_lines(verdict.error, verdict.host, out, head=failed(verdict.host))
        if judged is None:
            continue
        mark, style = ("✓", "bold green") if judged.verdict.passed else ("✗", "bold red")
        out.print(Text(f"{mark} {judged.host}", style).append(f"  {judged.venv}", "default"), soft_wrap=True)
        out.print(Text(f"  {_counts(judged)}", "dim"), soft_wrap=True)
        out.print(Text(f"  {_against(judged)}", "dim"), soft_wrap=True)
        print_verdict(judged.verdict, out)
        if judged.proposals is not None:
            _print_proposals(judged.host, judged.proposals, out)


def _print_proposals(host: str, proposals: Sequence[Proposal], out: Console) -> None:
    if not proposals:
        out.print(Text("no change of few distributions was found that makes it pass", "yellow"))
    for number, each in enumerate(proposals, 1):
        changes = "; ".join(change.line for change in each.changes)
        head = Text(f"suggestion {number}: {changes}", "bold").append(f"  from {each.source}", "default")
        out.print(head, soft_wrap=True)
        for line in each.open:
            out.print(Text(f"  not judged yet: {line}", "dim"), soft_wrap=True)
        spec = f"envspecs/{host}.toml"
        _print_lines(f"into [env] of {spec}, instead of the lines of these names", each.env, out)
        _print_lines(f"at the end of {spec}", each.overlays, out)
        _print_lines("then", each.commands, out)


def _print_lines(where: str, lines: Sequence[str], out: Console) -> None:
    if lines:
        out.print(Text(f"  {where}:", "dim"), soft_wrap=True)
    for line in lines:
        out.print(Text(f"    {line}", "green"), soft_wrap=True)


def _counts(judged: Judged) -> str:
    alone = sum(entry["loads_alone"] is True for entry in judged.objects)
    after = sum(entry["loads_after_preload"] is True for entry in judged.objects)
    looked = "nothing changed since the last look" if judged.cached else f"read in {judged.seconds:.2f} s"
    return (
        f"{counted(len(judged.objects), 'shared object')}: {alone} load{'s' * (alone == 1)} alone, "
        f"{after} after the preload; {looked}"
    )


def _against(judged: Judged) -> str:
    targets = judged.targets
    gpus = (
        ", ".join(f"{gpu.name} ({gpu.compute_capability or 'unknown'})" for gpu in targets.gpus)
        or "no GPU known"
    )
    return f"judged for: {gpus}; driver {targets.driver or 'unknown'}, CUDA {targets.cuda or 'unknown'}"


def write_verdicts(verdicts: Sequence[HostVerdict], path: pathlib.Path) -> None:
    """Write the verdicts as JSON; ``objects`` has one entry a shared object of every environment."""
    document = {
        "version": VERSION,
        "session": "verify_abi",
        "outcome": _outcome(verdicts),
        "hosts": [_document(verdict) for verdict in verdicts],
        "objects": [
            {"host": verdict.host, **entry}
            for verdict in verdicts
            if verdict.judged
            for entry in verdict.judged.objects
        ],
    }
    write_json(document, path)


def error_document(error: HostenvError) -> dict[str, object]:
    """Return what ``--json`` says where the session ended before any host was judged."""
    return {
        "version": VERSION,
        "session": "verify_abi",
        "outcome": error.outcome.value,
        "error": str(error),
        "hosts": [],
        "objects": [],
    }


def failure_line(verdicts: Sequence[HostVerdict]) -> str | None:
    """Return the line that ends a session in which some environment did not pass; ``None`` where all did."""
    failed = [
        f"{verdict.host} ({_host_outcome(verdict)})"
        for verdict in verdicts
        if _host_outcome(verdict) != "done"
    ]
    return f"{len(failed)} of {counted(len(verdicts), 'host')}: {', '.join(failed)}" if failed else None


def _outcome(verdicts: Sequence[HostVerdict]) -> str:
    outcomes = {_host_outcome(verdict) for verdict in verdicts}
    return outcomes.pop() if len(outcomes) == 1 else Outcome.PARTIAL.value


def _host_outcome(verdict: HostVerdict) -> str:
    if verdict.error:
        return verdict.error.outcome.value
    return "done" if verdict.judged and verdict.judged.verdict.passed else Outcome.CHECKS.value


def _document(verdict: HostVerdict) -> dict[str, object]:
    judged = verdict.judged
    return {
        "host": verdict.host,
        "outcome": _host_outcome(verdict),
        "error": str(verdict.error) if verdict.error else None,
        "venv": judged.venv if judged else None,
        "gpus": [
            {
                "gpu": gpu.name,
                "compute_capability": str(gpu.compute_capability) if gpu.compute_capability else None,
            }
            for gpu in (judged.targets.gpus if judged else ())
        ],
        "driver": judged.targets.driver if judged else None,
        "checks": findings_document(judged.verdict) if judged else None,
        **(
            {"suggestions": [_suggestion(each) for each in judged.proposals]}
            if judged and judged.proposals is not None
            else {}
        ),
    }


def _suggestion(proposal: Proposal) -> dict[str, object]:
    return {
        "changes": [
            {"distribution": change.name, "before": change.before, "after": change.after}
            for change in proposal.changes
        ],
        "source": proposal.source,
        "not_judged": list(proposal.open),
        "spec": list(proposal.env),
        "overlays": list(proposal.overlays),
        "commands": list(proposal.commands),
    }
