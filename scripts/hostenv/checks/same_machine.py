"""How probed hosts relate: which addresses are one machine, and which is a container on which.

What decides, strongest first:

- Namespaces. The kernel gives no inode to two namespaces that live, so a host that sees processes in the
  very namespaces that another probe reported as its own is that one's container host.
- The boot id, one for each boot of a kernel. LXC mounts one of its own over it in every container
  (``lxc_setup_boot_id`` in lxc's conf.c), so that a *different* boot id proves nothing where it is covered.
- GPU UUIDs. One GPU is in one machine; a container and its host share all of them.
- The kernel's boot clock. Equal clocks alone are an indication, clocks minutes apart are a contradiction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING

from hostenv.agent import amounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostenv.facts.host import HostFacts
    from hostenv.facts.host_processes import NamespaceGroup

SAME_CLOCK = 2.0
"""Seconds that one kernel's start may differ between two probes: the wall clock is slewed meanwhile."""
OTHER_CLOCK = 60.0
"""Seconds from which two kernels are told apart: a step of the wall clock between two probes is smaller."""


class Kind(StrEnum):
    """How the second host relates to the first."""

    SAME = "same"
    """Two addresses of one system: the same namespaces of the same kernel."""
    CONTAINER_OF = "container-of"
    """The second host is a container on the first."""
    SIBLINGS = "siblings"
    """Two containers on one kernel."""
    ONE_KERNEL = "one-kernel"
    """One kernel; which is the container of which does not show."""
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """What two hosts are to each other. For ``CONTAINER_OF``, ``second`` is the container on ``first``."""

    first: str
    second: str
    kind: Kind
    evidence: tuple[str, ...]
    container: str | None = None

    def __str__(self) -> str:
        """Say it in a sentence."""
        said = {
            Kind.SAME: f"{self.first} and {self.second} are one system behind two addresses",
            Kind.CONTAINER_OF: f"{self.second} is a container on {self.first}",
            Kind.SIBLINGS: f"{self.first} and {self.second} are containers on one machine",
            Kind.ONE_KERNEL: f"{self.first} and {self.second} run on one machine",
            Kind.DIFFERENT: f"{self.first} and {self.second} are different machines",
            Kind.UNKNOWN: f"whether {self.first} and {self.second} are one machine is unknown",
        }[self.kind]
        return f"{said} ({self.container})" if self.container else said


def relations(hosts: Mapping[str, HostFacts]) -> tuple[Relation, ...]:
    """Return the relation of every two hosts, in the order given; ``hosts`` is keyed by the host's name."""
    return tuple(_relate(*pair) for pair in combinations(hosts.items(), 2))


def related(found: tuple[Relation, ...]) -> tuple[Relation, ...]:
    """Return the relations worth telling: all but plainly different machines."""
    return tuple(relation for relation in found if relation.kind is not Kind.DIFFERENT)


def _relate(one: tuple[str, HostFacts], two: tuple[str, HostFacts]) -> Relation:
    for (outer_name, outer), (inner_name, inner) in ((one, two), (two, one)):
        group = _sees(outer, inner)
        if group:
            return Relation(
                first=outer_name,
                second=inner_name,
                kind=Kind.CONTAINER_OF,
                evidence=(
                    _sight(outer_name, inner_name, group),
                    *_shared(outer, inner),
                ),
                container=_named(group, inner),
            )
    (first, left), (second, right) = one, two
    kind, evidence = _kernels(left, right)
    if kind is Kind.ONE_KERNEL:
        kind, evidence = _within_kernel(left, right, evidence)
    if kind is Kind.CONTAINER_OF and _kind(left) != "none":
        (first, left), (second, right) = two, one
    container = _named(None, right) if kind is Kind.CONTAINER_OF else None
    return Relation(first=first, second=second, kind=kind, evidence=evidence, container=container)


def _sight(outer_name: str, inner_name: str, group: NamespaceGroup) -> str:
    where = f"mnt {group.mount_namespace}, pid {group.pid_namespace}"
    return f"{outer_name} sees {amounts.processes(group.processes)} in {inner_name}'s namespaces ({where})"


def _sees(outer: HostFacts, inner: HostFacts) -> NamespaceGroup | None:
    """Return the processes of ``outer`` that are in ``inner``'s own namespaces."""
    own = inner.identity.namespaces.or_else({})
    if not outer.processes or _clocks_apart(outer, inner):
        return None  # inode numbers of two kernels mean nothing to each other
    wanted = (own.get("pid"), own.get("mnt"))
    groups = outer.processes.namespaces
    return next((each for each in groups if (each.pid_namespace, each.mount_namespace) == wanted), None)


