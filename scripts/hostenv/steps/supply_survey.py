"""What of a lock lies on a host already: in its wheelhouse, or in the filled one that its spec names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted, megabytes
from hostenv.document import list_of, optional, read, table_of, text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import PurePosixPath

    from hostenv.document import Table
    from hostenv.machine.agent import Agent
    from hostenv.spec.lock import Lock, LockEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The wheels of a lock on a host: ``paths`` by sha256, and what is ``missing``.

    ``wrong`` are those of the missing that lie in the root's wheelhouse with other bytes.
    """

    paths: Mapping[str, str]
    missing: tuple[LockEntry, ...]
    wrong: tuple[LockEntry, ...]

    @property
    def size(self) -> int:
        """Bytes of the missing wheels."""
        return sum(entry.size for entry in self.missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Where one file lies on a host."""

    state: str
    path: str | None

    @classmethod
    def from_table(cls, table: Table) -> Found:
        """Read one answer of the operation ``wheelhouse.find``."""
        return cls(state=table.get("state", text), path=table.get("path", optional(text)))


def amount(entries: Collection[LockEntry]) -> str:
    """Return how many wheels these are and their bytes, as a plan says it: ``3 wheels, 4.1 MB``."""
    size = megabytes(sum(entry.size for entry in entries))
    return f"{counted(len(entries), 'wheel')}, {size}"


def survey(
    agent: Agent, root: str, lock: Lock, *, given: PurePosixPath | None = None, remember: bool = True
) -> Held:
    """Ask a host which wheels of a lock it holds; every byte was, or is now, hashed there.

    ``given`` is ``supply.wheelhouse``: read, never written. ``remember``: what had to be hashed is noted
    under the root. Raises :class:`~hostenv.errors.HostError` where ``given`` is no folder.
    """
    wheels = [(entry.sha256, entry.filename, entry.size) for entry in lock.entries]
    found = find(agent, root, wheels, given=given, remember=remember)
    pairs = tuple(zip(lock.entries, found, strict=True))
    return Held(
        paths={entry.sha256: each.path for entry, each in pairs if each.path},
        missing=tuple(entry for entry, each in pairs if not each.path),
        wrong=tuple(entry for entry, each in pairs if each.state == "wrong"),
    )


def find(
    agent: Agent,
    root: str,
    files: list[tuple[str, str, int]],
    *,
    given: PurePosixPath | None = None,
    remember: bool = True,
) -> tuple[Found, ...]:
    """Ask a host where files (sha256, name, size or 0) lie."""
    answer = agent.call(
        "wheelhouse.find", root=root, wheels=files, given=str(given) if given else None, remember=remember
    )
    return read(
        answer, list_of(table_of(Found.from_table)), document=f"{agent.host}: what its wheelhouse holds"
    )
