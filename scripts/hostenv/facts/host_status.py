"""The state of a host at one moment: what the 3 a.m. page is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import (
    InvalidValueError,
    anything,
    integer,
    list_of,
    mapping_of,
    moment,
    natural,
    number,
    read,
    table_of,
    text,
)
from hostenv.facts.fact import fact_of
from hostenv.facts.host_gpu import Gpu, HostDriver
from hostenv.facts.host_identity import HostIdentity
from hostenv.facts.host_processes import Processes
from hostenv.facts.root import RootState

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from hostenv.document import Node, Table
    from hostenv.facts.fact import Fact

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PathUser:
    """A process that uses a build or the link; ``how`` is the first way that was seen (``maps /…``)."""

    pid: int
    name: str
    how: str

    @classmethod
    def from_table(cls, table: Table) -> PathUser:
        """Read a user."""
        return cls(pid=table.get("pid", natural), name=table.get("name", text), how=table.get("how", text))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStatus:
    """What ``probe.status`` read. ``users``: build id → the processes that really use it.

    ``through_link`` are processes that use the link or ``current`` by that path.
    """

    read_at: dt.datetime
    seconds: float
    identity: HostIdentity
    driver: HostDriver
    gpus: Fact[tuple[Gpu, ...]]
    processes: Processes
    state: RootState
    users: Mapping[str, tuple[PathUser, ...]]
    through_link: tuple[PathUser, ...]

    @classmethod
    def from_answer(cls, answer: object, host: str) -> HostStatus:
        """Type the agent's answer; raises :class:`~hostenv.document.DocumentError` where it is damaged."""

        def read_table(table: Table) -> HostStatus:
            table.get("version", _version)
            return cls(
                read_at=table.get("read_at", moment),
                seconds=table.get("seconds", number),
                identity=table.get("identity", table_of(HostIdentity.from_table)),
                driver=table.get("driver", table_of(HostDriver.from_table)),
                gpus=table.get("gpus", fact_of(list_of(table_of(Gpu.from_table)))),
                processes=table.get("processes", table_of(Processes.from_table)),
                state=RootState.from_answer(table.get("state", anything), host),
                users=table.get("users", mapping_of(list_of(table_of(PathUser.from_table)))),
                through_link=table.get("through_link", list_of(table_of(PathUser.from_table))),
            )

        return read(answer, table_of(read_table), document=f"{host}: its status")

    @property
    def outdated_users(self) -> Mapping[str, tuple[PathUser, ...]]:
        """The builds other than the current one that processes still use."""
        current = self.state.current_build
        return {build: users for build, users in self.users.items() if build != current}


def _version(node: Node) -> int:
    value = integer(node)
    if value != VERSION:
        raise InvalidValueError(f"is version {value}, this hostenv reads {VERSION}")
    return value
