"""Kernel, distribution, processor, memory and disks of a host; sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import flag, list_of, natural, optional, table_of, text
from hostenv.facts.fact import fact_of

if TYPE_CHECKING:
    from hostenv.document import Table
    from hostenv.facts.fact import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class LinuxDistribution:
    """What os-release says: ``debian``, ``12``, ``Debian GNU/Linux 12 (bookworm)``."""

    id: str
    version: str | None
    name: str

    @classmethod
    def from_table(cls, table: Table) -> LinuxDistribution:
        """Read a distribution."""
        return cls(
            id=table.get("id", text),
            version=table.get("version", optional(text)),
            name=table.get("name", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """The processors; ``flags`` as /proc/cpuinfo names them."""

    model: str | None
    count: int | None
    flags: frozenset[str]

    @classmethod
    def from_table(cls, table: Table) -> Cpu:
        """Read the processors."""
        return cls(
            model=table.get("model", optional(text)),
            count=table.get("count", optional(natural)),
            flags=frozenset(table.get("flags", list_of(text)) or ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """RAM: all of it, and what could be taken now without swapping."""

    total: int
    available: int | None

    @classmethod
    def from_table(cls, table: Table) -> Memory:
        """Read the memory."""
        return cls(total=table.get("total", natural), available=table.get("available", optional(natural)))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSystem:
    """The ground that binaries stand on. ``glibc`` is the running one's version (``2.39``)."""

    kernel: Fact[str]
    architecture: Fact[str]
    distribution: Fact[LinuxDistribution]
    glibc: Fact[str]
    cpu: Fact[Cpu]
    memory: Fact[Memory]

    @classmethod
    def from_table(cls, table: Table) -> HostSystem:
        """Read the part ``system`` of a probe."""
        return cls(
            kernel=table.get("kernel", fact_of(text)),
            architecture=table.get("architecture", fact_of(text)),
            distribution=table.get("distribution", fact_of(table_of(LinuxDistribution.from_table))),
            glibc=table.get("glibc", fact_of(text)),
            cpu=table.get("cpu", fact_of(table_of(Cpu.from_table))),
            memory=table.get("memory", fact_of(table_of(Memory.from_table))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """The filesystem that holds ``path``, or will once the path is made (``exists``).

    Saved facts hold no free space: it is ``None`` there.
    """

    path: str
    exists: bool
    mount: str
    filesystem: str
    device: str
    total: int
    free: int | None
    files_free: int | None
    noexec: bool
    read_only: bool
    options: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Disk:
        """Read a disk."""
        return cls(
            path=table.get("path", text),
            exists=table.get("exists", flag),
            mount=table.get("mount", text),
            filesystem=table.get("filesystem", text),
            device=table.get("device", text),
            total=table.get("total", natural),
            free=table.get("free", optional(natural)),
            files_free=table.get("files_free", optional(natural)),
            noexec=table.get("noexec", flag),
            read_only=table.get("read_only", flag),
            options=table.get("options", list_of(text)),
        )
