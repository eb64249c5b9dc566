"""What a spec says about the machine: how it is reached, which one it is, what hardware it should show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hostenv.document import InvalidValueError, choice, list_of, natural, table_of
from hostenv.spec import words

if TYPE_CHECKING:
    from pathlib import PurePosixPath

    from hostenv.document import Node, Table

MAX_CONNECTIONS = 16
_LAYOUT = frozenset(
    {"wheelhouse", "cache", "builds", "generations", "current", "lock", "jit", "tools", "pythons"}
)


class Transport(StrEnum):
    """How a host is reached."""

    SSH = "ssh"
    LOCAL = "local"


class Mode(StrEnum):
    """Whether writing sessions may touch the host: under ``observe`` every one refuses."""

    OBSERVE = "observe"
    MANAGE = "manage"


class Become(StrEnum):
    """How root is reached where the user is not root; ``sudo`` is never interactive."""

    NONE = "none"
    SUDO = "sudo"


class ContainerKind(StrEnum):
    """The kinds of container that a host can be."""

    LXC = "lxc"
    DOCKER = "docker"
    PODMAN = "podman"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """The host is a container; ``parent`` is the SSH alias of the machine it runs on, only ever read."""

    kind: ContainerKind
    id: str
    parent: str | None

    @classmethod
    def from_table(cls, table: Table) -> Container:
        """Read ``[host.container]``."""
        return cls(
            kind=table.get("kind", choice(ContainerKind)),
            id=table.get("id", _container_id),
            parent=table.get("parent", words.alias, None),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """How the host is reached and where hostenv lives there.

    ``user`` None: whatever the SSH configuration says. ``root`` and ``link`` may start with ``~``, the
    home folder of the user on that host: `words.at_home` resolves it. ``connections`` is how many SSH
    logins a bulk transfer may use.
    """

    transport: Transport
    address: str
    user: str | None
    become: Become
    root: PurePosixPath
    link: PurePosixPath | None
    mode: Mode
    connections: int
    container: Container | None

    @classmethod
    def from_table(cls, table: Table, *, name: str) -> Host:
        """Read ``[host]``; ``address`` is the spec's name unless it is written."""
        host = cls(
            transport=table.get("transport", choice(Transport), Transport.SSH),
            address=table.get("address", words.alias, name),
            user=table.get("user", words.name, None),
            become=table.get("become", choice(Become), Become.NONE),
            root=table.get("root", words.host_path),
            link=table.get("link", words.host_path, None),
            mode=table.get("mode", choice(Mode), Mode.MANAGE),
            connections=table.get("connections", _connections, 1),
            container=table.get("container", table_of(Container.from_table), None),
        )
        if table.sound:
            host._check(table)
        return host

    def _check(self, table: Table) -> None:
        if self.transport is Transport.LOCAL:
            for key in ("address", "user", "connections", "become"):
                if table.has(key):
                    table.problem(key, 'has no meaning with transport = "local"')
        elif self.container and self.container.parent == self.address:
            why = f'its parent "{self.address}" is its own address: the parent is the machine it runs on'
            table.problem("container", why)
        if self.link is None:
            return
        if self.root.is_relative_to(self.link):
            table.problem("link", f'must not be the root ("{self.root}") or a folder above it')
        elif self.link.is_relative_to(self.root) and self.link.relative_to(self.root).parts[0] in _LAYOUT:
            table.problem("link", f'must not lie in what hostenv keeps under its root ("{self.root}")')


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Which machine this is; all of it must match before a write.

    ``machine_id`` is /etc/machine-id, ``host_key`` the SSH host key's fingerprint (None: transport local).
    """

    machine_id: str
    host_key: str | None

    @classmethod
    def from_table(cls, table: Table) -> Identity:
        """Read ``[identity]``."""
        return cls(
            machine_id=table.get("machine-id", words.machine_id),
            host_key=table.get("host-key", words.host_key, None),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedGpu:
    """A GPU that belongs to somebody else: named by its UUID or by its index, exactly one of them."""

    uuid: str | None
    index: int | None
    why: str
    owner: str | None

    @classmethod
    def from_table(cls, table: Table) -> ReservedGpu:
        """Read one entry of ``gpus.reserved``."""
        gpu = cls(
            uuid=table.get("uuid", words.gpu_uuid, None),
            index=table.get("index", natural, None),
            why=table.get("why", words.line),
            owner=table.get("owner", words.line, None),
        )
        if table.sound and (gpu.uuid is None) == (gpu.index is None):
            table.problem("", "needs exactly one of uuid and index")
        return gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """The GPUs that a healthy host shows; never part of its identity."""

    model: str | None
    count: int | None
    compute_capability: str | None
    reserved: tuple[ReservedGpu, ...]

    @classmethod
    def from_table(cls, table: Table) -> Gpus:
        """Read ``[gpus]``."""
        gpus = cls(
            model=table.get("model", words.line, None),
            count=table.get("count", natural, None),
            compute_capability=table.get("compute-capability", words.capability, None),
            reserved=table.get("reserved", list_of(table_of(ReservedGpu.from_table)), ()),
        )
        if table.sound and gpus.count is not None:
            for place, gpu in enumerate(gpus.reserved):
                if gpu.index is not None and gpu.index >= gpus.count:
                    table.problem(
                        "reserved", f"index {gpu.index}, but there are {gpus.count} GPUs", index=place
                    )
        return gpus


def _container_id(node: Node) -> str:
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return str(node.value)
    return words.name(node)


def _connections(node: Node) -> int:
    value = natural(node)
    if not 1 <= value <= MAX_CONNECTIONS:
        raise InvalidValueError(f"must be from 1 to {MAX_CONNECTIONS}, is {value}")
    return value
