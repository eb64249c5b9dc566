"""``extends``: lay a host's file over the class that it names, and remember which file each value is from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostenv.document import Problems, Source, did_you_mean, load_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NOT_RESOLVED = {"env": frozenset({"patches"}), "platform": frozenset({"driver-min"})}


_LONGEST_CHAIN = 20
"""Classes that may extend one another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """A document with its classes merged in.

    ``classes``: nearest first; ``lock_owner`` and ``left_out``: see Spec.
    """

    values: dict[str, object]
    source: Source
    classes: tuple[str, ...]
    lock_owner: str
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def over(self, base: Merged) -> Merged:
        """Return the same, with what of a class's lists it replaces."""
        gone = {
            key: [
                name
                for name in (*base.left_out.get(key, ()), *_names_of(base.values, key))
                if name not in _names_of(self.values, key)
            ]
            for key in ("overlays", "patches")
        }
        return replace(self, left_out={key: tuple(dict.fromkeys(each)) for key, each in gone.items() if each})


def _names_of(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the names in a list of overlays or series; what is none is the reader's to tell."""
    env = values.get("env")
    found = values.get(key) if key == "overlays" else env.get(key) if isinstance(env, dict) else None
    entries = (
        [each.get("name") if isinstance(each, dict) else each for each in found or ()]
        if isinstance(found, list)
        else []
    )
    return tuple(each for each in entries if isinstance(each, str))


@dataclass(slots=True)
class Folder:
    """The files of ``envspecs/``, each read once."""

    path: Path
    problems: Problems
    read: dict[str, dict[str, object] | None] = field(default_factory=dict)
    _classes: tuple[str, ...] | None = None

    def label(self, relative: str) -> str:
        """Return how messages call a file: ``envspecs/ct200.toml``."""
        return f"{self.path.name}/{relative}"

    def names(self, below: str = "") -> tuple[str, ...]:
        """Return the names of the documents in a folder, without ``.toml``, sorted."""
        folder = self.path / below
        return (
            tuple(sorted(f"{below}{path.stem}" for path in folder.glob("*.toml"))) if folder.is_dir() else ()
        )

    def merged(self, name: str, *, within: tuple[str, ...] = ()) -> Merged | None:
        """Return a document by its name (``ct200``, ``classes/a6000``) with its classes merged in.

        A nested table is merged key by key; everything else, lists included, is replaced. ``within`` are
        the documents that are being merged, to find cycles. None: a file of them cannot be parsed, which
        is noted.
        """
        document = self.label(f"{name}.toml")
        if name not in self.read:
            path = self.path / f"{name}.toml"
            self.read[name] = load_toml(path, document=document, problems=self.problems)
        content = self.read[name]
        if content is None:
            return None
        values = dict(content)
        short = name.rpartition("/")[2]
        own = Merged(values=values, source=Source(document), classes=(), lock_owner=short)
        parent = self._parent(values.pop("extends", None), document, within=(*within, name))
        if parent is None:
            return own
        base = self.merged(parent, within=(*within, name))
        if base is None:
            return None
        merged, source = overlaid(base.values, base.source, values, own.source)
        return Merged(
            values=merged,
            source=source,
            classes=(parent.rpartition("/")[2], *base.classes),
            lock_owner=short if _speaks_to_the_resolver(values) else base.lock_owner,
        ).over(base)

    def _parent(self, word: object, document: str, *, within: tuple[str, ...]) -> str | None:
        """Return the name of the class to extend, or None after noting why it cannot be."""
        if word is None:
            return None
        if self._classes is None:
            self._classes = self.names("classes/")
        known = self._classes
        if not isinstance(word, str):
            why = 'must be a string like "classes/a6000"'
        elif word in within:
            why = f"a class cannot extend itself: {' → '.join((*within[within.index(word) :], word))}"
        elif len(within) > _LONGEST_CHAIN:
            why = f"more than {_LONGEST_CHAIN} classes extend one another, from {within[0]} on"
        elif not re.fullmatch(r"classes/[A-Za-z0-9][A-Za-z0-9._-]*", word):
            near = f', did you mean "classes/{word}"?' if f"classes/{word}" in known else ""
            why = f'must name a class as "classes/NAME", is "{word}"{near}'
        elif word not in known:
            why = f'there is no "{word}.toml" beside it{did_you_mean(word, known)}'
        else:
            return word
        self.problems.add(document, "extends", why)
        return None


def overlaid(
    base: Mapping[str, object], base_source: Source, over: Mapping[str, object], over_source: Source
) -> tuple[dict[str, object], Source]:
    """Lay one table over another: tables merge, everything else is replaced.

    The returned source is ``over``'s, with the keys that came from ``base`` as its children.
    """
    values: dict[str, object] = dict(base)
    children = {key: base_source.child(key) for key in base}
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            values[key], children[key] = overlaid(
                below, base_source.child(key), value, over_source.child(key)
            )
        else:
            values[key] = value
            children[key] = over_source.child(key)
    return values, Source(over_source.document, children)


def _speaks_to_the_resolver(values: Mapping[str, object]) -> bool:
    """Whether a file has a value of its own that changes what is locked."""
    tables = ((values.get(section), ignored) for section, ignored in _NOT_RESOLVED.items())
    return any(isinstance(table, dict) and not ignored.issuperset(table) for table, ignored in tables)
