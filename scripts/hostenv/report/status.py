"""The 3 a.m. page: one line a host, then what needs somebody."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from hostenv.agent.amounts import megabytes
from hostenv.checks.free_gpus import Use, gpu_uses
from hostenv.report.findings import error_fields, printable
from hostenv.report.lines import labelled
from hostenv.spec.host import Mode
from hostenv.workflows.status import NEVER_SAVED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from hostenv.errors import HostenvError
    from hostenv.facts.host_status import HostStatus, PathUser
    from hostenv.workflows.status import HostLine

STATUS_VERSION = 1
"""Version of the document that ``docs/schema/status.schema.json`` describes."""

_SHORT = 8
_NAMED = 4
_LONGEST = 120
"""Letters of an error, and of its hint, on this page."""
_NARROW = 64
"""Columns below which no table is printed."""
_WHOLE = frozenset({"host", "build", "free", "facts"})
_COLUMNS = ("host", "build", "running", "gpus", "free", "facts")


def print_status(lines: Sequence[HostLine], out: Console) -> None:
    """Print the page."""
    if out.width < _NARROW:
        _print_lists(lines, out)
    else:
        out.print(_table(lines))
    for line in lines:
        for text, style in _remarks(line):
            labelled(Text(f"{line.name}: ", style), printable(text), out, style=style)


def error_document(error: HostenvError) -> dict[str, object]:
    """Return what ``--json`` writes where no host was asked."""
    return {"version": STATUS_VERSION, "hosts": [], "error": error_fields(error)}


def status_document(lines: Sequence[HostLine]) -> dict[str, object]:
    """Return the lines as what ``--json`` writes (``docs/schema/status.schema.json``)."""
    return {"version": STATUS_VERSION, "hosts": [_document(line) for line in lines]}


def _table(lines: Sequence[HostLine]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in _COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for line in lines:
        table.add_row(Text(line.name, "bold"), *_cells(line))
    return table


def _print_lists(lines: Sequence[HostLine], out: Console) -> None:
    """Print the table's cells one below the other: its columns would be a few letters wide."""
    for line in lines:
        out.print(Text(line.name, "bold"), soft_wrap=True)
        for column, cell in zip(_COLUMNS[1:], _cells(line), strict=True):
            if cell.plain:
                out.print(Text.assemble((f"  {column:<9}", "dim"), cell), soft_wrap=True)


def _cells(line: HostLine) -> tuple[Text, ...]:
    status = line.status
    if status is None:
        outcome = line.error.outcome.value if line.error else "unknown"
        return (Text(outcome, "bold red"), Text(), Text(), Text(), _facts(line))
    return (_build(status), _running(status), _gpus(line, status), _free(line, status), _facts(line))


def _build(status: HostStatus) -> Text:
    state = status.state
    if state.generation is None:
        return Text("none", "dim")
    built = state.current_build
    text = Text(f"{built[:_SHORT]}" if built else "gone", "" if built else "bold red")
    text.append(f" g{state.generation}", "dim")
    if state.hold:
        text.append(" held", "yellow")
    if state.waiting:
        text.append(f" staged {state.waiting[:_SHORT]}", "cyan")
    return text


def _running(status: HostStatus) -> Text:
    if not status.users:
        return Text("nothing", "dim")
    current = status.state.current_build
    told = Text()
    for build, users in status.users.items():
        style = "" if build == current else "bold yellow"
        told.append(f"{', ' if told.plain else ''}{build[:_SHORT]} x{len(users)}", style)
    return told


def _gpus(line: HostLine, status: HostStatus) -> Text:
    uses = gpu_uses(status, line.spec.gpus.reserved if line.spec.gpus else ())
    if uses.unknown is not None:
        absent = status.driver.pci.then(lambda devices: not devices, otherwise=False)
        return Text("none", "dim") if absent else Text("unknown", "magenta")
    counts = Counter(use.use for use in uses.value)
    return Text(", ".join(f"{counts[use]} {use.value}" for use in Use if counts[use]) or "none")


def _free(line: HostLine, status: HostStatus) -> Text:
    if status.state.unwritable:
        return Text("-", "dim")
    size = megabytes(status.state.free)
    return Text(size, "bold yellow" if status.state.free < line.spec.build.min_free else "")


def _facts(line: HostLine) -> Text:
    age = line.facts_age
    if age.unknown is not None:
        return Text("none", "dim") if age.unknown == NEVER_SAVED else Text("unknown", "magenta")
    too_old = age.value > line.spec.checks.facts_max_age
    return Text(f"{age.value.days} d", "bold yellow" if too_old else "")


