"""What is known of packages' shared objects and of who brings a library: reviewed data, read once.

Every entry stands in ``data/objects.toml`` or ``data/libraries.toml`` with its source and date.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import TYPE_CHECKING

from hostenv.checks.finding import Severity
from hostenv.document import choice, list_of, mapping_of, optional, parsed, read, table_of, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table

_expression = parsed(re.compile, "regular expression")


class Picks(StrEnum):
    """How a package's loader picks one of its alternatives."""

    FIRST = "first-that-loads"
    TORCH = "torch-version"
    CUDA = "cuda-major"
    CAPABILITY = "compute-capability"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Alternatives of which one is picked. ``none``: how bad it is when there is no pick."""

    distribution: str
    objects: re.Pattern[str]
    picks: Picks
    capabilities: Mapping[str, str]
    none: Severity
    why: str
    fix: str | None

    @classmethod
    def from_table(cls, table: Table) -> Group:
        """Read a ``[[group]]``."""
        table.get("source", text)
        return cls(
            distribution=table.get("distribution", text),
            objects=table.get("objects", _expression),
            picks=table.get("picks", choice(Picks)),
            capabilities=table.get("capabilities", mapping_of(text), {}),
            none=table.get("none", choice(Severity)),
            why=table.get("why", text),
            fix=table.get("fix", optional(text), None),
        )

    def key(self, path: str) -> str | None:
        """Return which alternative ``path`` belongs to; ``None`` where it is not of this group."""
        found = self.objects.fullmatch(path)
        return (found["key"] or "") if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Optional:
    """Objects that are opened only by those who ask for them; ``lacks``: what may be missing then."""

    objects: re.Pattern[str]
    lacks: tuple[re.Pattern[str], ...]
    why: str

    @classmethod
    def from_table(cls, table: Table) -> Optional:
        """Read an ``[[optional]]``."""
        table.get("source", text)
        return cls(
            objects=table.get("objects", _expression),
            lacks=table.get("lacks", list_of(_expression), ()),
            why=table.get("why", text),
        )

    def excuses(self, path: str, library: str | None) -> bool:
        """Say whether ``path`` may fail for want of ``library`` (``None``: for another reason)."""
        if not self.objects.fullmatch(path):
            return False
        return not self.lacks or any(library and name.fullmatch(library) for name in self.lacks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """Who brings the libraries of a name."""

    name: re.Pattern[str]
    kind: str
    brings: str
    fix: str

    @classmethod
    def from_table(cls, table: Table) -> Provider:
        """Read a ``[[library]]``."""
        return cls(
            name=table.get("name", _expression),
            kind=table.get("kind", text),
            brings=table.get("brings", text),
            fix=table.get("fix", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectTables:
    """Groups and optional objects."""

    groups: tuple[Group, ...]
    optional: tuple[Optional, ...]

    @classmethod
    def from_table(cls, table: Table) -> ObjectTables:
        """Read ``objects.toml``."""
        return cls(
            groups=table.get("group", list_of(table_of(Group.from_table))),
            optional=table.get("optional", list_of(table_of(Optional.from_table))),
        )

    def group_of(self, path: str) -> Group | None:
        """Return the group that ``path`` belongs to."""
        return next((group for group in self.groups if group.key(path) is not None), None)


@functools.cache
def object_tables() -> ObjectTables:
    """Return the reviewed groups and optional objects."""
    return read(_data("objects.toml"), table_of(ObjectTables.from_table), document="objects.toml")


@functools.cache
def providers() -> tuple[Provider, ...]:
    """Return who brings which library."""
    return read(_data("libraries.toml"), table_of(_providers), document="libraries.toml")


def provider_of(library: str) -> tuple[str, str, str] | None:
    """Return (kind, who brings it, fix) of a library; ``None`` where nobody is known."""
    for provider in providers():
        found = provider.name.fullmatch(library)
        if found:
            groups = found.groups("")
            return provider.kind, provider.brings.format(*groups), provider.fix.format(*groups)
    return None


def _providers(table: Table) -> tuple[Provider, ...]:
    return table.get("library", list_of(table_of(Provider.from_table)))


def _data(name: str) -> dict[str, object]:
    return tomllib.loads(resources.files("hostenv.checks").joinpath("data", name).read_text("utf-8"))
