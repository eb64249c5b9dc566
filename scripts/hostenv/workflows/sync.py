"""``sync_patches``: a reference's series and overlays on every target, proven equal before the switch."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hostenv.errors import InputError, RefusedError, UnreachableError
from hostenv.machine.fleet import Turn
from hostenv.workflows.build_env import More, run_on
from hostenv.workflows.capture import capture
from hostenv.workflows.edits import Unknown, edits_in, look_at, save_edits
from hostenv.workflows.host import open_for_writing, who
from hostenv.workflows.reference import Reference
from hostenv.workflows.taking import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import HostResult
    from hostenv.workflows.session import Session
    from hostenv.workflows.taking import Reading

_SHOWN = 20


def sync_patches(session: Session) -> tuple[HostResult, ...]:
    """Bring the first host's series and overlays to each of the others.

    Raises where the reference cannot be read, or is not what its spec says; a target's error is its result.
    Nothing is written on the reference.
    """
    spec, targets = _chosen(session)
    with _reading(session, spec, targets) as reading:
        session.listener.phase(spec.name, "look")
        reference = Reference(session, reading)
        session.listener.finished(spec.name)
        _require_no_drift(session, reference)

        def on_target(session: Session, spec: Spec, turn: Turn) -> HostResult:
            return _on_target(session, spec, turn, reference)

        return session.run(on_target, targets)


@contextlib.contextmanager
def _reading(session: Session, spec: Spec, targets: Sequence[Spec]) -> Iterator[Reading]:
    """Open the reference; where it is gone, say what it is not needed for."""
    with contextlib.ExitStack() as stack:
        try:
            reading = stack.enter_context(open_for_reading(session.fleet, spec, Turn(spec.name), None))
        except UnreachableError as error:
            names = " ".join(target.name for target in targets)
            hint = (
                f"what was taken from {spec.name} is kept here: nox -s build_env -- {names} can do without it"
            )
            manifest = session.fleet.folder / "manifests" / f"{spec.name}.json"
            if manifest.exists():
                hint += f", and `match --manifest envspecs/manifests/{manifest.name}` prove it"
            raise UnreachableError(error.message, hint=hint) from error
        yield reading


def _chosen(session: Session) -> tuple[Spec, tuple[Spec, ...]]:
    first, *rest = session.request.hosts
    chosen = session.fleet.select([first])
    if len(chosen) != 1:
        raise InputError(f"{first} names {len(chosen)} hosts: a reference is one")
    targets = tuple(spec for spec in session.fleet.select(rest) if spec.name != chosen[0].name)
    if not targets:
        raise InputError("there is no target", hint="nox -s sync_patches -- REFERENCE TARGET...")
    return chosen[0], targets


def _require_no_drift(session: Session, reference: Reference) -> None:
    drift = reference.drift()
    if drift and session.request.from_drift:
        request = replace(session.request, hosts=(reference.name,))
        (result,) = capture(replace(session, request=request))
        if result.error:
            raise result.error
        raise RefusedError(
            f"{reference.name}: {result.headline}",
            hint=f"read what was written, let {reference.name} and its targets extend it, and run again: "
            + "; ".join(result.notes),
        )
    if drift and reference.hold:
        drift = (_held(reference), *drift)
    if drift:
        more = [f"and {len(drift) - _SHOWN} more"] if len(drift) > _SHOWN else []
        raise RefusedError(
            f"{reference.name} is not what its spec, lock, series and overlays say:\n"
            + "\n".join([*drift[:_SHOWN], *more]),
            hint=_way_on(reference),
        )


def _way_on(reference: Reference) -> str:
    """Say what helps: a capture where files differ, a build where only the spec went on."""
    name = reference.name
    if reference.only_moved_on:
        return f"nox -s build_env -- {name} makes what its spec says now; a capture would take it back"
    return f"--from-drift captures it first; nox -s match -- {name} shows a build's edits"


def _held(reference: Reference) -> str:
    """Say that somebody holds the reference where it is: no drift, but why it is not what its spec says."""
    hold = reference.hold
    by, why = (hold.by, hold.why) if hold else ("", "")
    return f"held by {by}: {why}; `nox -s switch -- {reference.name}` moves it on"


def _on_target(session: Session, spec: Spec, turn: Turn, reference: Reference) -> HostResult:
    """Look for edits, then build, prove and switch as ``build_env`` does; each only where it is due."""
    with open_for_writing(session.fleet, spec, turn) as host:
        session.listener.phase(spec.name, "look")
        current = look_at(session, host)
        edits = edits_in(session, current) if current else None
        if isinstance(edits, Unknown):
            raise edits.refusal(spec.name)
        if edits and not session.request.discard_edits:
            raise edits.refusal(spec.name)
        more = More(
            source=reference.source,
            edited=edits.build if edits else None,
            prove=lambda build: reference.prove(host, build),
        )
        run = run_on(session, host, more=more)
        reference.require_same_inputs(host, run.inputs)
        notes: tuple[str, ...] = ()
        if edits and not session.request.dry_run:
            folder = save_edits(session, host, edits, who(session.request.session))
            notes = (f"what was edited by hand is kept in {folder}",)
        result = run.carry_out()
        if not (result.changed or result.error or session.request.dry_run):
            notes += reference.prove(host, run.id, looked=current)
        return replace(result, notes=(*notes, *result.notes))
