"""The probe's page: a table a host, then what stands out, then what the hosts are to each other."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeVar

from rich.table import Table
from rich.text import Text

from hostenv.agent.amounts import counted, megabytes
from hostenv.checks.finding import Severity
from hostenv.checks.free_gpus import Use, gpu_uses
from hostenv.checks.same_machine import related
from hostenv.report.findings import print_findings, printable
from hostenv.report.lines import error_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from hostenv.checks.free_gpus import GpuUse, Holder
    from hostenv.facts.fact import Fact
    from hostenv.facts.host import HostFacts
    from hostenv.facts.host_environments import Environment, StackMember
    from hostenv.facts.host_gpu import KernelModule
    from hostenv.facts.host_processes import HostProcess
    from hostenv.facts.host_system import Disk
    from hostenv.facts.host_tools import CudaHome, Tool
    from hostenv.spec.spec import Spec
    from hostenv.workflows.probe import HostProbe, ProbeReport

_USES = {Use.FREE: "green", Use.HELD: "red", Use.RESERVED: "yellow", Use.UNKNOWN: "magenta"}
_LONGEST = 200
_MOST_ROWS = 12
Row = tuple[str, Text]
T = TypeVar("T")


def print_probe(report: ProbeReport, out: Console) -> None:
    """Print the page."""
    for host in report.hosts:
        parent = f" (the machine of {', '.join(host.parent_of)})" if host.parent_of else ""
        title = f"{host.name}{parent}: {_seconds(host)}"
        out.print(Text(title, "bold"))
        if host.error:
            error_lines(host.error, host.name, out)
        elif host.facts:
            out.print(_host_table(host.spec, host.facts, host.host_key))
            _print_notes(host, out)
            _print_identity(host, host.facts, out)
        out.print()
    for relation in related(report.relations):
        out.print(Text(printable(str(relation)), "bold"), soft_wrap=True)
        for line in relation.evidence:
            out.print(Text(f"  · {printable(line)}", "dim"), soft_wrap=True)
    out.print(Text(summary(report)))


def summary(report: ProbeReport) -> str:
    """Return the page's last line."""
    asked = [host for host in report.hosts if not host.parent_of]
    told = [f"{len(asked) - len(report.failed)} of {counted(len(asked), 'host')} probed"]
    if report.failed:
        told.append(f"failed: {', '.join(host.name for host in report.failed)}")
    saved = [str(host.saved.name) for host in report.hosts if host.saved]
    if saved:
        told.append(f"saved: {', '.join(saved)}")
    return "; ".join(told)


def printable_lines(text: str) -> str:
    """Return a text of several lines with everything but its line breaks made printable."""
    return "\n".join(map(printable, text.split("\n")))


def _seconds(host: HostProbe) -> str:
    return f"{host.seconds:.1f} s"


def _print_notes(host: HostProbe, out: Console) -> None:
    if not host.notes:
        return
    order = list(Severity)
    notes = sorted(host.notes, key=lambda note: order.index(note.severity))
    out.print(Text("stands out", "dim"))
    print_findings(notes, out)
    for fix in dict.fromkeys(note.fix for note in notes if note.fix):
        out.print(Text("  → ", "green").append(printable(fix)), soft_wrap=True)


def _print_identity(host: HostProbe, facts: HostFacts, out: Console) -> None:
    """Print what to paste into a spec that does not say which machine it means."""
    if host.spec.identity or host.spec.is_local or host.parent_of:
        return
    machine = facts.identity.machine_id
    lines = ["[identity]", f'machine-id = "{machine.value}"' if machine.is_known else "# no machine-id there"]
    lines += [f'host-key = "{host.host_key}"'] if host.host_key else []
    out.print(Text(f"to write there, put into {host.spec.path.name}, if this is the right machine:", "dim"))
    for line in lines:
        out.print(Text(f"  {printable(line)}", "cyan"), soft_wrap=True)


def _host_table(spec: Spec, facts: HostFacts, host_key: str | None) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, value in _rows(spec, facts, host_key):
        table.add_row(name, value)
    return table


def _rows(spec: Spec, facts: HostFacts, host_key: str | None) -> Iterator[Row]:
    yield from _identity(facts, host_key)
    yield from _system(facts)
    yield from _driver(facts)
    yield from _gpus(spec, facts)
    yield from _limited(list(_processes(facts)), "processes")
    yield from _limited(list(_environments(facts)), "environments")
    yield from _tools(facts)
    yield from _disks(facts)
    for model in facts.models:
        told = _told(model, lambda each: f"{each.path}  {each.kind or 'no config'}  {_size(each.bytes)}")
        yield "model", told
    for unit in facts.units.or_else(()):
        yield (
            "unit",
            _plain(f"{unit.name}{'' if unit.enabled else ' (not enabled)'}  {_command(unit.command)}"),
        )


