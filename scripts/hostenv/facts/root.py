"""What stands under a host's root: builds, generations, the hold; what a plan is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import (
    anything,
    flag,
    integer,
    list_of,
    mapping_of,
    number,
    optional,
    read,
    table_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hostenv.document import Node, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """A mark that stops a host from moving to another generation by itself. ``since``: Unix time."""

    by: str
    why: str
    since: float

    @classmethod
    def from_table(cls, table: Table) -> Hold:
        """Read ``hold.json``."""
        return cls(by=table.get("by", text), why=table.get("why", text), since=table.get("since", number))


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """A build that waits for its switch, with the receipt that its generation will hold."""

    build: str
    receipt: Mapping[str, object]
    by: str
    session: str
    staged: float

    @classmethod
    def from_table(cls, table: Table) -> Staged:
        """Read ``staged.json``."""
        return cls(
            build=table.get("build", text),
            receipt=table.get("receipt", mapping_of(anything)),
            by=table.get("by", text),
            session=table.get("session", text),
            staged=table.get("staged", number),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RootState:
    """The operation ``root.state``, typed. ``free`` is in bytes; ``receipt`` that of the current generation.

    ``unwritable`` is what keeps the root from being written, ``None``: nothing. ``unsound`` are finished
    builds whose interpreter is gone. ``astray`` is what of ``current`` does not lead to the build that its
    receipt names, ``None``: it does, or nothing is current. ``link_state`` is ``ours``, ``absent`` or
    ``other``; ``None`` where the spec wants no link. ``glibc`` is ``None`` on a host with another C library.
    """

    root: str
    arch: str
    glibc: str | None
    machine_id: str | None
    free: int
    noexec: bool
    unwritable: str | None
    builds: tuple[str, ...]
    unsound: tuple[str, ...]
    generation: int | None
    astray: str | None
    receipt: Mapping[str, object]
    generations: tuple[int, ...]
    staged: Staged | None
    hold: Hold | None
    link: str | None
    link_state: str | None

    @property
    def current_build(self) -> str | None:
        """The id of the build that is current, if ``current`` leads there and its interpreter is there."""
        if self.astray:
            return None
        build = self.receipt.get("build")
        return build if isinstance(build, str) and build in self.builds else None

    @property
    def waiting(self) -> str | None:
        """The id of the build that waits for its switch: one that is there, and not current already."""
        build = self.staged.build if self.staged else None
        return build if build in self.builds and build != self.current_build else None

    @classmethod
    def from_answer(cls, answer: Any, host: str) -> RootState:
        """Type the agent's answer; raises :class:`~hostenv.document.DocumentError` where it is damaged."""
        return read(answer, table_of(cls._from_table), document=f"{host}: state of its root")

    @classmethod
    def _from_table(cls, table: Table) -> RootState:
        machine = table.get("machine", mapping_of(optional(text)))
        return cls(
            root=table.get("root", text),
            arch=machine["arch"] or "unknown",
            glibc=machine["glibc"],
            machine_id=machine["machine_id"],
            free=table.get("free", integer),
            noexec=table.get("noexec", flag),
            unwritable=table.get("unwritable", optional(text)),
            builds=table.get("builds", list_of(text)),
            unsound=table.get("unsound", list_of(text)),
            generation=table.get("generation", optional(integer)),
            astray=table.get("astray", optional(text)),
            receipt=table.get("receipt", _receipt),
            generations=table.get("generations", list_of(integer)),
            staged=table.get("staged", optional(table_of(Staged.from_table))),
            hold=table.get("hold", optional(table_of(Hold.from_table))),
            link=table.get("link", optional(text)),
            link_state=table.get("link_state", optional(text)),
        )


def _receipt(node: Node) -> Mapping[str, object]:
    return {} if node.value is None else mapping_of(anything)(node)
