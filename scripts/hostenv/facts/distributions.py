"""The distributions of an environment as read on a host, and what of them differs from their RECORD."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.document import (
    Table,
    anything,
    flag,
    integer,
    list_of,
    mapping_of,
    optional,
    read,
    table_of,
    text,
)
from hostenv.facts.manifest import TreeFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.utils import NormalizedName


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A file whose bytes are not those of RECORD; ``found`` is ``None`` where a link lies in its place."""

    path: str
    recorded: str
    found: str | None

    @classmethod
    def from_table(cls, table: Table) -> Mismatch:
        """Read one."""
        return cls(
            path=table.get("path", text),
            recorded=table.get("recorded", text),
            found=table.get("found", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """A path that several distributions own with different bytes.

    ``claims``: ``name==version`` → sha256; ``found`` what lies there; ``winner`` whose bytes it has by rule
    (:func:`hostenv.agent.record.winner`).
    """

    path: str
    claims: Mapping[str, str]
    found: str | None
    winner: str

    @property
    def holders(self) -> tuple[str, ...]:
        """The distributions whose bytes lie there."""
        return tuple(owner for owner, digest in self.claims.items() if digest == self.found)

    @classmethod
    def from_table(cls, table: Table) -> Conflict:
        """Read one."""
        return cls(
            path=table.get("path", text),
            claims=table.get("claims", mapping_of(text)),
            found=table.get("found", optional(text)),
            winner=table.get("winner", text),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """One installed distribution. Paths are relative to the environment.

    ``requires`` are the Requires-Dist lines as they stand, ``tags`` those of WHEEL, ``entry_points`` group →
    ``name = value``. ``missing`` files are in RECORD and not on the disk; ``unverified`` ones have a hash
    of another kind than sha256.
    """

    name: str
    version: str
    info: str
    requires: tuple[str, ...]
    requires_python: str | None
    extras: tuple[str, ...]
    tags: tuple[str, ...]
    installer: str | None
    direct_url: Mapping[str, object] | None
    editable: bool
    entry_points: Mapping[str, tuple[str, ...]]
    files: int
    mismatched: tuple[Mismatch, ...]
    missing: tuple[str, ...]
    unverified: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def key(self) -> NormalizedName:
        """The normalised name."""
        return canonicalize_name(self.name)

    @classmethod
    def from_table(cls, table: Table) -> Distribution:
        """Read one."""
        texts = list_of(text)
        return cls(
            name=table.get("name", text),
            version=table.get("version", text),
            info=table.get("info", text),
            requires=table.get("requires", texts),
            requires_python=table.get("requires_python", optional(text)),
            extras=table.get("extras", texts),
            tags=table.get("tags", texts),
            installer=table.get("installer", optional(text)),
            direct_url=table.get("direct_url", optional(mapping_of(anything))),
            editable=table.get("editable", flag),
            entry_points=table.get("entry_points", mapping_of(texts)),
            files=table.get("files", integer),
            mismatched=table.get("mismatched", list_of(table_of(Mismatch.from_table))),
            missing=table.get("missing", texts),
            unverified=table.get("unverified", texts),
            problems=table.get("problems", texts),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """All distributions of an environment, and the files that none of them owns.

    ``site`` is ``site-packages`` relative to the environment; ``unowned``: path → sha256 (``None`` for a
    link).
    """

    tree: TreeFacts
    site: str | None
    distributions: tuple[Distribution, ...]
    unowned: Mapping[str, str | None]
    conflicts: tuple[Conflict, ...]

    @classmethod
    def from_answer(cls, answer: object, host: str) -> Installed:
        """Type the result of ``record.survey``; :class:`~hostenv.document.DocumentError` where damaged."""
        return read(answer, table_of(cls.from_table), document=f"{host}: distributions")

    @classmethod
    def from_table(cls, table: Table) -> Installed:
        """Read the result of ``record.survey``."""
        return cls(
            tree=table.get("tree", table_of(TreeFacts.from_table)),
            site=table.get("site", optional(text)),
            distributions=table.get("distributions", list_of(table_of(Distribution.from_table))),
            unowned=table.get("unowned", mapping_of(optional(text))),
            conflicts=table.get("conflicts", list_of(table_of(Conflict.from_table))),
        )

    def within_site(self, path: str) -> str:
        """Return a path relative to ``site-packages``: the form that findings, series and RECORDs use.

        >>> installed.within_site("lib/python3.12/site-packages/torch/__init__.py")  # doctest: +SKIP
        'torch/__init__.py'
        """
        return posixpath.relpath(path or ".", self.site) if self.site else path

    def by_name(self) -> Mapping[NormalizedName, Distribution]:
        """Return the distributions by normalised name; of two with one name, the last."""
        return {each.key: each for each in self.distributions}