def _remarks(line: HostLine) -> Iterator[tuple[str, str]]:
    if line.error:
        yield from ((told, "red") for told in _error(line.name, line.error))
    if line.identity:
        yield line.identity.removeprefix(f"{line.name}: "), "" if line.spec.identity is None else "bold red"
    if line.spec.host.mode is Mode.OBSERVE:
        yield 'host.mode is "observe": nothing is written there', "dim"
    if line.facts_age.unknown not in {None, NEVER_SAVED}:
        yield f"age of its facts unknown: {line.facts_age.how}: {line.facts_age.unknown}", "magenta"
    if line.status:
        yield from _of_status(line, line.status)
    for waiver in line.expiring:
        yield f"waiver of {waiver.rule} for {waiver.object} ends {waiver.until}: {waiver.reason}", "yellow"


def _error(name: str, error: HostenvError) -> Iterator[str]:
    """Yield what failed, short, and on a line of its own what to do: the whole of it is told by ``probe``."""
    message = " ".join(error.message.removeprefix(f"{name}: ").split())
    short = textwrap.shorten(message, _LONGEST, placeholder=" …")
    yield short
    hint = error.hint or ""
    if "\n" in hint or len(hint) > _LONGEST or (short != message and not hint):
        yield f"→ nox -s probe -- {name} says all of it, and what to do"
    elif hint:
        yield f"→ {hint}"


def _of_status(line: HostLine, status: HostStatus) -> Iterator[tuple[str, str]]:
    if status.state.unwritable and line.spec.host.mode is Mode.MANAGE:
        yield f"{status.state.root} cannot be written: {status.state.unwritable}", "bold red"
    if status.state.astray:
        yield f"{status.state.astray}; `nox -s build_env -- {line.name}` mends it", "bold red"
    hold = status.state.hold
    if hold:
        since = dt.datetime.fromtimestamp(hold.since, dt.UTC)
        yield f"held by {hold.by} since {since:%Y-%m-%d %H:%M} UTC: {hold.why}", "yellow"
    waived = _waived(status)
    if waived:
        named = ", ".join(
            f"{each['rule']} {each['object']} until {each['until']}" for each in waived[:_NAMED]
        )
        more = f" and {len(waived) - _NAMED} more" if len(waived) > _NAMED else ""
        yield f"waived in the current build: {named}{more}", "dim"
    for build, users in status.outdated_users.items():
        yield f"build {build[:_SHORT]} is not current, and {_users(users)} from it", "yellow"
    uses = gpu_uses(status, line.spec.gpus.reserved if line.spec.gpus else ())
    if uses.unknown is not None and line.spec.gpus:
        yield f"GPUs unknown: {uses.unknown}", "magenta"
    for use in uses.or_else(()):
        for holder in use.holders:
            began = f" since {holder.since:%Y-%m-%d %H:%M} UTC" if holder.since else ""
            pid = f" (pid {holder.pid})" if holder.pid is not None else ""
            yield f"GPU {use.gpu.index} held by {holder.what}{pid}{began}", "dim"
        if use.reserved:
            yield f"GPU {use.gpu.index} reserved: {use.reserved.why}", "dim"


def _waived(status: HostStatus) -> list[dict[str, str]]:
    """Return the findings that the current build's receipt says were waived."""
    kept = status.state.receipt.get("waived")
    each_has = ("rule", "object", "until")
    return [
        {key: str(finding.get(key, "")) for key in each_has}
        for finding in (kept if isinstance(kept, list) else ())
        if isinstance(finding, dict)
    ]


def _users(users: Sequence[PathUser]) -> str:
    named = ", ".join(f"{user.name} (pid {user.pid})" for user in users[:_NAMED])
    more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
    return f"{named}{more} run{'s' if len(users) == 1 else ''}"


def _document(line: HostLine) -> dict[str, object]:
    status, error = line.status, line.error
    return {
        "name": line.name,
        "seconds": round(line.seconds, 3),
        "outcome": "ok" if error is None else error.outcome.value,
        "error": None if error is None else str(error),
        "identity": line.identity,
        "build": status.state.current_build if status else None,
        "generation": status.state.generation if status else None,
        "astray": status.state.astray if status else None,
        "staged": status.state.waiting if status else None,
        "hold": {"by": status.state.hold.by, "why": status.state.hold.why}
        if status and status.state.hold
        else None,
        "users": {
            build: [{"pid": user.pid, "name": user.name, "how": user.how} for user in users]
            for build, users in (status.users if status else {}).items()
        },
        "gpus": _gpu_documents(line, status) if status else None,
        "free": status.state.free if status else None,
        "facts_age_days": line.facts_age.then(lambda age: age.days, None),
        "waived": _waived(status) if status else [],
        "expiring": [
            {"rule": each.rule, "object": each.object, "until": each.until.isoformat()}
            for each in line.expiring
        ],
    }


def _gpu_documents(line: HostLine, status: HostStatus) -> list[dict[str, object]] | None:
    uses = gpu_uses(status, line.spec.gpus.reserved if line.spec.gpus else ())
    if not uses.is_known:
        return None
    return [{"index": use.gpu.index, "uuid": use.gpu.uuid, "use": use.use.value} for use in uses.value]
