"""The NVIDIA driver and the GPUs of a host; sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import flag, list_of, natural, optional, table_of, text
from hostenv.facts.fact import fact_of

if TYPE_CHECKING:
    from hostenv.document import Table
    from hostenv.facts.fact import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelModule:
    """The loaded kernel module; ``open`` says whether it is the open one, ``None``: not told."""

    version: str
    open: bool | None

    @classmethod
    def from_table(cls, table: Table) -> KernelModule:
        """Read a kernel module."""
        return cls(version=table.get("version", text), open=table.get("open", optional(flag)))


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelGpu:
    """A GPU as the driver's folder in /proc shows it."""

    pci: str
    name: str | None
    uuid: str | None
    minor: int | None

    @classmethod
    def from_table(cls, table: Table) -> KernelGpu:
        """Read a GPU."""
        return cls(
            pci=table.get("pci", text),
            name=table.get("name", optional(text)),
            uuid=table.get("uuid", optional(text)),
            minor=table.get("minor", optional(natural)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PciGpu:
    """An NVIDIA display controller on the PCI bus; ``driver`` is what the kernel bound to it."""

    address: str
    device: str
    driver: str | None

    @classmethod
    def from_table(cls, table: Table) -> PciGpu:
        """Read a PCI device."""
        return cls(
            address=table.get("address", text),
            device=table.get("device", text),
            driver=table.get("driver", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceNode:
    """A device node; ``usable``: the agent's user may read and write it."""

    path: str
    major: int
    minor: int
    mode: int
    usable: bool

    @classmethod
    def from_table(cls, table: Table) -> DeviceNode:
        """Read a device node."""
        return cls(
            path=table.get("path", text),
            major=table.get("major", natural),
            minor=table.get("minor", natural),
            mode=table.get("mode", natural),
            usable=table.get("usable", flag),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostDriver:
    """The driver as kernel and nvidia-smi tell it. ``cuda`` is the newest CUDA version it serves (``13.0``).

    What libcuda's own file name says stands with the libraries: the two can differ (catalogue K24).
    """

    kernel_module: Fact[KernelModule]
    kernel_gpus: Fact[tuple[KernelGpu, ...]]
    pci: Fact[tuple[PciGpu, ...]]
    device_nodes: Fact[tuple[DeviceNode, ...]]
    smi: Fact[str]
    cuda: Fact[str]

    @classmethod
    def from_table(cls, table: Table) -> HostDriver:
        """Read the part ``driver`` of a probe."""
        return cls(
            kernel_module=table.get("kernel_module", fact_of(table_of(KernelModule.from_table))),
            kernel_gpus=table.get("kernel_gpus", fact_of(list_of(table_of(KernelGpu.from_table)))),
            pci=table.get("pci", fact_of(list_of(table_of(PciGpu.from_table)))),
            device_nodes=table.get("device_nodes", fact_of(list_of(table_of(DeviceNode.from_table)))),
            smi=table.get("smi", fact_of(text)),
            cuda=table.get("cuda", fact_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process on a GPU as nvidia-smi names it: its pid may be another PID namespace's."""

    pid: int | None
    kind: str | None
    name: str | None
    memory: int | None

    @classmethod
    def from_table(cls, table: Table) -> GpuProcess:
        """Read a process."""
        return cls(
            pid=table.get("pid", optional(natural)),
            kind=table.get("kind", optional(text)),
            name=table.get("name", optional(text)),
            memory=table.get("memory", optional(natural)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MigDevice:
    """A slice of a GPU in MIG mode."""

    gpu_instance: str | None
    compute_instance: str | None
    memory_total: int | None
    memory_used: int | None

    @classmethod
    def from_table(cls, table: Table) -> MigDevice:
        """Read a slice."""
        return cls(
            gpu_instance=table.get("gpu_instance", optional(text)),
            compute_instance=table.get("compute_instance", optional(text)),
            memory_total=table.get("memory_total", optional(natural)),
            memory_used=table.get("memory_used", optional(natural)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU. ``index`` is nvidia-smi's, ``minor`` the number of ``/dev/nvidiaN``: they can differ."""

    index: int
    uuid: str
    name: str
    pci: str
    minor: int | None
    compute_capability: Fact[str]
    memory_total: int | None
    memory_used: int | None
    memory_free: int | None
    mig: str | None
    mig_devices: tuple[MigDevice, ...]
    processes: tuple[GpuProcess, ...]

    @classmethod
    def from_table(cls, table: Table) -> Gpu:
        """Read a GPU."""
        return cls(
            index=table.get("index", natural),
            uuid=table.get("uuid", text),
            name=table.get("name", text),
            pci=table.get("pci", text),
            minor=table.get("minor", optional(natural)),
            compute_capability=table.get("compute_capability", fact_of(text)),
            memory_total=table.get("memory_total", optional(natural)),
            memory_used=table.get("memory_used", optional(natural)),
            memory_free=table.get("memory_free", optional(natural)),
            mig=table.get("mig", optional(text)),
            mig_devices=table.get("mig_devices", list_of(table_of(MigDevice.from_table))),
            processes=table.get("processes", list_of(table_of(GpuProcess.from_table))),
        )
