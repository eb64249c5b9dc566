"""PyTorch's operator schemas, as far as a call can be held against them.

The grammar is that of ``torch/csrc/jit/frontend/function_schema_parser.cpp``:
``name.overload(Tensor x, int n=1, *, Tensor? out=None) -> Tensor``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD = re.compile(r"\s*(?:(?P<space>\w+)::)?(?P<name>\w+)(?:\.\w+)?\s*\(")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(=.*)?\Z", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """One argument of a schema."""

    name: str
    has_default: bool
    only_by_name: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """One overload of an operator. ``text`` is the schema as it stands in the object."""

    space: str | None
    name: str
    arguments: tuple[Argument, ...]
    text: str

    def refuses(self, positional: int, keywords: Sequence[str]) -> str | None:
        """Say why PyTorch refuses a call with so many positional arguments and these keywords.

        ``None`` where it takes it, types aside (torch/csrc/jit/python/pybind_utils.h: createStackForSchema).
        """
        places = [each for each in self.arguments if not each.only_by_name]
        if positional > len(places):
            return f"expected at most {len(places)} positional arguments, got {positional}"
        given = {each.name for each in places[:positional]}
        known = {each.name for each in self.arguments}
        for name in keywords:
            if name not in known:
                return f"unknown keyword argument {name}"
            if name in given:
                return f"argument {name} is given twice"
        missing = [
            each.name
            for each in self.arguments
            if not each.has_default and each.name not in given and each.name not in keywords
        ]
        return f"missing value for argument {missing[0]}" if missing else None


def signature(text: str) -> Signature | None:
    """Read a schema; ``None`` where the text is none."""
    head = _HEAD.match(text)
    if head is None:
        return None
    arguments = []
    by_name = False
    for part in _split(text[head.end() :]):
        if part == "*":
            by_name = True
            continue
        found = _NAME.search(part)
        if found is None:
            return None
        arguments.append(Argument(name=found[1], has_default=found[2] is not None, only_by_name=by_name))
    return Signature(space=head["space"], name=head["name"], arguments=tuple(arguments), text=text)


def _split(text: str) -> Iterator[str]:
    """Yield what lies between the commas up to the closing parenthesis."""
    depth, quote, part = 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            if not depth:
                break
            depth -= 1
        elif character == "," and not depth:
            yield part.strip()
            part = ""
            continue
        part += character
    if part.strip():
        yield part.strip()
