"""What compiles and runs on a host: toolkits, compilers as the service sees them, interpreters, uv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import flag, list_of, mapping_of, optional, table_of, text
from hostenv.facts.fact import fact_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table
    from hostenv.facts.fact import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A program and the version it prints."""

    path: str
    version: str | None

    @classmethod
    def from_table(cls, table: Table) -> Tool:
        """Read a tool."""
        return cls(path=table.get("path", text), version=table.get("version", optional(text)))


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaHome:
    """What JIT compilers take for CUDA_HOME: the folder, which variable or rule says so, what is wrong."""

    path: str | None
    origin: str
    problem: str | None

    @classmethod
    def from_table(cls, table: Table) -> CudaHome:
        """Read a CUDA_HOME."""
        return cls(
            path=table.get("path", optional(text)),
            origin=table.get("from", text),
            problem=table.get("problem", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """A CUDA toolkit in one of the usual folders; ``also`` are the links that lead to it."""

    home: str
    also: tuple[str, ...]
    nvcc: Fact[str | None]

    @classmethod
    def from_table(cls, table: Table) -> Toolkit:
        """Read a toolkit."""
        return cls(
            home=table.get("home", text),
            also=table.get("also", list_of(text)),
            nvcc=table.get("nvcc", fact_of(optional(text))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostToolchain:
    """What kernels that compile at run time would find, with the service's PATH where the spec gives one."""

    path: Fact[str]
    commands: Mapping[str, Fact[Tool | None]]
    cuda_home: Fact[CudaHome]
    toolkits: Fact[tuple[Toolkit, ...]]
    libcuda_for_linking: Fact[str | None]

    @classmethod
    def from_table(cls, table: Table) -> HostToolchain:
        """Read the part ``toolchain`` of a probe."""
        return cls(
            path=table.get("path", fact_of(text)),
            commands=table.get("commands", mapping_of(fact_of(optional(table_of(Tool.from_table))))),
            cuda_home=table.get("cuda_home", fact_of(table_of(CudaHome.from_table))),
            toolkits=table.get("toolkits", fact_of(list_of(table_of(Toolkit.from_table)))),
            libcuda_for_linking=table.get("libcuda_for_linking", fact_of(optional(text))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostInterpreter:
    """A Python interpreter of the host. ``headers``: Python.h is there; ``sites``: its site-packages."""

    path: str
    version: str
    implementation: str
    soabi: str | None
    prefix: str
    virtual: bool
    include: str | None
    headers: bool
    externally_managed: bool
    sites: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> HostInterpreter:
        """Read an interpreter."""
        return cls(
            path=table.get("path", text),
            version=table.get("version", text),
            implementation=table.get("implementation", text),
            soabi=table.get("soabi", optional(text)),
            prefix=table.get("prefix", text),
            virtual=table.get("virtual", flag),
            include=table.get("include", optional(text)),
            headers=table.get("headers", flag),
            externally_managed=table.get("externally_managed", flag),
            sites=table.get("sites", list_of(text)),
        )
