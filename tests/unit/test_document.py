"""Documents are read whole or refused, and every problem carries its path."""

from __future__ import annotations

import datetime as dt
import doctest
import json
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.version import Version

from hostenv import document
from hostenv.document import (
    DocumentError,
    Problems,
    Reader,
    Source,
    Table,
    anything,
    choice,
    day,
    did_you_mean,
    flag,
    integer,
    list_of,
    load_toml,
    mapping_of,
    moment,
    natural,
    number,
    optional,
    parsed,
    read,
    table_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    name: str
    size: int
    share: float
    whole: bool
    colour: Colour
    since: dt.date | None

    @classmethod
    def from_table(cls, table: Table) -> Leaf:
        return cls(
            name=table.get("name", text),
            size=table.get("size", natural),
            share=table.get("share", number),
            whole=table.get("whole", flag),
            colour=table.get("colour", choice(Colour)),
            since=table.get("since", optional(day), None),
        )

    def to_json(self) -> dict[str, object]:
        since = self.since.isoformat() if self.since else None
        return {
            "name": self.name,
            "size": self.size,
            "share": self.share,
            "whole": self.whole,
            "colour": str(self.colour),
            "since": since,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    leaves: tuple[Leaf, ...]
    by_name: Mapping[str, int]

    @classmethod
    def from_table(cls, table: Table) -> Tree:
        return cls(
            leaves=table.get("leaves", list_of(table_of(Leaf.from_table))),
            by_name=table.get("by-name", mapping_of(integer), {}),
        )


LEAVES = st.builds(
    Leaf,
    name=st.text(),
    size=st.integers(min_value=0),
    share=st.floats(allow_nan=False, allow_infinity=False),
    whole=st.booleans(),
    colour=st.sampled_from(Colour),
    since=st.none() | st.dates(),
)
TREES = st.builds(
    Tree, leaves=st.lists(LEAVES, max_size=4).map(tuple), by_name=st.dictionaries(st.text(), st.integers())
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
READERS: list[Reader[Any]] = [
    text,
    flag,
    integer,
    natural,
    number,
    moment,
    day,
    anything,
    choice(Colour),
    parsed(Version, "version"),
    optional(text),
    list_of(text),
    mapping_of(integer),
    table_of(Leaf.from_table),
    table_of(Tree.from_table),
]


def problems_of(value: object, reader: Reader[Any]) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read(value, reader, document="a.toml")
    lines = caught.value.message.splitlines()
    assert lines == [str(problem) for problem in caught.value.problems]
    return lines


def test_the_worked_example_in_the_docstring_holds() -> None:
    result = doctest.testmod(document)
    assert (result.failed, result.attempted) == (0, 4)


@given(TREES)
def test_what_was_written_as_json_is_read_as_it_was(tree: Tree) -> None:
    written = {"leaves": [leaf.to_json() for leaf in tree.leaves], "by-name": dict(tree.by_name)}
    assert read(json.loads(json.dumps(written)), table_of(Tree.from_table), document="t.json") == tree


@given(JSON, st.sampled_from(READERS))
def test_any_document_is_read_or_refused_with_its_name(value: object, reader: Reader[Any]) -> None:
    named = {"a.json"}
    try:
        read(value, reader, document="a.json")
    except DocumentError as error:
        named = {problem.document for problem in error.problems}
    assert named == {"a.json"}


@given(LEAVES, st.text(), JSON)
def test_a_key_that_nobody_asked_for_is_always_named(leaf: Leaf, key: str, value: object) -> None:
    written = leaf.to_json()
    assume(key not in written)
    found = problems_of({**written, key: value}, table_of(Leaf.from_table))
    assert "unknown key" in "\n".join(found)


@given(
    LEAVES, st.sampled_from(["name", "size", "share", "whole", "colour"]), st.sampled_from(["drop", "null"])
)
def test_each_broken_key_is_one_problem_at_its_path(leaf: Leaf, key: str, how: str) -> None:
    written = leaf.to_json()
    if how == "drop":
        del written[key]
    else:
        written[key] = None
    [found] = problems_of({"leaves": [leaf.to_json(), written]}, table_of(Tree.from_table))
    assert found.startswith(f"a.toml: leaves[1].{key}: ")


def test_all_problems_of_all_documents_are_raised_once() -> None:
    problems = Problems()
    for _ in range(2):
        problems.read({"a": 1}, mapping_of(text), source=Source("one.toml"))
    problems.read([1, "x", True], list_of(text), source=Source("two.toml"))
    with pytest.raises(DocumentError) as caught:
        problems.raise_any()
    assert caught.value.message.splitlines() == [
        "one.toml: a: must be a string, is an integer",
        "two.toml: [0]: must be a string, is an integer",
        "two.toml: [2]: must be a string, is true or false",
    ]


@pytest.mark.parametrize(
    ("value", "reader", "message"),
    [
        (True, integer, "must be an integer, is true or false"),
        (1, flag, "must be true or false, is an integer"),
        (-1, natural, "must not be negative, is -1"),
        (float("nan"), number, "must be a finite number"),
        (float("-inf"), number, "must be a finite number"),
        (10**400, number, "must be a finite number"),
        ("x", number, "must be a number, is a string"),
        ({}, list_of(text), "must be an array, is a table"),
        ([], table_of(Leaf.from_table), "must be a table, is an array"),
        (None, text, "must be a string, is null"),
        ("1..0", parsed(Version, "version"), "bad version \"1..0\": Invalid version: '1..0'"),
        ("blu", choice(Colour), 'must be one of "red", "blue", is "blu", did you mean "blue"?'),
        ("soon", day, "must be a date like 2027-01-31, is a string"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), day, "must be a date like 2027-01-31, is a date and time"),
        (dt.date(2026, 1, 1), moment, "must be a date and time like 2026-11-30T00:00:00Z, is a date"),
        ("2026-01-01T00:00:00", moment, 'needs an offset from UTC (write "Z" at its end)'),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(
    value: object, reader: Reader[Any], message: str
) -> None:
    assert problems_of(value, reader) == [f"a.toml: {message}"]


@pytest.mark.parametrize(
    ("key", "path"),
    [("a-b_1", "a-b_1"), ("a.b", '"a.b"'), ("\x1b[2J\n", r'"\x1b[2J\n"'), ("", '""'), ("ключ", '"ключ"')],
)
def test_a_path_quotes_the_keys_that_toml_would_quote(key: str, path: str) -> None:
    assert problems_of({key: 1}, mapping_of(text)) == [f"a.toml: {path}: must be a string, is an integer"]


def test_a_problem_names_the_file_that_its_value_came_from() -> None:
    problems = Problems()
    source = Source("host.toml", {"env": Source("class.toml")})
    problems.read({"env": {"a": 1}, "b": 1}, mapping_of(anything), source=source)
    problems.read({"env": {"a": 1}, "b": 1}, mapping_of(mapping_of(text)), source=source)
    assert list(map(str, problems.found)) == [
        "class.toml: env.a: must be a string, is an integer",
        "host.toml: b: must be a table, is an integer",
    ]


def test_no_value_that_is_wrong_gets_out_and_sound_says_so() -> None:
    seen = []

    def reader(table: Table) -> None:
        table.get("good", text)
        seen.append(table.sound)
        table.get("bad", text)
        seen.append(table.sound)

    problems_of({"good": "x", "bad": 1}, table_of(reader))
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'a = "x', "a.toml: not TOML: "),
        (b"a = 1\na = 2", "a.toml: not TOML: Cannot overwrite a value (at end of document)"),
        (b"\xff", "a.toml: not TOML: "),
        (None, "a.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_toml_is_a_problem(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    problems = Problems()
    assert load_toml(path, document="a.toml", problems=problems) is None
    [found] = map(str, problems.found)
    assert found.startswith(message)


def test_toml_dates_and_iso_strings_are_one() -> None:
    parsed_toml = tomllib.loads("a = 2026-11-30T00:00:00Z\nb = 2027-01-31")
    assert read(parsed_toml["a"], moment, document="") == read("2026-11-30T00:00:00Z", moment, document="")
    assert read(parsed_toml["b"], day, document="") == read("2027-01-31", day, document="")


def test_nothing_near_is_nothing_said() -> None:
    assert did_you_mean("zzz", ["requires"]) == ""
    assert did_you_mean("require", ["requires", "x"]) == ', did you mean "requires"?'
