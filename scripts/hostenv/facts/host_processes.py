"""The processes of a host that hold GPUs or look like servers, and the namespaces seen beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hostenv.document import (
    choice,
    flag,
    integer,
    list_of,
    mapping_of,
    moment,
    natural,
    optional,
    table_of,
    text,
)
from hostenv.facts.fact import fact_of
from hostenv.facts.host_environments import Environment
from hostenv.facts.host_identity import ContainerName

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from hostenv.document import Table
    from hostenv.facts.fact import Fact


class Reason(StrEnum):
    """Why a process is told."""

    GPU = "gpu"
    SERVER = "server"
    UNIT = "unit"


class Place(StrEnum):
    """Whether a process's files are those of the probed root."""

    HERE = "here"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """Where a process listens."""

    address: str
    port: int

    @classmethod
    def from_table(cls, table: Table) -> Port:
        """Read a place to listen."""
        return cls(address=table.get("address", text), port=table.get("port", natural))


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Memory that a process holds on one GPU, in bytes; ``None``: nvidia-smi did not tell."""

    uuid: str
    index: int
    bytes: int | None

    @classmethod
    def from_table(cls, table: Table) -> GpuMemory:
        """Read memory on a GPU."""
        return cls(
            uuid=table.get("uuid", text),
            index=table.get("index", natural),
            bytes=table.get("bytes", optional(natural)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostProcess:
    """A process. Paths are as the process sees them: ``place`` says whether they mean the host's files.

    ``command`` has its secrets masked. ``ports`` and ``gpu_minors`` (the ``/dev/nvidiaN`` it has open) are
    ``None`` where its descriptors may not be read; ``refused`` says why. A process may hold a GPU's node
    open without using the GPU: ``gpu_memory`` is what it really holds. ``inner_pid`` is its id in a PID
    namespace of its own.
    """

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    reasons: tuple[Reason, ...]
    user: str | None
    started: dt.datetime
    memory: int
    unit: str | None
    container: ContainerName | None
    inner_pid: int | None
    namespaces: Mapping[str, int]
    ports: tuple[Port, ...] | None
    gpu_minors: tuple[int, ...] | None
    gpu_memory: tuple[GpuMemory, ...]
    refused: str | None
    executable: Fact[str]
    place: Fact[Place]
    venv: Fact[Environment | None]

    @classmethod
    def from_table(cls, table: Table) -> HostProcess:
        """Read a process."""
        return cls(
            pid=table.get("pid", natural),
            parent=table.get("parent", natural),
            name=table.get("name", text),
            command=table.get("command", list_of(text)),
            reasons=table.get("reasons", list_of(choice(Reason))),
            user=table.get("user", optional(text)),
            started=table.get("started", moment),
            memory=table.get("memory", integer),
            unit=table.get("unit", optional(text)),
            container=table.get("container", optional(table_of(ContainerName.from_table))),
            inner_pid=table.get("inner_pid", optional(natural)),
            namespaces=table.get("namespaces", mapping_of(integer)),
            ports=table.get("ports", optional(list_of(table_of(Port.from_table)))),
            gpu_minors=table.get("gpu_minors", optional(list_of(natural))),
            gpu_memory=table.get("gpu_memory", list_of(table_of(GpuMemory.from_table))),
            refused=table.get("refused", optional(text)),
            executable=table.get("executable", fact_of(text)),
            place=table.get("place", fact_of(choice(Place))),
            venv=table.get("venv", fact_of(optional(table_of(Environment.from_table)))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NamespaceGroup:
    """Processes seen on the host that are in other namespaces than the agent: a container, or part of one.

    The kernel gives no inode to two namespaces that live, so the numbers are the same seen from inside.
    """

    pid_namespace: int
    mount_namespace: int
    container: ContainerName | None
    pid: int
    processes: int

    @classmethod
    def from_table(cls, table: Table) -> NamespaceGroup:
        """Read a group."""
        return cls(
            pid_namespace=table.get("pid_namespace", natural),
            mount_namespace=table.get("mount_namespace", natural),
            container=table.get("container", optional(table_of(ContainerName.from_table))),
            pid=table.get("pid", natural),
            processes=table.get("processes", natural),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """One look at all processes. ``hidden``: how many may not be read by the agent's user."""

    listed: tuple[HostProcess, ...]
    seen: int
    hidden: int
    complete: bool
    namespaces: tuple[NamespaceGroup, ...]

    @classmethod
    def from_table(cls, table: Table) -> Processes:
        """Read the part ``processes`` of a probe."""
        return cls(
            listed=table.get("listed", list_of(table_of(HostProcess.from_table))),
            seen=table.get("seen", natural),
            hidden=table.get("hidden", natural),
            complete=table.get("complete", flag),
            namespaces=table.get("namespaces", list_of(table_of(NamespaceGroup.from_table))),
        )
