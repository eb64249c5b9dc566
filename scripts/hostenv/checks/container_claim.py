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
    name: str, claim: Container, facts: HostFacts, parent: HostFacts | str | None
) -> tuple[Finding, ...]:
    """Return what contradicts or completes ``[host.container]`` of the host ``name``.

    ``parent`` are the facts of ``host.container.parent``, or why there are none; ``None`` where it is not
    named. The parent sees who holds the GPUs: a container mostly sees only its own processes.
    """
    found = [*_itself(name, claim, facts)]
    if claim.parent and isinstance(parent, str):
        message = f"its parent {claim.parent} could not be probed: {parent}"
        found.append(_finding(name, message, Severity.UNKNOWN))
    elif claim.parent and parent and not isinstance(parent, str):
        found += [*_parent(name, claim.parent, facts, parent), *_holders(claim.parent, facts, parent)]
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


def _parent(name: str, alias: str, facts: HostFacts, parent: HostFacts) -> Iterator[Finding]:
    (relation,) = relations({alias: parent, name: facts})
    if relation.kind is Kind.CONTAINER_OF and relation.first == alias:
        return
    unknown = relation.kind in {Kind.UNKNOWN, Kind.ONE_KERNEL}
    message = f"the spec says that it is a container on {alias}; but {relation}"
    if unknown:
        message = f"whether it is a container on {alias} does not show: {relation}"
    severity = Severity.UNKNOWN if unknown else Severity.ERROR
    yield _finding(name, message, severity, evidence=relation.evidence)


def _holders(alias: str, facts: HostFacts, parent: HostFacts) -> Iterator[Finding]:
    """Name what holds a GPU where only the parent sees it."""
    seen = {use.gpu.uuid: use for use in gpu_uses(parent).or_else(())}
    for use in gpu_uses(facts).or_else(()):
        hidden = use.use is Use.HELD and all(holder.process is None for holder in use.holders)
        there = seen.get(use.gpu.uuid)
        for holder in there.holders if hidden and there else ():
            if holder.process:
                inside = f" in {holder.process.container}" if holder.process.container else ""
                message = f"{alias} sees what holds it: pid {holder.pid} {holder.what}{inside}"
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
