"""The manifest of an environment as read on a host: its entries, its fingerprint, and how two differ.

The canonical form is described in :mod:`hostenv.agent.tree`; the fingerprint is the sha256 of it.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from hostenv.agent.tree import MAGIC
from hostenv.document import Table, integer, list_of, optional, table_of, text
from hostenv.errors import HostError
from hostenv.facts.interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST = 1 << 30
"""Bytes of a canonical form that are accepted: 75,143 files make 11 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeProblem:
    """A path that a manifest cannot hold, or could not read, and why."""

    path: str
    reason: str

    @classmethod
    def from_table(cls, table: Table) -> TreeProblem:
        """Read one."""
        return cls(path=table.get("path", text), reason=table.get("reason", text))


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeFacts:
    """What is told beside a manifest, or instead of it.

    ``fingerprint`` is ``None`` where there are problems. ``bytes`` counts the files of the manifest,
    ``read`` those bytes that had to be read; ``left_out`` is a number of files.
    """

    fingerprint: str | None
    interpreter: Interpreter
    files: int
    links: int
    bytes: int
    left_out: int
    read: int
    problems: tuple[TreeProblem, ...]

    @classmethod
    def from_table(cls, table: Table) -> TreeFacts:
        """Read what an operation says of a tree (:meth:`hostenv.agent.tree.Tree.summary`)."""
        return cls(
            fingerprint=table.get("fingerprint", optional(text)),
            interpreter=table.get("interpreter", table_of(Interpreter.from_table)),
            files=table.get("files", integer),
            links=table.get("links", integer),
            bytes=table.get("bytes", integer),
            left_out=table.get("left_out", integer),
            read=table.get("read", integer),
            problems=table.get("problems", list_of(table_of(TreeProblem.from_table))),
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (``target`` is ``None``) or a link (no size, mode or digest). ``size`` is in bytes."""

    mode: int
    size: int
    sha256: str
    target: str | None = None


class Change(StrEnum):
    """How a path differs between two manifests."""

    MISSING = "missing"
    EXTRA = "extra"
    CONTENT = "content"
    MODE = "mode"
    LINK = "symlink"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One path that differs. ``reference`` or ``target`` is ``None`` where it is not there."""

    path: str
    change: Change
    reference: Entry | None
    target: Entry | None


class Manifest:
    """A manifest, read from its canonical form. Paths are relative to the environment."""

    def __init__(self, canonical: bytes) -> None:
        self.canonical = canonical

    @classmethod
    def from_packed(cls, packed: bytes) -> Manifest:
        """Unpack what the agent sends and a build keeps. Raises :class:`HostError` when it is damaged."""
        inflating = zlib.decompressobj()
        try:
            canonical = inflating.decompress(packed, LARGEST)
        except zlib.error as error:
            raise HostError(f"a manifest is damaged: {error}") from error
        if not inflating.eof or not canonical.startswith(MAGIC):
            raise HostError("a manifest is cut short, or of another version")
        return cls(canonical)

    @classmethod
    def from_entries(cls, entries: Mapping[str, Entry]) -> Manifest:
        """Return the manifest of these entries: path → entry, in any order."""
        raw = sorted((path.encode("utf-8", "surrogateescape"), entry) for path, entry in entries.items())
        return cls(b"".join([MAGIC, *(_line(path, entry) for path, entry in raw)]))

    @functools.cached_property
    def fingerprint(self) -> str:
        """The sha256 of the canonical form. Equal for environments whose problems, if any, are not told."""
        return hashlib.sha256(self.canonical).hexdigest()

    @functools.cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Path → entry, in order of the paths' bytes; undecodable names as surrogate escapes."""
        try:
            return MappingProxyType(dict(_parse(self.canonical)))
        except (ValueError, StopIteration) as error:
            raise HostError(f"a manifest is damaged: {error}") from error

    def differences(self, target: Manifest) -> tuple[Difference, ...]:
        """Return what differs in ``target`` when this one is the reference, in order of the paths."""
        if self.canonical == target.canonical:
            return ()
        paths = sorted(self.entries.keys() | target.entries.keys())
        pairs = ((path, self.entries.get(path), target.entries.get(path)) for path in paths)
        return tuple(
            Difference(path=path, change=change(one, other), reference=one, target=other)
            for path, one, other in pairs
            if one != other
        )


def _line(path: bytes, entry: Entry) -> bytes:
    if entry.target is not None:
        return b"l %s\0%s\0" % (path, entry.target.encode("utf-8", "surrogateescape"))
    return b"f %o %d %s %s\0" % (entry.mode, entry.size, entry.sha256.encode(), path)


def change(reference: Entry | None, target: Entry | None) -> Change:
    """Name the difference of two unequal entries, the graver one where there are two."""
    if target is None:
        return Change.MISSING
    if reference is None:
        return Change.EXTRA
    if reference.target != target.target:
        return Change.LINK
    return Change.CONTENT if reference.sha256 != target.sha256 else Change.MODE


def _parse(canonical: bytes) -> Iterator[tuple[str, Entry]]:
    fields = iter(canonical[len(MAGIC) :].decode("utf-8", "surrogateescape").split("\0"))
    for field in fields:
        if field.startswith("f "):
            _, mode, size, digest, path = field.split(" ", 4)
            yield path, Entry(int(mode, 8), int(size), digest)
        elif field.startswith("l "):
            yield field[2:], Entry(0, 0, "", next(fields, ""))
        elif field:
            raise ValueError(f"{field[:40]!r} is no entry")
