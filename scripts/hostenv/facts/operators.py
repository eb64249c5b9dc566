"""The two sides of operators: what Python sources call and expect, and what shared objects register.

Paths are relative to site-packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import (
    InvalidValueError,
    anything,
    list_of,
    mapping_of,
    optional,
    table_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Node, Table

_CALL, _STATED = 5, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call of ``torch.ops.NAMESPACE.OPERATOR``; ``positional`` is ``None`` where not known."""

    namespace: str
    operator: str
    line: int
    positional: int | None
    keywords: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """A pair of words on a line: a distribution and its least version, or a module and a name of it."""

    subject: str
    value: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """What one source says: calls, operators that Python itself ``defines``, least versions, imported names.

    ``owner`` is the distribution (``name==version``) whose RECORD names the source.
    """

    owner: str
    calls: tuple[Call, ...]
    defines: tuple[str, ...]
    minimums: tuple[Stated, ...]
    names: tuple[Stated, ...]

    @classmethod
    def from_table(cls, table: Table) -> SourceFacts:
        """Read one."""
        return cls(
            owner=table.get("owner", text),
            calls=table.get("calls", list_of(_call)),
            defines=table.get("defines", list_of(text)),
            minimums=table.get("minimums", list_of(_stated)),
            names=table.get("names", list_of(_stated)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """What an object registers: whole schemas, and called operators of which it holds only the name."""

    schemas: tuple[str, ...]
    bare: tuple[str, ...]
    unread: str | None

    @classmethod
    def from_table(cls, table: Table) -> Registered:
        """Read one."""
        return cls(
            schemas=table.get("schemas", list_of(text)),
            bare=table.get("bare", list_of(text)),
            unread=table.get("unread", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """Both sides. ``registered``: namespace → object → what it registers; ``unread``: source → why.

    ``makers``: normalised names of the distributions that bring the objects; ``exports``: package → names
    it binds, ``None`` where that cannot be told; ``modules``: its sources.
    """

    makers: tuple[str, ...]
    sources: Mapping[str, SourceFacts]
    unread: Mapping[str, str]
    registered: Mapping[str, Mapping[str, Registered]]
    exports: Mapping[str, tuple[str, ...] | None]
    modules: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Operators:
        """Read the part ``operators``."""
        return cls(
            makers=table.get("makers", list_of(text)),
            sources=table.get("sources", mapping_of(table_of(SourceFacts.from_table))),
            unread=table.get("unread", mapping_of(text)),
            registered=table.get("registered", mapping_of(mapping_of(table_of(Registered.from_table)))),
            exports=table.get("exports", mapping_of(optional(list_of(text)))),
            modules=table.get("modules", list_of(text)),
        )


def _call(node: Node) -> Call:
    parts = list_of(anything)(node)
    match parts:
        case (str(space), str(operator), int(line), None | int() as positional, list(keywords)):
            return Call(
                namespace=space,
                operator=operator,
                line=line,
                positional=positional,
                keywords=tuple(map(str, keywords)),
            )
    raise InvalidValueError(f"must be a call: {_CALL} values")


def _stated(node: Node) -> Stated:
    parts = list_of(anything)(node)
    match parts:
        case (str(subject), str(value), int(line)):
            return Stated(subject=subject, value=value, line=line)
    raise InvalidValueError(f"must be {_STATED} values: two words and a line")
