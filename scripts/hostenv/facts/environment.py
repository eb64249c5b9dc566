"""One environment as ``match`` reads it: where it lies, what it is, what its build keeps of its making."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.document import (
    Table,
    anything,
    flag,
    list_of,
    mapping_of,
    optional,
    read,
    table_of,
    text,
)
from hostenv.facts.interpreter import Interpreter
from hostenv.facts.manifest import TreeFacts

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What a build was made of: the text behind its id, as :class:`hostenv.steps.build.BuildInputs` tells it.

    ``wheels`` are (name, version, sha256), ``series`` (distribution, version, digest); ``overlays`` as they
    stand.
    """

    wheels: tuple[tuple[str, ...], ...]
    series: tuple[tuple[str, ...], ...]
    overlays: tuple[object, ...]

    @classmethod
    def from_table(cls, table: Table) -> Inputs:
        """Read the part of ``inputs.json`` that belongs to layers."""
        return cls(
            wheels=table.get("wheels", list_of(list_of(text))),
            series=table.get("series", list_of(list_of(text))),
            overlays=table.get("overlays", list_of(anything)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What a build keeps of its making.

    ``applied``: path below ``site-packages`` → sha256 that a series made, ``None`` for a file that it
    removed; ``overlaid``: distribution → overlay.
    """

    fingerprint: str | None
    inputs: Inputs
    applied: Mapping[str, str | None]
    overlaid: Mapping[str, str]

    @classmethod
    def from_table(cls, table: Table) -> Kept:
        """Read one."""
        return cls(
            fingerprint=table.get("fingerprint", optional(text)),
            inputs=table.get("inputs", table_of(Inputs.from_table)),
            applied=table.get("applied", mapping_of(optional(text))),
            overlaid=table.get("overlaid", mapping_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentLook:
    """The operation ``environment.look``, typed.

    ``stat`` is a digest of everything that a walk saw: while it holds, nothing changed; ``None`` where it
    says nothing. ``wanted``: the host asks for the stat cache that the controller keeps. ``tree`` is
    ``None`` where the controller is known to know it.
    """

    path: str
    build: str | None
    machine_id: str | None
    interpreter: Interpreter
    stat: str | None
    site: str | None
    kept: Kept | None
    wanted: bool
    tree: TreeFacts | None

    @classmethod
    def from_answer(cls, answer: Any, host: str) -> EnvironmentLook:
        """Type the agent's answer; raises :class:`~hostenv.document.DocumentError` where it is damaged."""
        return read(answer, table_of(cls._from_table), document=f"{host}: environment")

    @classmethod
    def _from_table(cls, table: Table) -> EnvironmentLook:
        return cls(
            path=table.get("path", text),
            build=table.get("build", optional(text)),
            machine_id=table.get("machine_id", optional(text)),
            interpreter=table.get("interpreter", table_of(Interpreter.from_table)),
            stat=table.get("stat", optional(text)),
            site=table.get("site", optional(text)),
            kept=table.get("kept", optional(table_of(Kept.from_table))),
            wanted=table.get("wanted", flag),
            tree=table.get("summary", optional(table_of(TreeFacts.from_table))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """The operation ``environment.claims``: the distributions, and whose some paths are.

    ``versions``: normalised name → version; ``owners``: path → ``name==version`` → sha256 of RECORD;
    ``beside``: a path that nobody owns → the distribution in whose folder it lies.
    """

    versions: Mapping[str, str]
    editable: tuple[str, ...] = ()
    owners: Mapping[str, Mapping[str, str | None]]
    beside: Mapping[str, str]

    @classmethod
    def from_answer(cls, answer: Any, host: str) -> Claims:
        """Type the agent's answer; raises :class:`~hostenv.document.DocumentError` where it is damaged."""
        return read(answer, table_of(cls._from_table), document=f"{host}: owners")

    @classmethod
    def _from_table(cls, table: Table) -> Claims:
        return cls(
            versions=table.get("versions", mapping_of(text)),
            editable=table.get("editable", list_of(text)),
            owners=table.get("owners", mapping_of(mapping_of(optional(text)))),
            beside=table.get("beside", mapping_of(text)),
        )
