"""The builds of hosts: a line each for people, the same as JSON."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from hostenv.agent.amounts import counted, megabytes
from hostenv.report.findings import error_fields, printable
from hostenv.report.lines import error_lines, failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hostenv.errors import HostenvError
    from hostenv.facts.builds import BuildFacts, RootBuilds
    from hostenv.workflows.builds import HostBuilds

VERSION = 1
"""Version of the document that ``docs/schema/builds.schema.json`` describes."""

_NARROW = 72
"""Columns below which no table is printed."""
_SHOWN = 3
"""Processes of a build that are shown; the JSON has all."""
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def print_builds(hosts: Sequence[HostBuilds], out: Console) -> None:
    """Print one block a host, its builds by age, the newest first."""
    for host in hosts:
        if host.error:
            error_lines(host.error, host.host, out, head=failed(host.host))
        if host.found is None:
            continue
        found = host.found
        total = sum(build.size for build in found.builds)
        free = f", {megabytes(found.free)} free" if found.free is not None else ""
        line = Text(host.host, "bold").append(f"  {printable(found.root)}", "default")
        line.append(
            f"  {counted(len(found.builds), 'build')}, {megabytes(total)}{free}",
            "dim",
        )
        out.print(line, soft_wrap=True)
        if out.width < _NARROW:
            _print_lines(found, out)
        elif found.builds:
            out.print(_table(found))
        for left in found.unfinished:
            words = f"  unfinished  {printable(left.path)}  {megabytes(left.size)}; prune removes it"
            out.print(Text(words, "yellow"), soft_wrap=True)
        if found.astray:
            words = f"  broken      {printable(found.astray)}; `nox -s build_env -- {host.host}` mends it"
            out.print(Text(words, "bold red"), soft_wrap=True)
        for why in found.unknown:
            out.print(Text(f"  unknown     {printable(why)}", "magenta"), soft_wrap=True)


def _newest_first(found: RootBuilds) -> list[BuildFacts]:
    return sorted(found.builds, key=lambda each: -each.last)


def _print_lines(found: RootBuilds, out: Console) -> None:
    """Print a line a build, what counts most of it: a table's columns would be cut."""
    for build in _newest_first(found):
        told = f"  {build.build}  {megabytes(build.size)}  {age(time.time() - build.made)}  "
        out.print(Text.assemble(told, _used(build)), soft_wrap=True)


def _table(found: RootBuilds) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  build", no_wrap=True)
    for name in ("size", "age", "gen."):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fingerprint", no_wrap=True)
    table.add_column("used", overflow="fold", ratio=1)
    for build in _newest_first(found):
        table.add_row(
            f"  {build.build}",
            megabytes(build.size),
            age(time.time() - build.made),
            str(build.generations[-1]) if build.generations else "-",
            (build.fingerprint or "-")[:12],
            _used(build),
        )
    return table


def _used(build: BuildFacts) -> Text:
    words = [*build.roles]
    words += [f"pid {each.pid} {printable(each.name)}" for each in build.processes[:_SHOWN]]
    if len(build.processes) > _SHOWN:
        words.append(f"and {counted(len(build.processes) - _SHOWN, 'process', 'processes')} more")
    if not build.sound:
        words.append("its interpreter is gone")
    style = "green" if "current" in build.roles else "" if build.is_used else "dim"
    return Text(", ".join(words) or "unused", style)


def age(seconds: float) -> str:
    """Return a duration in its largest unit.

    >>> age(3 * 86400 + 5)
    '3 d'
    """
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def failure_line(hosts: Sequence[HostBuilds]) -> str | None:
    """Return the line to fail with where some host could not be read."""
    failed = [f"{host.host} ({host.error.outcome})" for host in hosts if host.error]
    return f"{len(failed)} of {counted(len(hosts), 'host')}: {', '.join(failed)}" if failed else None


def error_document(error: HostenvError) -> dict[str, object]:
    """Return what ``--json`` writes where no host was asked."""
    return {"version": VERSION, "hosts": [], "error": error_fields(error)}


def document(hosts: Sequence[HostBuilds]) -> dict[str, object]:
    """Return the list as what ``--json`` writes (``docs/schema/builds.schema.json``)."""
    return {"version": VERSION, "hosts": [_document(host) for host in hosts]}


def _document(host: HostBuilds) -> dict[str, object]:
    error = host.error
    told = {"outcome": error.outcome.value, "message": error.message, "hint": error.hint} if error else None
    found = host.found
    return {
        "host": host.host,
        "error": told,
        "root": found.root if found else None,
        "free": found.free if found else None,
        "builds": [asdict(build) for build in found.builds] if found else [],
        "unfinished": [asdict(each) for each in found.unfinished] if found else [],
        "orphans": [asdict(each) for each in found.orphans] if found else [],
        "unknown": list(found.unknown) if found else [],
        "astray": found.astray if found else None,
        "seconds": round(host.seconds, 3),
    }
