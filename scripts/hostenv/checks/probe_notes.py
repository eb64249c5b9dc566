"""What stands out in the facts of one host: what an operator would want to know before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent import amounts
from hostenv.agent.amounts import megabytes
from hostenv.checks.finding import Finding, Severity
from hostenv.checks.free_gpus import Use, gpu_uses
from hostenv.facts.host_processes import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostenv.facts.host import HostFacts
    from hostenv.facts.host_processes import HostProcess
    from hostenv.spec.host import Identity
    from hostenv.spec.spec import Spec

DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")


def probe_notes(
    spec: Spec, facts: HostFacts, *, host_key: str | None, identities: Mapping[str, Identity]
) -> tuple[Finding, ...]:
    """Return what stands out. ``host_key`` is what SSH showed, ``identities`` those of all specs by name."""
    return (
        *_identity(spec, facts, host_key, identities),
        *_driver(facts),
        *_gpus(spec, facts),
        *_processes(facts),
        *_disks(spec, facts),
        *_jit(spec, facts),
        *_models(facts),
        *_unseen(facts),
    )


def _identity(
    spec: Spec, facts: HostFacts, host_key: str | None, identities: Mapping[str, Identity]
) -> Iterator[Finding]:
    machine = facts.identity.machine_id
    if not spec.identity:
        if not spec.is_local:
            message = "no identity in the spec: nothing can be written there"
            yield _note("identity-missing", spec.name, message)
        return
    if not machine.is_known:
        yield _unknown("identity", "machine id", machine.unknown)
    elif machine.value != spec.identity.machine_id:
        owner = _owner(machine.value, identities)
        evidence = (f"spec: {spec.identity.machine_id}", f"host: {machine.value}")
        message = f"another machine than the spec's{f': this is {owner}' if owner else ''}"
        yield _note("identity-differs", spec.name, message, Severity.ERROR, evidence=evidence)

    if spec.identity.host_key and host_key and host_key != spec.identity.host_key:
        evidence = (f"spec: {spec.identity.host_key}", f"host: {host_key}")
        yield _note(
            "identity-differs",
            spec.name,
            "another host key than the spec's",
            Severity.ERROR,
            evidence=evidence,
        )


def _owner(machine_id: str, identities: Mapping[str, Identity]) -> str | None:
    return next((name for name, each in identities.items() if each.machine_id == machine_id), None)


def _driver(facts: HostFacts) -> Iterator[Finding]:
    module = facts.driver.kernel_module
    for name in DRIVER_LIBRARIES:
        library = facts.libraries.find(name)
        if library is None or library.path is None:
            continue
        if library.is_stub:
            yield _note("driver-stub", library.path, f"{name} is a toolkit's stub, no driver", kind="K27")
        elif library.is_compat:
            yield _note("driver-compat", library.path, "forward compatibility comes first", kind="K23")
        elif module.is_known and library.driver_version not in {None, module.value.version}:
            evidence = (f"kernel module: {module.value.version}", f"{name}: {library.driver_version}")
            message = "user-space driver and kernel module differ"
            yield _note("driver-mismatch", library.path, message, kind="K24", evidence=evidence)
    nodes = facts.driver.device_nodes
    if module.is_known and nodes.is_known:
        closed = [node.path for node in nodes.value if not node.usable and "/nvidia-caps/" not in node.path]
        if closed:
            yield _note("device-closed", closed[0], "this user may not use the device nodes", kind="K25")
        if "/dev/nvidia-uvm" not in {node.path for node in nodes.value}:
            yield _note("device-missing", "/dev/nvidia-uvm", "CUDA cannot start without it", kind="K25")


def _gpus(spec: Spec, facts: HostFacts) -> Iterator[Finding]:
    uses = gpu_uses(facts, spec.gpus.reserved if spec.gpus else ())
    if uses.unknown is not None:
        if spec.gpus or facts.driver.pci.then(bool, otherwise=False):
            yield _unknown("gpus", spec.name, uses.unknown)
        return
    for use in uses.value:
        if use.use is Use.HELD and any(holder.process is None for holder in use.holders):
            evidence = tuple(f"{holder.what}" for holder in use.holders)
            yield _note("gpu-held-unseen", f"GPU {use.gpu.index}", use.why, evidence=evidence)
    if spec.gpus:
        yield from _expected(spec, facts)


def _expected(spec: Spec, facts: HostFacts) -> Iterator[Finding]:
    wanted, gpus = spec.gpus, facts.gpus.value
    if wanted and wanted.count is not None and wanted.count != len(gpus):
        yield _note(
            "gpu-count", spec.name, f"{amounts.counted(len(gpus), 'GPU')}, the spec names {wanted.count}"
        )
    for gpu in gpus:
        if wanted and wanted.model and wanted.model not in gpu.name:
            yield _note("gpu-model", f"GPU {gpu.index}", f"is {gpu.name}, the spec names {wanted.model}")
        capability = gpu.compute_capability
        if wanted and wanted.compute_capability and capability.is_known:
            if capability.value != wanted.compute_capability:
                message = f"compute capability {capability.value}, the spec names {wanted.compute_capability}"
                yield _note("gpu-capability", f"GPU {gpu.index}", message)
        elif capability.unknown is not None:
            yield _unknown("gpu-capability", f"GPU {gpu.index}", capability.unknown)


def _processes(facts: HostFacts) -> Iterator[Finding]:
    for process in facts.processes.listed if facts.processes else ():
        if process.place.or_else(None) is Place.ELSEWHERE:
            yield _note("process-elsewhere", f"pid {process.pid}", _elsewhere(process), kind="K55")
        elif process.place.unknown is not None:
            yield _unknown("process-place", f"pid {process.pid} {process.name}", process.place.unknown)


def _elsewhere(process: HostProcess) -> str:
    where = f"container {process.container}" if process.container else "another mount namespace"
    venv = process.venv
    if venv.unknown is not None:
        return f"{process.name} runs in {where}; its environment is unknown: {venv.unknown}"
    read = f", read through {venv.how}" if venv.value else ""
    return f"{process.name} runs in {where}: its paths are not this host's{read}"


def _disks(spec: Spec, facts: HostFacts) -> Iterator[Finding]:
    for disk in facts.disks:
        if disk.unknown is not None:
            yield _unknown("disk", disk.how, disk.unknown)
    ground = facts.disks[0].or_else(None) if facts.disks else None
    if ground and ground.noexec:
        yield _note("root-noexec", ground.path, f"{ground.mount} is mounted noexec", kind="K53")
    if ground and ground.read_only:
        yield _note("root-read-only", ground.path, f"{ground.mount} is mounted read-only")
    if ground and ground.free is not None and ground.free < spec.build.min_free:
        message = f"{megabytes(ground.free)} free, the spec keeps {megabytes(spec.build.min_free)}"
        yield _note("root-full", ground.path, message)


def _jit(spec: Spec, facts: HostFacts) -> Iterator[Finding]:
    tools = facts.toolchain
    for command in spec.system.commands:
        tool = tools.commands.get(command.name)
        if tool is None:
            continue
        if tool.unknown is not None:
            yield _unknown("command", command.name, tool.unknown)
        elif tool.value is None:
            message = f"is not on the PATH of {tools.path.how}"
            yield _note("command-missing", command.name, message, kind="K37")
        elif command.specifier and not (tool.value.version and tool.value.version in command.specifier):
            message = f"is {tool.value.version or 'of unknown version'}, the spec wants {command.specifier}"
            yield _note("command-version", tool.value.path, message, kind="K38")
    home = tools.cuda_home.or_else(None)
    if home and home.problem and home.origin != "default":
        yield _note("cuda-home", home.path or home.origin, f"{home.origin} {home.problem}", kind="K37")
    for name in spec.system.libraries:
        library = facts.libraries.find(name)
        if library is not None and library.path is None:
            yield _note("library-missing", name, "the loader would not find it", kind="K18")


def _models(facts: HostFacts) -> Iterator[Finding]:
    for model in facts.models:
        if model.unknown is not None:
            yield _unknown("model", model.how, model.unknown)
        elif not model.value.exists:
            yield _note("model-missing", model.value.path, "is not there")
        elif model.value.missing:
            evidence = tuple(model.value.missing)
            yield _note("model-incomplete", model.value.path, "lacks shards of its index", evidence=evidence)


def _unseen(facts: HostFacts) -> Iterator[Finding]:
    processes = facts.processes
    if processes and processes.hidden:
        message = f"{processes.hidden} of {amounts.processes(processes.seen)} may not be read by this user"
        yield _note("processes-hidden", "processes", message, Severity.NOTE)
    if not facts.venvs.complete:
        yield _note("search-cut", "venvs", "the search for environments ended early", Severity.NOTE)


def _note(  # noqa: PLR0913, PLR0917  a finding's fields
    rule: str,
    about: str,
    message: str,
    severity: Severity = Severity.WARNING,
    kind: str | None = None,
    evidence: tuple[str, ...] = (),
    fix: str | None = None,
) -> Finding:
    return Finding(
        rule=rule, severity=severity, object=about, message=message, kind=kind, evidence=evidence, fix=fix
    )


def _unknown(rule: str, about: str, reason: str | None) -> Finding:
    return _note(rule, about, reason or "unknown", Severity.UNKNOWN)