def _identity(facts: HostFacts, host_key: str | None) -> Iterator[Row]:
    identity = facts.identity
    yield "machine", _join(_told(identity.machine_id, str), _told(identity.hostname, str))
    if host_key:
        yield "host key", _plain(host_key)
    yield "boot", _told(identity.boot_id, str)
    yield "container", _told(identity.container, lambda name: f"{name}  ({name.evidence})")


def _system(facts: HostFacts) -> Iterator[Row]:
    system, library = facts.system, facts.libraries.find("libstdc++.so.6")
    newest = [f"{name} {library.newest(name)}" for name in ("GLIBCXX", "CXXABI")] if library else []
    yield (
        "system",
        _join(
            _told(system.distribution, lambda each: each.name),
            _told(system.kernel, str),
            _told(system.architecture, str),
            _told(system.glibc, "glibc {}".format),
            *(Text(each) for each in newest),
        ),
    )
    yield "cpu", _told(system.cpu, lambda cpu: f"{cpu.count} x {cpu.model}")
    yield (
        "memory",
        _told(system.memory, lambda each: f"{_size(each.available)} of {_size(each.total)} available"),
    )


def _driver(facts: HostFacts) -> Iterator[Row]:
    library = facts.libraries.find("libcuda.so.1")
    libcuda = library.driver_version or library.path if library else None
    yield (
        "driver",
        _join(
            _told(facts.driver.kernel_module, _module),
            Text(f"libcuda {libcuda}") if libcuda else Text("no libcuda"),
            _told(facts.driver.cuda, "CUDA {}".format, label="CUDA"),
        ),
    )


def _module(module: KernelModule) -> str:
    kinds = {True: " (open)", False: " (proprietary)", None: ""}
    return f"kernel module {module.version}{kinds[module.open]}"


def _gpus(spec: Spec, facts: HostFacts) -> Iterator[Row]:
    uses = gpu_uses(facts, spec.gpus.reserved if spec.gpus else ())
    if uses.unknown is not None:
        yield "gpus", _unknown(uses.unknown)
        return
    for use in uses.value:
        yield f"gpu {use.gpu.index}", _gpu(use)


def _gpu(use: GpuUse) -> Text:
    gpu = use.gpu
    line = Text(f"{use.use.value:<9}", _USES[use.use])
    line.append(f"{printable(gpu.name)}  {_size(gpu.memory_used)} of {_size(gpu.memory_total)} in use")
    line.append_text(Text("  cc ").append_text(_told(gpu.compute_capability, str)))
    if gpu.mig == "Enabled":
        line.append(f"  MIG: {counted(len(gpu.mig_devices), 'slice')}")
    line.append(f"  {gpu.uuid}", "dim")
    for holder in use.holders:
        line.append(f"\n{'':<9}{_holder(holder)}")
    if use.reserved:
        owner = f" ({use.reserved.owner})" if use.reserved.owner else ""
        line.append(f"\n{'':<9}reserved: {printable(use.reserved.why)}{printable(owner)}", "yellow")
    return line


def _holder(holder: Holder) -> str:
    pid = f"pid {holder.pid} " if holder.pid is not None else ""
    since = f" since {holder.since:%Y-%m-%d %H:%M} UTC" if holder.since else ""
    return printable(f"{pid}{holder.what}  {_size(holder.bytes)}{since}")


def _processes(facts: HostFacts) -> Iterator[Row]:
    for process in facts.processes.listed if facts.processes else ():
        line = _plain(f"{process.name}  {_command(process.command)}")
        details = ", ".join(_process_details(process))
        yield f"pid {process.pid}", line.append(f"\n{printable(details)}", "dim")


def _process_details(process: HostProcess) -> Iterator[str]:
    yield f"since {process.started:%Y-%m-%d %H:%M} UTC"
    if process.user:
        yield f"user {process.user}"
    if process.unit:
        yield process.unit
    for port in process.ports or ():
        yield f"listens on {port.address} port {port.port}"
    if process.refused:
        yield f"descriptors unknown: {process.refused}"
    if process.container:
        yield f"in {process.container}"
    yield process.place.then(lambda place: f"files {place.value}", otherwise="where its files lie is unknown")
    venv = process.venv
    if venv.unknown is not None:
        yield f"venv unknown: {venv.unknown}"
    elif venv.value:
        yield f"venv {venv.value.path} (as it sees it)"


