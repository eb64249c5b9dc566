"""What compiling kernels at run time needs: reviewed data (``data/jit.toml``), read once."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.checks.gpu_tables import CapabilityPattern
from hostenv.document import flag, list_of, mapping_of, natural, optional, parsed, read, table_of, text
from hostenv.facts.gpu_code import DottedPair

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table

_pair = parsed(DottedPair.parse, "version")
_version = parsed(Version, "version")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimeCompiler:
    """A distribution that compiles at run time, and what for: see ``data/jit.toml``."""

    distribution: str
    since: Version | None
    needs: tuple[str, ...]
    unless: str | None
    headers: bool
    libcuda: bool
    source: str

    @classmethod
    def from_table(cls, table: Table) -> RunTimeCompiler:
        """Read one ``[[compiler]]``."""
        return cls(
            distribution=table.get("distribution", text),
            since=table.get("from", optional(_version), None),
            needs=table.get("needs", list_of(text)),
            unless=table.get("unless", optional(text), None),
            headers=table.get("headers", flag, default=False),
            libcuda=table.get("libcuda", flag, default=False),
            source=table.get("source", text),
        )

    def compiles(self, installed: Mapping[str, str]) -> bool:
        """Whether it will compile in an environment that holds these distributions."""
        if self.distribution not in installed or self.unless in installed:
            return False
        return self.since is None or not is_older(installed[self.distribution], self.since)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A newer nvcc that a distribution asks for on some GPUs: see ``data/jit.toml``."""

    distribution: str
    before: Version
    capability: CapabilityPattern
    nvcc: DottedPair
    source: str

    @classmethod
    def from_table(cls, table: Table) -> Asked:
        """Read one ``[[asks]]``."""
        return cls(
            distribution=table.get("distribution", text),
            before=table.get("before", _version),
            capability=table.get("capability", parsed(CapabilityPattern.parse, "compute capability")),
            nvcc=table.get("nvcc", _pair),
            source=table.get("source", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JitTables:
    """See ``data/jit.toml`` for each table's meaning and source."""

    nvcc: Mapping[DottedPair, DottedPair]
    gcc: Mapping[DottedPair, int]
    compilers: tuple[RunTimeCompiler, ...]
    asks: tuple[Asked, ...]

    @classmethod
    def from_table(cls, table: Table) -> JitTables:
        """Read ``jit.toml``."""
        return cls(
            nvcc={DottedPair.parse(cc): cuda for cc, cuda in table.get("nvcc", mapping_of(_pair)).items()},
            gcc={
                DottedPair.parse(cuda): gcc
                for cuda, gcc in table.get("newest-gcc", mapping_of(natural)).items()
            },
            compilers=table.get("compiler", list_of(table_of(RunTimeCompiler.from_table))),
            asks=table.get("asks", list_of(table_of(Asked.from_table))),
        )

    def newest_gcc(self, cuda: DottedPair) -> int | None:
        """Return the newest GCC major that a CUDA lets through; ``None``: older than the table."""
        return max((gcc for since, gcc in self.gcc.items() if since <= cuda), default=None)


def is_older(version: str, than: Version) -> bool:
    """Whether a version, as it stands in METADATA, is older; what cannot be read is not."""
    try:
        return Version(version) < than
    except ValueError:
        return False


@functools.cache
def jit_tables() -> JitTables:
    """Return the content of ``data/jit.toml``."""
    content = resources.files("hostenv.checks").joinpath("data", "jit.toml").read_text(encoding="utf-8")
    return read(tomllib.loads(content), table_of(JitTables.from_table), document="jit.toml")
