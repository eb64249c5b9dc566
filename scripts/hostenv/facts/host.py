"""All facts of one host, as one probe read them or as they were saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import InvalidValueError, integer, list_of, moment, number, optional, read, table_of
from hostenv.facts.fact import fact_of
from hostenv.facts.host_environments import Environments, ModelFolder, Unit
from hostenv.facts.host_gpu import Gpu, HostDriver
from hostenv.facts.host_identity import HostIdentity
from hostenv.facts.host_libraries import HostLibraries
from hostenv.facts.host_processes import Processes
from hostenv.facts.host_system import Disk, HostSystem
from hostenv.facts.host_tools import HostInterpreter, HostToolchain, Tool

if TYPE_CHECKING:
    import datetime as dt

    from hostenv.document import Node, Table
    from hostenv.facts.fact import Fact

VERSION = 1
"""The form that is read here; ``docs/schema/facts.schema.json`` describes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """What a probe read. ``processes`` is ``None`` in saved facts; ``seconds`` is what the agent took."""

    read_at: dt.datetime
    seconds: float | None
    identity: HostIdentity
    system: HostSystem
    driver: HostDriver
    gpus: Fact[tuple[Gpu, ...]]
    libraries: HostLibraries
    disks: tuple[Fact[Disk], ...]
    toolchain: HostToolchain
    interpreters: tuple[Fact[HostInterpreter], ...]
    uv: Fact[Tool | None]
    venvs: Environments
    units: Fact[tuple[Unit, ...]]
    models: tuple[Fact[ModelFolder], ...]
    processes: Processes | None

    @classmethod
    def from_table(cls, table: Table) -> HostFacts:
        """Read the result of the operation ``probe.host``."""
        table.get("version", _version)
        return cls(
            read_at=table.get("read_at", moment),
            seconds=table.get("seconds", number, None),
            identity=table.get("identity", table_of(HostIdentity.from_table)),
            system=table.get("system", table_of(HostSystem.from_table)),
            driver=table.get("driver", table_of(HostDriver.from_table)),
            gpus=table.get("gpus", fact_of(list_of(table_of(Gpu.from_table)))),
            libraries=table.get("libraries", table_of(HostLibraries.from_table)),
            disks=table.get("disks", list_of(fact_of(table_of(Disk.from_table)))),
            toolchain=table.get("toolchain", table_of(HostToolchain.from_table)),
            interpreters=table.get("interpreters", list_of(fact_of(table_of(HostInterpreter.from_table)))),
            uv=table.get("uv", fact_of(optional(table_of(Tool.from_table)))),
            venvs=table.get("venvs", table_of(Environments.from_table)),
            units=table.get("units", fact_of(list_of(table_of(Unit.from_table)))),
            models=table.get("models", list_of(fact_of(table_of(ModelFolder.from_table)))),
            processes=table.get("processes", table_of(Processes.from_table), None),
        )

    @classmethod
    def from_dict(cls, document: object, *, name: str) -> HostFacts:
        """Read parsed JSON; ``name`` stands in messages. Raises :class:`~hostenv.document.DocumentError`."""
        return read(document, table_of(cls.from_table), document=name)

    @property
    def gpu_uuids(self) -> frozenset[str]:
        """UUIDs of all GPUs that nvidia-smi or the kernel names; empty where neither tells any."""
        by_smi = {gpu.uuid for gpu in self.gpus.or_else(())}
        return frozenset(by_smi | {gpu.uuid for gpu in self.driver.kernel_gpus.or_else(()) if gpu.uuid})


def _version(node: Node) -> int:
    value = integer(node)
    if value != VERSION:
        raise InvalidValueError(f"is version {value}, this hostenv reads {VERSION}: probe again with --save")
    return value
