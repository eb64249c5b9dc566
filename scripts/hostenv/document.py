"""Read a parsed TOML or JSON document into typed values; gather every problem, with its path.

A *reader* is a function from a `Node` to a value. Readers are put together from the ones below, and a
class reads itself from a `Table` by asking it for keys:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, kw_only=True, slots=True)
... class Gpu:
...     name: str
...     memory: int | None
...
...     @classmethod
...     def from_table(cls, table: Table) -> Gpu:
...         return cls(name=table.get("name", text), memory=table.get("memory", integer, None))
>>> read({"name": "A6000"}, table_of(Gpu.from_table), document="gpu.json")
Gpu(name='A6000', memory=None)
>>> read({"nome": "A6000", "memory": "48"}, table_of(Gpu.from_table), document="gpu.json")
Traceback (most recent call last):
hostenv.document.DocumentError: gpu.json: name: missing
gpu.json: memory: must be an integer, is a string
gpu.json: nome: unknown key, did you mean "name"?

Keys that nobody asked for are unknown: a document is read whole or refused. A reader that meets a bad value
raises `InvalidValueError`; the problem is noted at the value's path and reading goes on with a stand-in
(``None``), which `read` and `Problems.raise_any` never let out.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from hostenv.agent.files import open_regular
from hostenv.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)
_REQUIRED = object()
_SHOWN = 50
"""Problems that the message of a `DocumentError` names."""


class InvalidValueError(ValueError):
    """Raised by a reader: the value at this node is not what it must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong in one place of one document. ``path`` is empty for the document itself."""

    document: str
    path: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.document, self.path, self.message) if part)


class DocumentError(InputError):
    """Documents are wrong; ``problems`` holds all of it, and the message one line for each of 50."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - _SHOWN
        lines = [*map(str, self.problems[:_SHOWN]), *([f"and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(lines))


@dataclass(slots=True)
class Problems:
    """What is wrong in any number of documents, in the order found, each problem once."""

    found: dict[Problem, None] = field(default_factory=dict)
    noted: int = 0

    def add(self, document: str, path: str, message: str) -> None:
        """Note a problem; what a terminal would act on is escaped, so that a problem is one line."""
        self.noted += 1
        self.found[Problem(document=document, path=_printable(path), message=_printable(message))] = None

    def read(self, value: object, reader: Reader[T], *, source: Source) -> T:
        """Read a document. The result may hold stand-ins until `raise_any` has returned."""
        return Node(value=value, path="", source=source, problems=self).read(reader)

    def raise_any(self) -> None:
        """Raise `DocumentError` if anything is wrong."""
        if self.found:
            raise DocumentError(self.found)


@dataclass(frozen=True, slots=True)
class Source:
    """Which file a part of a document came from; ``children`` names the keys that came from another file."""

    document: str
    children: Mapping[str, Source] = field(default_factory=dict)

    def child(self, key: str) -> Source:
        """Where the value at this key came from."""
        return self.children.get(key, self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A value inside a document, and where it stands (``env.requires[2]``)."""

    value: object
    path: str
    source: Source
    problems: Problems

    def read(self, reader: Reader[T]) -> T:
        """Apply a reader; a bad value becomes a noted problem and a stand-in."""
        try:
            return reader(self)
        except InvalidValueError as error:
            self.problems.add(self.source.document, self.path, str(error))
            return cast("T", None)

    def member(self, key: str, value: object) -> Node:
        """Return the node of a table's key."""
        name = key if _is_bare(key) else f'"{key}"'
        path = f"{self.path}.{name}" if self.path else name
        return Node(value=value, path=path, source=self.source.child(key), problems=self.problems)

    def item(self, index: int, value: object) -> Node:
        """Return the node of an array's item."""
        return Node(value=value, path=f"{self.path}[{index}]", source=self.source, problems=self.problems)


Reader = Callable[[Node], T]


class Table:
    """A table that is being read: it knows which keys were asked for, and so which are unknown."""

    def __init__(self, node: Node, values: Mapping[str, object]) -> None:
        self._node = node
        self._values = values
        self._asked: dict[str, None] = {}
        self._before = node.problems.noted

    @property
    def sound(self) -> bool:
        """Whether nothing read so far was wrong: ask before comparing values, which may be stand-ins."""
        return self._node.problems.noted == self._before

    @overload
    def get(self, key: str, reader: Reader[T]) -> T: ...
    @overload
    def get(self, key: str, reader: Reader[T], default: D) -> T | D: ...
    def get(self, key: str, reader: Reader[Any], default: object = _REQUIRED) -> Any:
        """Return the value at a key, read; without a default the key must be there."""
        self._asked[key] = None
        if key in self._values:
            return self._node.member(key, self._values[key]).read(reader)
        if default is _REQUIRED:
            self.problem(key, "missing")
            return None
        return default

    def has(self, key: str) -> bool:
        """Whether the key is written in the document."""
        self._asked[key] = None
        return key in self._values

    def problem(self, key: str, message: str, *, index: int | None = None) -> None:
        """Note that a key's value, or its item at an index, does not fit; an empty key means the table."""
        node = self._node.member(key, None) if key else self._node
        node = node if index is None else node.item(index, None)
        node.problems.add(node.source.document, node.path, message)

    def note_unknown_keys(self) -> None:
        """Note every key that was not asked for."""
        missing = [key for key in self._asked if key not in self._values]
        for key in self._values:
            if key not in self._asked:
                self.problem(key, f"unknown key{did_you_mean(key, missing or self._asked)}")


def read(value: object, reader: Reader[T], *, document: str) -> T:
    """Read one whole document, named ``document`` in messages; raise `DocumentError` with all problems."""
    problems = Problems()
    result = problems.read(value, reader, source=Source(document))
    problems.raise_any()
    return result


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; ``OSError`` where it is no regular file: no FIFO is waited for."""
    with os.fdopen(open_regular(str(path)), encoding="utf-8") as file:
        return file.read()


def load_toml(path: Path, *, document: str, problems: Problems) -> dict[str, object] | None:
    """Parse a TOML file; that it cannot be opened or parsed is noted, and the result is then None."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # tomllib: a long integer, deep nesting
        problems.add(document, "", f"not TOML: {error}")
    except OSError as error:
        problems.add(document, "", f"cannot be read: {error.strerror}")
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean "…"?`` for the nearest known word, or nothing if none is near."""
    folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f', did you mean "{folded[near[0]]}"?' if near else ""


def anything(node: Node) -> object:
    """Return the value as it is."""
    return node.value


def text(node: Node) -> str:
    """Read a string."""
    return _typed(node, str, "a string")


def flag(node: Node) -> bool:
    """Read true or false."""
    return _typed(node, bool, "true or false")


def integer(node: Node) -> int:
    """Read an integer of any sign; true and false are none."""
    return _typed(node, int, "an integer")


def natural(node: Node) -> int:
    """Read an integer that is not negative."""
    value = integer(node)
    if value < 0:
        raise InvalidValueError(f"must not be negative, is {value}")
    return value


def number(node: Node) -> float:
    """Read a finite number, written as one or as an integer."""
    value = node.value
    if not isinstance(value, float):
        value = _typed(node, int, "a number")
    if abs(value) > sys.float_info.max or math.isnan(value):
        raise InvalidValueError("must be a finite number")
    return float(value)


def moment(node: Node) -> dt.datetime:
    """Read a date and time with its offset: TOML's own, or ISO 8601 in a string."""
    value = _from_iso(node.value, dt.datetime.fromisoformat)
    if not isinstance(value, dt.datetime):
        raise InvalidValueError(f"must be a date and time like 2026-11-30T00:00:00Z, is {_kind(value)}")
    if value.tzinfo is None:
        raise InvalidValueError('needs an offset from UTC (write "Z" at its end)')
    return value


def day(node: Node) -> dt.date:
    """Read a date: TOML's own, or ISO 8601 in a string."""
    value = _from_iso(node.value, dt.date.fromisoformat)
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise InvalidValueError(f"must be a date like 2027-01-31, is {_kind(value)}")
    return value


def parsed(convert: Callable[[str], T], what: str) -> Reader[T]:
    """Read a string through a converter; its ``ValueError`` becomes ``bad WHAT "…": why``."""

    def reader(node: Node) -> T:
        value = text(node)
        try:
            return convert(value)
        except ValueError as error:
            why = (str(error).splitlines() or [""])[0]
            raise InvalidValueError(f'bad {what} "{value}"' + (f": {why}" if why else "")) from None

    return reader


def choice(values: type[E]) -> Reader[E]:
    """Read one of a closed set of words."""

    def reader(node: Node) -> E:
        value = text(node)
        try:
            return values(value)
        except ValueError:
            known = ", ".join(f'"{member}"' for member in values)
            raise InvalidValueError(
                f'must be one of {known}, is "{value}"{did_you_mean(value, values)}'
            ) from None

    return reader


def optional(reader: Reader[T]) -> Reader[T | None]:
    """Read JSON's null as None, anything else with the reader."""
    return lambda node: None if node.value is None else reader(node)


def list_of(reader: Reader[T]) -> Reader[tuple[T, ...]]:
    """Read an array; every bad item is noted at its index."""

    def read_items(node: Node) -> tuple[T, ...]:
        values = _typed(node, list, "an array")
        return tuple(node.item(index, value).read(reader) for index, value in enumerate(values))

    return read_items


def mapping_of(reader: Reader[T]) -> Reader[Mapping[str, T]]:
    """Read a table whose keys are free; the mapping keeps the document's order and cannot be changed."""

    def read_members(node: Node) -> Mapping[str, T]:
        values = _typed(node, dict, "a table")
        return MappingProxyType({key: node.member(key, value).read(reader) for key, value in values.items()})

    return read_members


def table_of(read_table: Callable[[Table], T]) -> Reader[T]:
    """Read a table whose keys are fixed: those that ``read_table`` asks for."""

    def reader(node: Node) -> T:
        table = Table(node, _typed(node, dict, "a table"))
        value = read_table(table)
        table.note_unknown_keys()
        return value

    return reader


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "a table"),
    (dt.datetime, "a date and time"),
    (dt.date, "a date"),
    (dt.time, "a time"),
    (type(None), "null"),
)


def _kind(value: object) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


def _typed(node: Node, kind: type[T], name: str) -> T:
    value = node.value
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise InvalidValueError(f"must be {name}, is {_kind(value)}")


def _from_iso(value: object, convert: Callable[[str], object]) -> object:
    try:
        return convert(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _printable(value: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def _is_bare(key: str) -> bool:
    return bool(key) and key.isascii() and key.replace("-", "").replace("_", "").isalnum()
