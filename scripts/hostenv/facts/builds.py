"""The builds under a host's root: cost, age and users, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.document import flag, integer, list_of, number, optional, read, table_of, text

if TYPE_CHECKING:
    from hostenv.document import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildUser:
    """A process that uses a build, and how that is known."""

    pid: int
    name: str
    how: str

    @classmethod
    def from_table(cls, table: Table) -> BuildUser:
        """Read one."""
        return cls(pid=table.get("pid", integer), name=table.get("name", text), how=table.get("how", text))


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildFacts:
    """One finished build.

    ``size``: bytes on the disk, each inode once; ``freed``: those that removing it would free. ``made`` and
    ``activated`` (when it last became current) are Unix times. ``sound``: its interpreter is there.
    ``roles``: current, previous, staged.
    """

    build: str
    path: str
    size: int
    freed: int
    files: int
    made: float
    activated: float | None
    fingerprint: str | None
    interpreter: str | None
    sound: bool
    roles: tuple[str, ...]
    generations: tuple[int, ...]
    processes: tuple[BuildUser, ...]

    @property
    def is_used(self) -> bool:
        """Whether the host, or a process, needs it."""
        return bool(self.roles or self.processes)

    @property
    def last(self) -> float:
        """When it was made, or last became current."""
        return max(self.made, self.activated or 0.0)

    @classmethod
    def from_table(cls, table: Table) -> BuildFacts:
        """Read one."""
        return cls(
            build=table.get("build", text),
            path=table.get("path", text),
            size=table.get("size", integer),
            freed=table.get("freed", integer),
            files=table.get("files", integer),
            made=table.get("made", number),
            activated=table.get("activated", optional(number)),
            fingerprint=table.get("fingerprint", optional(text)),
            interpreter=table.get("interpreter", optional(text)),
            sound=table.get("sound", flag),
            roles=table.get("roles", list_of(text)),
            generations=table.get("generations", list_of(integer)),
            processes=table.get("processes", list_of(table_of(BuildUser.from_table))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """What belongs to no build any more. ``size`` in bytes."""

    path: str
    size: int

    @classmethod
    def from_table(cls, table: Table) -> Leftover:
        """Read one."""
        return cls(path=table.get("path", text), size=table.get("size", integer))


@dataclass(frozen=True, kw_only=True, slots=True)
class RootBuilds:
    """The operation ``builds.list``, typed.

    ``unfinished`` is what killed sessions left, ``orphans`` are receipts and JIT caches of builds that are
    gone; ``unknown``: why some processes could not be looked into. ``astray``: what of ``current`` does not
    lead where its receipt says, ``None``: nothing.
    """

    root: str
    free: int | None
    builds: tuple[BuildFacts, ...]
    unfinished: tuple[Leftover, ...]
    orphans: tuple[Leftover, ...]
    unknown: tuple[str, ...]
    astray: str | None

    @classmethod
    def from_answer(cls, answer: Any, host: str) -> RootBuilds:
        """Type the agent's answer; raises :class:`~hostenv.document.DocumentError` where it is damaged."""
        return read(answer, table_of(cls._from_table), document=f"{host}: builds")

    @classmethod
    def _from_table(cls, table: Table) -> RootBuilds:
        return cls(
            root=table.get("root", text),
            free=table.get("free", optional(integer)),
            builds=table.get("builds", list_of(table_of(BuildFacts.from_table))),
            unfinished=table.get("unfinished", list_of(table_of(Leftover.from_table))),
            orphans=table.get("orphans", list_of(table_of(Leftover.from_table))),
            unknown=table.get("unknown", list_of(text)),
            astray=table.get("astray", optional(text)),
        )
