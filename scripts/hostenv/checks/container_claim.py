"""What a spec says of its host as a container, held against what the host and its parent show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.finding import Finding, Severity
from hostenv.checks.free_gpus import Use, gpu_uses
from hostenv.checks.same_machine import Kind, relations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.facts.host import HostFacts
    from hostenv.spec.host import Container

RULE = "container-differs"


def container_notes(
    name: str, claim: Container, facts: HostFacts, parent: tuple[str, HostFacts | str] | None
) -> tuple[Finding, ...]:
    """Return what contradicts or completes ``[host.container]`` of the host ``name``.

    ``parent`` is the host that ``host.container.parent`` reaches, by the name under which it was probed
    (its alias may be another host's name, the container's own included), with its facts or why there are
    none; ``None`` where none is named. The parent sees who holds the GPUs: a container mostly sees only its
    own processes.
    """
    found = [*_itself(name, claim, facts)]
    if parent:
        parent_name, shown = parent
        if isinstance(shown, str):
            message = f"its parent {parent_name} could not be probed: {shown}"
            found.append(_finding(name, message, Severity.UNKNOWN))
        else:
            found += [*_parent(name, parent_name, facts, shown), *_holders(parent_name, facts, shown)]
    return tuple(found)


def _itself(name: str, claim: Container, facts: HostFacts) -> Iterator[Finding]:
    shown = facts.identity.container
    if shown.unknown is not None:
        yield _finding(name, f"whether it is a container is unknown: {shown.unknown}", Severity.UNKNOWN)
        return
    kind, known = shown.value.kind, shown.value.id
    evidence = (shown.value.evidence,) if shown.value.evidence else ()
    if kind not in {claim.kind, "other"}:
        told = "no container" if kind == "none" else f"a container of kind {kind}"
        yield _finding(name, f"is {told}, the spec says {claim.kind}", evidence=evidence)
    elif known and not known.startswith(claim.id):
        yield _finding(name, f"is {kind} {known}, the spec says {claim.id}", evidence=evidence)


def _parent(name: str, parent_name: str, facts: HostFacts, parent: HostFacts) -> Iterator[Finding]:
    (relation,) = relations({parent_name: parent, name: facts})
    if relation.kind is Kind.CONTAINER_OF and relation.first == parent_name:
        return
    unknown = relation.kind in {Kind.UNKNOWN, Kind.ONE_KERNEL}
    message = f"the spec says that it is a container on {parent_name}; but {relation}"
    if unknown:
        message = f"whether it is a container on {parent_name} does not show: {relation}"
    severity = Severity.UNKNOWN if unknown else Severity.ERROR
    yield _finding(name, message, severity, evidence=relation.evidence)


def _holders(parent_name: str, facts: HostFacts, parent: HostFacts) -> Iterator[Finding]:
    """Name what holds a GPU where only the parent sees it."""
    seen = {use.gpu.uuid: use for use in gpu_uses(parent).or_else(())}
    for use in gpu_uses(facts).or_else(()):
        hidden = use.use is Use.HELD and all(holder.process is None for holder in use.holders)
        there = seen.get(use.gpu.uuid)
        for holder in there.holders if hidden and there else ():
            if holder.process:
                inside = f" in {holder.process.container}" if holder.process.container else ""
                message = f"{parent_name} sees what holds it: pid {holder.pid} {holder.what}{inside}"
                yield _finding(f"GPU {use.gpu.index}", message, Severity.NOTE, rule="gpu-holder")


def _finding(
    about: str,
    message: str,
    severity: Severity = Severity.WARNING,
    *,
    evidence: tuple[str, ...] = (),
    rule: str = RULE,
) -> Finding:
    return Finding(
        rule=rule, severity=severity, object=about, message=message, kind=None, evidence=evidence, fix=None
    )
