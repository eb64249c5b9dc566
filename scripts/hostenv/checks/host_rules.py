"""Rules on whether the files and the processor are those that count: catalogue K55 and K56."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.finding import Severity
from hostenv.checks.jit_tables import is_older
from hostenv.checks.judge import Rule
from hostenv.checks.launch_tables import launch_tables
from hostenv.checks.shadow_rules import is_within
from hostenv.facts.host import HostFacts
from hostenv.facts.host_processes import Place
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.host_processes import HostProcess


def _elsewhere(facts: Facts) -> Iterator[Finding]:
    processes = facts[HostFacts].processes
    for process in processes.listed if processes else ():
        place = process.place
        if place.unknown is not None and process.gpu_memory:
            yield ELSEWHERE.finding(
                object=f"pid {process.pid} {process.name}",
                severity=Severity.UNKNOWN,
                message=f"not judged: whether its files are those of this host: {place.unknown}",
            )
        elif place.known_value is Place.ELSEWHERE and _same_path(facts, process):
            where = f"container {process.container}" if process.container else "another mount namespace"
            yield ELSEWHERE.finding(
                object=f"pid {process.pid} {process.name}",
                message=f"it runs in {where}: what is judged here has that path, and is not what it uses",
                evidence=tuple(f"{name} namespace {number}" for name, number in process.namespaces.items()),
                fix=f"judge it inside {where}: a spec of its own",
            )


def _same_path(facts: Facts, process: HostProcess) -> bool:
    venv = facts[Surroundings].venv
    words = (*process.command[:1], process.executable.or_else(""))
    return any(is_within(word, venv) for word in words)


def _processor(facts: Facts) -> Iterator[Finding]:
    system, installed = facts[HostFacts].system, facts[LoadFacts].installed
    if system.architecture.or_else("x86_64") != "x86_64":
        return
    for needs in launch_tables().processors:
        version = installed.get(needs.distribution)
        if version is None or (needs.since and is_older(version, needs.since)):
            continue
        if not system.cpu.is_known or not system.cpu.value.flags:
            reason = system.cpu.unknown or "/proc/cpuinfo names no flags"
            yield PROCESSOR.finding(
                object=needs.distribution, severity=Severity.UNKNOWN, message=f"not judged: {reason}"
            )
            continue
        missing = [flag for flag in needs.flags if flag not in system.cpu.value.flags]
        if missing:
            yield PROCESSOR.finding(
                object=needs.distribution,
                message="importing it kills the process (Illegal instruction): the processor shows no"
                f" {', '.join(missing)}",
                evidence=(
                    f"{needs.distribution} {version}: {needs.source}",
                    f"CPU: {system.cpu.value.model}",
                ),
                fix="in a virtual machine give it the host's processor (Proxmox: cpu: host)",
            )


ELSEWHERE = Rule(
    id="process-elsewhere",
    severity=Severity.WARNING,
    kind="K55",
    reference="https://github.com/benfred/py-spy/issues/49",
    check=_elsewhere,
)
PROCESSOR = Rule(
    id="processor-too-old",
    severity=Severity.ERROR,
    kind="K56",
    reference="https://github.com/IBM/MAX-Object-Detector/issues/131",
    check=_processor,
)

RULES = (ELSEWHERE, PROCESSOR)
"""Catalogue K55 and K56."""
