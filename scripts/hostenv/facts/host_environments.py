"""The Python environments of a host, the serving stack in each, units and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import flag, list_of, natural, optional, table_of, text
from hostenv.facts.fact import fact_of

if TYPE_CHECKING:
    from hostenv.document import Table
    from hostenv.facts.fact import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """How many Python files of a distribution differ from its RECORD, and the ``first`` of them."""

    files: int
    changed: int
    first: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Changed:
        """Read a comparison."""
        return cls(
            files=table.get("files", natural),
            changed=table.get("changed", natural),
            first=table.get("first", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StackMember:
    """A distribution of the serving stack. ``cuda`` is torch's (``None`` in it: built without CUDA)."""

    name: str
    version: str
    editable: bool
    source: str | None
    cuda: Fact[str | None] | None
    changed: Fact[Changed]

    @classmethod
    def from_table(cls, table: Table) -> StackMember:
        """Read a distribution."""
        return cls(
            name=table.get("name", text),
            version=table.get("version", text),
            editable=table.get("editable", flag),
            source=table.get("source", optional(text)),
            cuda=table.get("cuda", optional(fact_of(optional(text)))),
            changed=table.get("changed", fact_of(table_of(Changed.from_table))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """An environment: a venv, or (``kind`` base) an interpreter whose own site-packages hold the stack."""

    path: str
    kind: str
    python: str | None
    home: str | None
    interpreter_works: bool
    system_site_packages: bool
    made_by_uv: str | None
    site_packages: str | None
    stack: tuple[StackMember, ...]

    @classmethod
    def from_table(cls, table: Table) -> Environment:
        """Read an environment."""
        return cls(
            path=table.get("path", text),
            kind=table.get("kind", text),
            python=table.get("python", optional(text)),
            home=table.get("home", optional(text)),
            interpreter_works=table.get("interpreter_works", flag),
            system_site_packages=table.get("system_site_packages", flag),
            made_by_uv=table.get("made_by_uv", optional(text)),
            site_packages=table.get("site_packages", optional(text)),
            stack=table.get("stack", list_of(table_of(StackMember.from_table))),
        )

    def member(self, name: str) -> StackMember | None:
        """Return a distribution of the stack by its normalised name."""
        return next((member for member in self.stack if member.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environments:
    """The environments found; ``complete``: the search saw all of its ``places`` in its time."""

    found: tuple[Fact[Environment], ...]
    complete: bool
    places: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Environments:
        """Read the part ``venvs`` of a probe."""
        return cls(
            found=table.get("found", list_of(fact_of(table_of(Environment.from_table)))),
            complete=table.get("complete", flag),
            places=table.get("places", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A systemd unit; of its environment only the names are known, never the values."""

    name: str
    path: str
    enabled: bool
    description: str
    command: tuple[str, ...]
    user: str | None
    environment_names: tuple[str, ...]
    environment_files: tuple[str, ...]
    drop_ins: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Unit:
        """Read a unit."""
        return cls(
            name=table.get("name", text),
            path=table.get("path", text),
            enabled=table.get("enabled", flag),
            description=table.get("description", text),
            command=table.get("command", list_of(text)),
            user=table.get("user", optional(text)),
            environment_names=table.get("environment_names", list_of(text)),
            environment_files=table.get("environment_files", list_of(text)),
            drop_ins=table.get("drop_ins", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A model: its architecture, its weights, and shards that its index lists but that are ``missing``."""

    path: str
    exists: bool
    kind: str | None
    files: int
    bytes: int
    missing: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> ModelFolder:
        """Read a model's folder."""
        return cls(
            path=table.get("path", text),
            exists=table.get("exists", flag),
            kind=table.get("kind", optional(text)),
            files=table.get("files", natural),
            bytes=table.get("bytes", natural),
            missing=table.get("missing", list_of(text)),
        )
