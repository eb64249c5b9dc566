"""Which machine a probe spoke to: its own names, and what tells one boot and one container from others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import flag, integer, list_of, mapping_of, number, optional, table_of, text
from hostenv.facts.fact import fact_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table
    from hostenv.facts.fact import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerName:
    """Kind and, where it shows, id of a container; kind ``none`` means that there is none."""

    kind: str
    id: str | None
    evidence: str | None = None

    @classmethod
    def from_table(cls, table: Table) -> ContainerName:
        """Read a container's name."""
        return cls(
            kind=table.get("kind", text),
            id=table.get("id", optional(text)),
            evidence=table.get("evidence", optional(text), None),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" if self.id else self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """Whom the agent ran as."""

    uid: int
    name: str | None

    @classmethod
    def from_table(cls, table: Table) -> User:
        """Read a user."""
        return cls(uid=table.get("uid", integer), name=table.get("name", optional(text)))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostIdentity:
    """What says which machine this is.

    ``boot_id_own``: something is mounted over the kernel's boot id, as LXC does for every container, so that
    a different boot id does not mean a different machine. ``boot_clock``: seconds since 1970 at which this
    kernel started, by its own clock. ``namespaces``: kind → inode. ``host_keys``: SHA256 fingerprints of
    the public keys in /etc/ssh.
    """

    machine_id: Fact[str]
    boot_id: Fact[str]
    boot_id_own: Fact[bool]
    boot_clock: Fact[float]
    hostname: Fact[str]
    host_keys: Fact[tuple[str, ...]]
    namespaces: Fact[Mapping[str, int]]
    container: Fact[ContainerName]
    user: Fact[User]

    @classmethod
    def from_table(cls, table: Table) -> HostIdentity:
        """Read the part ``identity`` of a probe."""
        return cls(
            machine_id=table.get("machine_id", fact_of(text)),
            boot_id=table.get("boot_id", fact_of(text)),
            boot_id_own=table.get("boot_id_own", fact_of(flag)),
            boot_clock=table.get("boot_clock", fact_of(number)),
            hostname=table.get("hostname", fact_of(text)),
            host_keys=table.get("host_keys", fact_of(list_of(text))),
            namespaces=table.get("namespaces", fact_of(mapping_of(integer))),
            container=table.get("container", fact_of(table_of(ContainerName.from_table))),
            user=table.get("user", fact_of(table_of(User.from_table))),
        )
