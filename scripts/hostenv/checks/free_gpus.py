"""Which GPUs of a host are free, which are held, by what and since when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from hostenv.facts.fact import Fact

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from hostenv.facts.host_gpu import Gpu, GpuProcess
    from hostenv.facts.host_identity import HostIdentity
    from hostenv.facts.host_processes import HostProcess, Processes
    from hostenv.spec.host import ReservedGpu

IDLE_MEMORY = 64 << 20
"""Bytes that may be in use on a GPU that nobody holds. An H200 on driver 580 shows 0 MiB idle, a CUDA context
alone about 600 MiB (measured 2026-12-01); a display server takes some MiB more than this and is a process."""


class SeenGpus(Protocol):
    """What is needed to know: a whole probe has it, and so has a host's status."""

    @property
    def identity(self) -> HostIdentity:
        """Which machine it is, and whether it is a container."""

    @property
    def gpus(self) -> Fact[tuple[Gpu, ...]]:
        """What nvidia-smi shows."""

    @property
    def processes(self) -> Processes | None:
        """The processes seen at the same time."""


class Use(StrEnum):
    """Whether a GPU can be taken."""

    FREE = "free"
    HELD = "held"
    RESERVED = "reserved"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Something that holds a GPU. ``process`` is ``None`` where it cannot be seen from the probed host."""

    what: str
    bytes: int | None
    pid: int | None = None
    since: dt.datetime | None = None
    process: HostProcess | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """What becomes of one GPU. ``why`` says how that is known, ``reserved`` whom the spec keeps it for."""

    gpu: Gpu
    use: Use
    holders: tuple[Holder, ...]
    why: str
    reserved: ReservedGpu | None = None


def gpu_uses(host: SeenGpus, reserved: Sequence[ReservedGpu] = ()) -> Fact[tuple[GpuUse, ...]]:
    """Return the use of every GPU, or why it is unknown.

    Free means: nvidia-smi answered, shows no process, and the memory in use is at most :data:`IDLE_MEMORY`.
    Memory in use without a process belongs to something that is not visible here: another container, or
    a process of another PID namespace (NVIDIA's driver names only processes of the asker's).
    """
    if host.gpus.unknown is not None:
        return Fact(how=host.gpus.how, unknown=host.gpus.unknown)
    uses = tuple(_use(host, gpu, _reservation(gpu, reserved)) for gpu in host.gpus.value)
    return Fact(how=host.gpus.how, known_value=uses)


def _use(host: SeenGpus, gpu: Gpu, reserved: ReservedGpu | None) -> GpuUse:
    holders = tuple(_holder(host, gpu, process) for process in gpu.processes)
    used = gpu.memory_used
    if not holders and used is not None and used > IDLE_MEMORY:
        holders = (_hidden(host, gpu, used),)
    if holders:
        use, why = Use.HELD, "nvidia-smi shows what holds it"
        if all(holder.process is None for holder in holders):
            why = f"{_mebibytes(used)} in use"
    elif used is None:
        use, why = Use.UNKNOWN, "nvidia-smi does not tell the memory in use"
    else:
        use, why = Use.FREE, f"no process, {_mebibytes(used)} in use"
    if use is Use.FREE and reserved:
        use = Use.RESERVED
    return GpuUse(gpu=gpu, use=use, holders=holders, why=why, reserved=reserved)


def _reservation(gpu: Gpu, reserved: Sequence[ReservedGpu]) -> ReservedGpu | None:
    return next((each for each in reserved if gpu.uuid == each.uuid or gpu.index == each.index), None)


def _holder(host: SeenGpus, gpu: Gpu, shown: GpuProcess) -> Holder:
    seen = host.processes.listed if host.processes else ()
    process = next((each for each in seen if shown.pid == each.pid), None)
    # nvidia-smi's pid may belong to another PID namespace: only a process that has this GPU open is it.
    fits = process and any(memory.uuid == gpu.uuid for memory in process.gpu_memory)
    opened = process and (process.gpu_minors is None or gpu.minor is None or gpu.minor in process.gpu_minors)
    if process and fits and opened:
        return Holder(
            what=process.name, bytes=shown.memory, pid=process.pid, since=process.started, process=process
        )
    return Holder(what=shown.name or "a process that is not visible here", bytes=shown.memory, pid=shown.pid)


def _hidden(host: SeenGpus, gpu: Gpu, used: int) -> Holder:
    """Return the holder of memory that nvidia-smi shows no process for."""
    seen = host.processes.listed if host.processes else ()
    opened = [each for each in seen if each.gpu_minors and gpu.minor in each.gpu_minors]
    if len(opened) == 1:
        process = opened[0]
        return Holder(
            what=f"{process.name} (has its device open)",
            bytes=used,
            pid=process.pid,
            since=process.started,
            process=process,
        )
    where = "its container host or another container" if _is_container(host) else "another container"
    return Holder(what=f"something that is not visible here ({where}?)", bytes=used)


def _is_container(host: SeenGpus) -> bool:
    return host.identity.container.then(lambda name: name.kind != "none", otherwise=False)


def _mebibytes(size: int | None) -> str:
    return "unknown memory" if size is None else f"{size >> 20} MiB"