def _environments(facts: HostFacts) -> Iterator[Row]:
    for found in facts.venvs.found:
        if found.unknown is not None and found.unknown.endswith("does not exist"):
            continue
        yield "venv", _told(found, _environment)


def _environment(environment: Environment) -> str:
    stack = "  ".join(map(_member, environment.stack)) or "nothing of the serving stack"
    works = "" if environment.interpreter_works else "  (its interpreter is gone)"
    kind = "" if environment.kind == "venv" else f" ({environment.kind})"
    return f"{environment.path}{kind}  Python {environment.python}{works}\n{stack}"


def _member(member: StackMember) -> str:
    marks = ["editable"] if member.editable else []
    if member.cuda:
        marks.append(member.cuda.then(lambda cuda: f"CUDA {cuda}" if cuda else "no CUDA", otherwise="CUDA ?"))
    changed = member.changed.or_else(None)
    if changed and changed.changed:
        marks.append(f"{counted(changed.changed, 'file')} changed")
    return f"{member.name} {member.version}" + (f" ({', '.join(marks)})" if marks else "")


def _tools(facts: HostFacts) -> Iterator[Row]:
    tools = facts.toolchain
    told = [_tool(name, tool) for name, tool in tools.commands.items()]
    yield "jit", _join(*told, _told(tools.cuda_home, _cuda_home), Text(f"({tools.path.how})", "dim"))
    for toolkit in tools.toolkits.or_else(()):
        yield "toolkit", _join(_plain(toolkit.home), _told(toolkit.nvcc, "nvcc {}".format))
    pythons = [each.value for each in facts.interpreters if each.is_known]
    yield "python", _plain("\n".join(f"{each.version:<8}{each.path}" for each in pythons) or "none found")
    yield "uv", _told(facts.uv, lambda uv: f"{uv.version} {uv.path}" if uv else "none")


def _tool(name: str, tool: Fact[Tool | None]) -> Text:
    if tool.unknown is not None:
        return Text(f"{name} ").append_text(_unknown(tool.unknown))
    return Text(f"no {name}", "yellow") if tool.value is None else _plain(f"{name} {tool.value.version}")


def _cuda_home(home: CudaHome) -> str:
    return f"CUDA_HOME {home.path or 'none'}{f' {home.problem}' if home.problem else ''}"


def _disks(facts: HostFacts) -> Iterator[Row]:
    """Tell each filesystem once, with the paths that lie on it."""
    known = [disk.value for disk in facts.disks if disk.is_known]
    for mount in dict.fromkeys(disk.mount for disk in known):
        on_it = [disk for disk in known if disk.mount == mount]
        yield "disk", _plain(f"{_disk(on_it[0])}  {', '.join(disk.path for disk in on_it)}")
    yield from (("disk", _unknown(disk.unknown)) for disk in facts.disks if disk.unknown is not None)


def _disk(disk: Disk) -> str:
    marks = [name for name, holds in (("noexec", disk.noexec), ("read-only", disk.read_only)) if holds]
    told = f"{_size(disk.free)} of {_size(disk.total)} free  {disk.filesystem} on {disk.mount}"
    return f"{told}  {' '.join(marks)}" if marks else told


def _limited(rows: list[Row], what: str) -> Iterator[Row]:
    yield from rows[:_MOST_ROWS]
    if len(rows) > _MOST_ROWS:
        yield "", Text(f"and {len(rows) - _MOST_ROWS} more {what} (--json shows all)", "dim")


def _told(fact: Fact[T], tell: Callable[[T], str], label: str = "") -> Text:
    if fact.unknown is not None:
        return Text(f"{label} " if label else "").append_text(_unknown(fact.unknown))
    return _plain(tell(fact.value))


def _unknown(reason: str) -> Text:
    return Text(f"unknown: {printable(reason)}", "magenta")


def _plain(text: str) -> Text:
    return Text(printable_lines(text))


def _join(*parts: Text) -> Text:
    return Text("  ").join(parts)


def _command(words: tuple[str, ...]) -> str:
    line = shlex.join(words)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _size(size: int | None) -> str:
    return "?" if size is None else megabytes(size)
