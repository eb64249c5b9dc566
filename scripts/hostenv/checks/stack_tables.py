"""What is known of the stack's packages that no METADATA states: reviewed data, read once."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.document import list_of, parsed, read, table_of, text

if TYPE_CHECKING:
    from packaging.utils import NormalizedName

    from hostenv.document import Table

_expression = parsed(re.compile, "regular expression")


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobLoader:
    """A package that opens whatever its glob finds."""

    package: str
    takes: re.Pattern[str]
    source: str

    @classmethod
    def from_table(cls, table: Table) -> GlobLoader:
        """Read a ``[[loader]]``."""
        return cls(
            package=table.get("package", text),
            takes=table.get("takes", _expression),
            source=table.get("source", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Companion:
    """A library that opens others by name, which must lie beside it."""

    library: re.Pattern[str]
    opens: tuple[str, ...]
    distribution: str
    source: str

    @classmethod
    def from_table(cls, table: Table) -> Companion:
        """Read a ``[[companion]]``."""
        return cls(
            library=table.get("library", _expression),
            opens=table.get("opens", list_of(text)),
            distribution=table.get("distribution", text),
            source=table.get("source", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Namespace:
    """A namespace of operators, and the objects that register in it."""

    name: str
    package: str
    objects: tuple[str, ...]
    elsewhere: tuple[re.Pattern[str], ...]
    elsewhere_sources: tuple[re.Pattern[str], ...]

    @classmethod
    def from_table(cls, table: Table) -> Namespace:
        """Read a ``[[namespace]]``."""
        table.get("source", text)
        return cls(
            name=table.get("name", text),
            package=table.get("package", text),
            objects=table.get("objects", list_of(text)),
            elsewhere=table.get("elsewhere", list_of(_expression)),
            elsewhere_sources=table.get("elsewhere_sources", list_of(_expression)),
        )

    def is_elsewhere(self, operator: str, source: str) -> bool:
        """Tell whether an operator, or the source that calls it, is for another platform."""
        return any(each.fullmatch(operator) for each in self.elsewhere) or any(
            each.fullmatch(source) for each in self.elsewhere_sources
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Renamed:
    """A distribution that goes on under another name; both own the same packages."""

    before: NormalizedName
    after: NormalizedName

    @classmethod
    def from_table(cls, table: Table) -> Renamed:
        """Read a ``[[renamed]]``."""
        table.get("source", text)
        return cls(
            before=canonicalize_name(table.get("before", text)),
            after=canonicalize_name(table.get("after", text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StackTables:
    """All of it."""

    loaders: tuple[GlobLoader, ...]
    companions: tuple[Companion, ...]
    namespaces: tuple[Namespace, ...]
    renamed: tuple[Renamed, ...]

    @classmethod
    def from_table(cls, table: Table) -> StackTables:
        """Read ``stack.toml``."""
        return cls(
            loaders=table.get("loader", list_of(table_of(GlobLoader.from_table))),
            companions=table.get("companion", list_of(table_of(Companion.from_table))),
            namespaces=table.get("namespace", list_of(table_of(Namespace.from_table))),
            renamed=table.get("renamed", list_of(table_of(Renamed.from_table))),
        )


@functools.cache
def stack_tables() -> StackTables:
    """Return the reviewed tables."""
    found = resources.files("hostenv.checks").joinpath("data", "stack.toml").read_text(encoding="utf-8")
    return read(tomllib.loads(found), table_of(StackTables.from_table), document="stack.toml")
