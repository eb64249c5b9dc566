"""docs/spec.md has every key that the parser knows, its words and default, and no other key."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

from hostenv.document import Problem, Problems, Source, Table, table_of
from hostenv.spec.spec import Spec

if TYPE_CHECKING:
    import pytest

    from hostenv.document import Node

PAGE = (pathlib.Path(__file__).parents[2] / "docs/spec.md").read_text(encoding="utf-8")
NO_KEYS = {"extends"}
"""What is gone when the parser sees a spec: ``extends`` is what makes one file of several."""


def rows() -> dict[str, tuple[str, str]]:
    """Return path → type and default, as the page has them."""
    found = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        heading = re.match(r"`\[+([a-z.]+)\]+`", section)
        for key, kind, default in re.findall(
            r"^\| `([a-z0-9-]+)` \| (.+?) \| (.+?) \|", section, re.MULTILINE
        ):
            found[f"{heading[1]}.{key}" if heading else key] = (kind, default)
    return found


class Parser:
    """The parser, asked with documents that hold nothing but what it asked for before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tables: list[tuple[str, Table]] = []
        real = Table.__init__

        def spied(table: Table, node: Node, values: dict[str, object]) -> None:
            real(table, node, values)
            self._tables.append((node.path, table))

        monkeypatch.setattr(Table, "__init__", spied)

    def read(self, values: object) -> tuple[dict[str, list[str]], list[Problem]]:
        """Return the keys that were asked for in each table, and what was wrong."""
        self._tables.clear()
        problems = Problems()
        reader = table_of(lambda table: Spec.from_table(table, name="x", path=pathlib.Path("x.toml")))
        problems.read(values, reader, source=Source("x"))
        return {path: list(table._asked) for path, table in self._tables}, list(problems.found)

    def keys(self, prefix: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
        """Return every key below ``prefix``: its dotted path → the same as a tuple, lists as ``[0]``."""
        asked, _ = self.read(within(prefix, {}))
        table = "".join(part if part == "[0]" else f".{part}" for part in prefix).lstrip(".")
        found = {}
        for key in asked[table]:
            path = (*prefix, key)
            found[".".join(part for part in path if part != "[0]")] = path
            for inner in (path, (*path, "[0]")):
                dotted = "".join(part if part == "[0]" else f".{part}" for part in inner).lstrip(".")
                if dotted in self.read(within(inner, {}))[0]:
                    found |= self.keys(inner)
        return found


def within(path: tuple[str, ...], value: object) -> object:
    """Return a document that holds a value at a path."""
    for part in reversed(path):
        value = [value] if part == "[0]" else {part: value}
    return value


def test_the_page_has_the_keys_that_the_parser_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(Parser(monkeypatch).keys())
    assert {"env.requires", "gpus.reserved.uuid", "host.container.kind", "service.env"} <= known
    assert set(rows()) - NO_KEYS == {key for key in known if not tables_only(key, known)}


def tables_only(key: str, known: set[str]) -> bool:
    """Tell whether a key of the file is a table, which has a section of its own and no row."""
    return "." not in key and any(other.startswith(f"{key}.") for other in known)


def test_the_page_says_what_is_required_and_which_words_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser(monkeypatch)
    page = rows()
    for key, path in parser.keys().items():
        if key not in page:
            continue
        kind, default = page[key]
        _, problems = parser.read(within(path[:-1], {}))
        missing = any(each.message == "missing" and each.path.endswith(path[-1]) for each in problems)
        assert (default == "required") is missing, key
        for value in ("no such word", ["no such word"]):
            for each in parser.read(within(path, value))[1]:
                if each.path.startswith(dotted(path)) and each.message.startswith("must be one of"):
                    words = re.findall(r'"([^"]+)"', each.message.partition(", is ")[0])
                    assert words, each
                    assert re.findall(r'`"([^"]+)"`', kind) == words, key


def dotted(path: tuple[str, ...]) -> str:
    return "".join(part if part == "[0]" else f".{part}" for part in path).lstrip(".")


def test_the_page_says_the_defaults() -> None:
    values = {"host": {"root": "/r"}}
    spec = Problems().read(
        values,
        table_of(lambda table: Spec.from_table(table, name="x", path=pathlib.Path("x.toml"))),
        source=Source("x"),
    )
    shown = {None: "none", (): "`[]`", False: "`false`", ("default",): '`["default"]`'}
    for key, (_, default) in rows().items():
        section, _, name = key.rpartition(".")
        if section not in {"host", "supply", "build", "env", "system"} or default == "required":
            continue
        value = getattr(getattr(spec, section), name.replace("-", "_"))
        words = {f'`"{value}"`', f"`{value}`"} if value not in shown else {shown[value]}
        if key not in {"host.address", "host.user", "build.min-free"}:
            assert default in words, key
    assert spec.build.min_free == 1 << 30