def _kernels(left: HostFacts, right: HostFacts) -> tuple[Kind, tuple[str, ...]]:
    """Say whether two hosts run on one kernel."""
    boots = left.identity.boot_id, right.identity.boot_id
    gpus = _shared_gpus(left, right)
    if all(boot.is_known for boot in boots) and boots[0].value == boots[1].value:
        return Kind.ONE_KERNEL, _shared(left, right)
    if all(map(_tells_boot, (left, right))):
        reason = (f"boot ids differ: {boots[0].value}, {boots[1].value}",)
        return Kind.DIFFERENT, (*reason, *_note_of_contradiction(left, right, gpus))
    if _clocks_apart(left, right):
        return Kind.DIFFERENT, ("the kernels started at different times",)
    if gpus:
        return Kind.ONE_KERNEL, _shared(left, right)
    why = tuple(_why_no_boot(host) for host in (left, right) if not _tells_boot(host))
    return Kind.UNKNOWN, (*why, *_shared(left, right))


def _within_kernel(
    left: HostFacts, right: HostFacts, evidence: tuple[str, ...]
) -> tuple[Kind, tuple[str, ...]]:
    own = left.identity.namespaces.or_else({}), right.identity.namespaces.or_else({})
    if all("mnt" in spaces and "pid" in spaces for spaces in own):
        if all(own[0][name] == own[1][name] for name in ("mnt", "pid")):
            return Kind.SAME, (*evidence, "same mount and PID namespace")
        evidence = (*evidence, f"mount namespaces differ: {own[0]['mnt']}, {own[1]['mnt']}")
    kinds = {_kind(left), _kind(right)}
    if None in kinds or kinds == {"none"}:
        return Kind.ONE_KERNEL, evidence
    return (Kind.CONTAINER_OF if "none" in kinds else Kind.SIBLINGS), evidence


def _kind(host: HostFacts) -> str | None:
    return host.identity.container.then(lambda name: name.kind, None)


def _tells_boot(host: HostFacts) -> bool:
    """Whether the boot id is the kernel's own."""
    return host.identity.boot_id.is_known and host.identity.boot_id_own.or_else(otherwise=True) is False


def _why_no_boot(host: HostFacts) -> str:
    boot = host.identity.boot_id
    return f"boot id unknown: {boot.unknown}" if boot.unknown else "its boot id is the container's own"


def _clocks(left: HostFacts, right: HostFacts) -> float | None:
    clocks = left.identity.boot_clock, right.identity.boot_clock
    return abs(clocks[0].value - clocks[1].value) if all(clock.is_known for clock in clocks) else None


def _clocks_apart(left: HostFacts, right: HostFacts) -> bool:
    apart = _clocks(left, right)
    return apart is not None and apart > OTHER_CLOCK


def _shared_gpus(left: HostFacts, right: HostFacts) -> frozenset[str]:
    return left.gpu_uuids & right.gpu_uuids


def _shared(left: HostFacts, right: HostFacts) -> tuple[str, ...]:
    return tuple(_agreements(left, right))


def _agreements(left: HostFacts, right: HostFacts) -> Iterator[str]:
    boots = left.identity.boot_id, right.identity.boot_id
    if all(boot.is_known for boot in boots) and boots[0].value == boots[1].value:
        yield f"same boot id {boots[0].value}"
    gpus = _shared_gpus(left, right)
    if gpus:
        yield f"{amounts.counted(len(gpus), 'GPU')} with the same UUID, {min(gpus)} first"
    apart = _clocks(left, right)
    if apart is not None and apart <= SAME_CLOCK:
        yield f"the kernels started within {apart:.3f} s"


def _note_of_contradiction(left: HostFacts, right: HostFacts, gpus: frozenset[str]) -> Iterator[str]:
    ids = left.identity.machine_id, right.identity.machine_id
    if all(each.is_known for each in ids) and ids[0].value == ids[1].value:
        yield "same machine id: booted between the two probes, or one is a clone of the other"
    if gpus:
        yield (
            f"yet the same UUID has {amounts.counted(len(gpus), 'GPU')}: "
            "passed on from one to the other meanwhile?"
        )


def _named(group: NamespaceGroup | None, inner: HostFacts) -> str | None:
    if group and group.container:
        return str(group.container)
    name = inner.identity.container
    return str(name.value) if name.is_known and name.value.kind not in {"none", "other"} else None
