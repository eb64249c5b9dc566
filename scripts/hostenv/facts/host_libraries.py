"""The host's libraries as the loader would take them, with versions and, where saved, exports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.document import InvalidValueError, list_of, natural, optional, table_of, text
from hostenv.facts.fact import fact_of

if TYPE_CHECKING:
    from hostenv.document import Node, Table
    from hostenv.facts.fact import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibrary:
    """What the loader finds for ``name``; ``path`` is ``None`` where it finds nothing.

    ``real`` is the file behind the links. ``driver_version`` is the version in a driver library's file name:
    a toolkit's stub has none. ``versions`` are the version definitions (``GLIBCXX_3.4.33``). ``exports``
    are symbols as ``nm -D`` writes them (``name``, ``name@@VERSION``, ``name@VERSION``), ``None`` where
    they were not saved: the library then counts as present, its symbols as unknown.
    """

    name: str
    path: str | None
    real: str | None
    soname: str | None
    size: int | None
    driver_version: str | None
    versions: tuple[str, ...]
    exports: tuple[str, ...] | None

    @classmethod
    def from_table(cls, table: Table) -> HostLibrary:
        """Read a library."""
        return cls(
            name=table.get("name", text),
            path=table.get("path", optional(text)),
            real=table.get("real", optional(text), None),
            soname=table.get("soname", optional(text), None),
            size=table.get("size", optional(natural), None),
            driver_version=table.get("driver_version", optional(text), None),
            versions=table.get("versions", list_of(text), ()),
            exports=table.get("exports", list_of(text), None),
        )

    @property
    def is_stub(self) -> bool:
        """Whether it is a driver library that belongs to no driver: a toolkit's stub (catalogue K27)."""
        return self.path is not None and self.driver_version is None and self.name.startswith("libcuda.so")

    @property
    def is_compat(self) -> bool:
        """Whether it is the forward-compatibility driver of a toolkit (catalogue K23)."""
        return self.real is not None and "/compat/" in self.real

    def newest(self, prefix: str) -> Version | None:
        """Return the newest version that it defines under ``prefix`` (``GLIBCXX``, ``CXXABI``, ``GLIBC``)."""
        numbers = (re.fullmatch(rf"{re.escape(prefix)}_(\d+(?:\.\d+)*)", name) for name in self.versions)
        return max((Version(match[1]) for match in numbers if match), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibraries:
    """The libraries asked for, and, where saved, all names (``present``) that the loader's cache holds."""

    read: tuple[Fact[HostLibrary], ...]
    present: tuple[tuple[str, str], ...] | None

    @classmethod
    def from_table(cls, table: Table) -> HostLibraries:
        """Read the part ``libraries`` of a probe."""
        return cls(
            read=table.get("read", list_of(fact_of(table_of(HostLibrary.from_table)))),
            present=table.get("present", list_of(_pair), None),
        )

    def find(self, name: str) -> HostLibrary | None:
        """Return the library of that name, ``None`` where it was not asked for or could not be read."""
        known = (fact.value for fact in self.read if fact.is_known)
        return next((library for library in known if library.name == name), None)


def _pair(node: Node) -> tuple[str, str]:
    values = list_of(text)(node)
    if len(values) != 2:  # noqa: PLR2004  name and path
        raise InvalidValueError("must be a name and a path")
    return values[0], values[1]
