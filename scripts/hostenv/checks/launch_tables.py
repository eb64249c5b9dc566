"""Launch arguments and processors that packages need: reviewed data (``data/launch.toml``), read once."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.checks.gpu_tables import CapabilityPattern
from hostenv.document import list_of, optional, parsed, read, table_of, text

if TYPE_CHECKING:
    from hostenv.document import Table
    from hostenv.facts.gpu_code import DottedPair
    from hostenv.facts.surroundings import ServiceSettings

_version = parsed(Version, "version")
_pattern = parsed(CapabilityPattern.parse, "compute capability")


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """A value of an option that works on some GPUs only; ``until``: the first sglang that knows better."""

    options: tuple[str, ...]
    value: str
    on: tuple[CapabilityPattern, ...]
    kind: str
    instead: str
    source: str
    until: Version | None
    with_option: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Argument:
        """Read one ``[[argument]]``."""
        return cls(
            options=table.get("options", list_of(text)),
            value=table.get("value", text),
            on=table.get("on", list_of(_pattern)),
            kind=table.get("kind", text),
            instead=table.get("instead", text),
            source=table.get("source", text),
            until=table.get("until", optional(_version), None),
            with_option=table.get("with-option", list_of(text), ()),
        )

    def given(self, service: ServiceSettings) -> str | None:
        """Return the option by which the service gives this value; ``None`` where it does not."""
        if self.with_option and service.option(self.with_option[0]) not in self.with_option[1:]:
            return None
        return next((name for name in self.options if service.option(name) == self.value), None)

    def works_on(self, capability: DottedPair) -> bool:
        """Whether it works on a GPU of that compute capability."""
        return any(pattern.matches(capability) for pattern in self.on)


@dataclass(frozen=True, kw_only=True, slots=True)
class Processor:
    """What a distribution needs of an x86-64 processor."""

    distribution: str
    since: Version | None
    flags: tuple[str, ...]
    source: str

    @classmethod
    def from_table(cls, table: Table) -> Processor:
        """Read one ``[[processor]]``."""
        return cls(
            distribution=table.get("distribution", text),
            since=table.get("from", optional(_version), None),
            flags=table.get("flags", list_of(text)),
            source=table.get("source", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchTables:
    """See ``data/launch.toml``."""

    arguments: tuple[Argument, ...]
    processors: tuple[Processor, ...]

    @classmethod
    def from_table(cls, table: Table) -> LaunchTables:
        """Read ``launch.toml``."""
        return cls(
            arguments=table.get("argument", list_of(table_of(Argument.from_table))),
            processors=table.get("processor", list_of(table_of(Processor.from_table))),
        )


@functools.cache
def launch_tables() -> LaunchTables:
    """Return the content of ``data/launch.toml``."""
    content = resources.files("hostenv.checks").joinpath("data", "launch.toml").read_text(encoding="utf-8")
    return read(tomllib.loads(content), table_of(LaunchTables.from_table), document="launch.toml")
