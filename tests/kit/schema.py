"""A small JSON Schema validator, for the keywords that docs/schema/ uses; any other keyword is refused."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_SILENT = {"$schema", "$defs", "title", "description"}

Schema = dict[str, Any]


def violations(value: Any, schema: Schema, root: Schema | None = None, at: str = "$") -> list[str]:
    """Return every way in which ``value`` breaks ``schema``, each with its place."""
    return [
        fault
        for keyword in schema.keys() - _SILENT
        for fault in _KEYWORDS[keyword](value, schema, root or schema, at)
    ]


def _reference(value: Any, schema: Schema, root: Schema, at: str) -> Iterator[str]:
    node: Any = root
    for part in schema["$ref"].removeprefix("#/").split("/"):
        node = node[part]
    yield from violations(value, node, root, at)


def _type(value: Any, schema: Schema, _root: Schema, at: str) -> Iterator[str]:
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    is_hidden_number = isinstance(value, bool) and "boolean" not in names
    if is_hidden_number or not any(isinstance(value, _TYPES[name]) for name in names):
        yield f"{at}: {value!r} is not {names}"


def _const(value: Any, schema: Schema, _root: Schema, at: str) -> Iterator[str]:
    if value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"


def _enum(value: Any, schema: Schema, _root: Schema, at: str) -> Iterator[str]:
    if value not in schema["enum"]:
        yield f"{at}: {value!r} is not in {schema['enum']}"


def _required(value: Any, schema: Schema, _root: Schema, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at}: {key} is missing" for key in schema["required"] if key not in value)


def _properties(value: Any, schema: Schema, root: Schema, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key in schema["properties"].keys() & value.keys():
            yield from violations(value[key], schema["properties"][key], root, f"{at}.{key}")


def _additional(value: Any, schema: Schema, _root: Schema, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at}: {key} is not known" for key in value.keys() - schema["properties"].keys())


def _items(value: Any, schema: Schema, root: Schema, at: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from violations(item, schema["items"], root, f"{at}[{index}]")


def _format(value: Any, schema: Schema, _root: Schema, at: str) -> Iterator[str]:
    try:
        {"date": dt.date.fromisoformat}[schema["format"]](value)
    except ValueError:
        yield f"{at}: {value!r} is no {schema['format']}"


_KEYWORDS: dict[str, Callable[[Any, Schema, Schema, str], Iterator[str]]] = {
    "$ref": _reference,
    "type": _type,
    "const": _const,
    "enum": _enum,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "format": _format,
}
