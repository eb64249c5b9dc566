"""Activating a staged or earlier build, and going back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostenv.agent.amounts import counted
from hostenv.errors import BugError, CheckError, HostenvError, RefusedError
from hostenv.machine.here import told_here
from hostenv.steps.activate import Activate
from hostenv.workflows.edits import Unknown, find_edits
from hostenv.workflows.events import HostResult
from hostenv.workflows.host import open_for_writing, who
from hostenv.workflows.inputs import inputs_of
from hostenv.workflows.locking import platform_of
from hostenv.workflows.switched import notes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.machine.fleet import Turn
    from hostenv.spec.spec import Spec
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.request import Request
    from hostenv.workflows.session import Session


def switch(session: Session, spec: Spec, turn: Turn) -> HostResult:
    """Activate the staged build, or the one that the operator names; lifts a hold.

    Where a hold is all that keeps ``build_env`` from having nothing to do, nothing is staged: it is lifted.
    """
    request = session.request
    with open_for_writing(session.fleet, spec, turn) as host:
        if request.build:
            receipt = _receipt_of(host, request.build)
        else:
            receipt = _held_receipt(session, host) or _staged_receipt(host)
        return _carry_out(_activation(receipt, request), host, session)


def rollback(session: Session, spec: Spec, turn: Turn) -> HostResult:
    """Go back to the previous generation's build, or a named one, and hold the host there.

    The switch comes first, as it takes a moment; then the build is held against the manifest of its making.
    """
    request = session.request
    with open_for_writing(session.fleet, spec, turn) as host:
        receipt = _receipt_of(host, request.build) if request.build else _previous_receipt(host)
        by = who(request.session)["by"]
        hold = {"by": by, "why": request.why or f"rolled back from build {host.state.current_build}"}
        result = _carry_out(_activation(receipt, request, hold), host, session)
        return _verified(result, host, session) if result.changed else result


def _verified(result: HostResult, host: OpenHost, session: Session) -> HostResult:
    """Say whether what is current again is what was built.

    Whatever comes of that, the switch was made and stands: the result says so, an error is part of it.
    """
    name = host.spec.name
    session.listener.phase(name, "verify")
    try:
        with told_here(name):
            edits = find_edits(session, host, result.build)
    except HostenvError as raised:
        return replace(result, error=type(raised)(_unverified(result, raised.message), hint=_again(name)))
    except Exception as bug:  # noqa: BLE001  told like any bug, but not instead of what was done
        return replace(result, error=BugError(name, bug))
    if edits is None:
        return replace(result, notes=("it is as it was built, file by file", *result.notes))
    if isinstance(edits, Unknown):
        return replace(result, error=CheckError(_unverified(result, edits.why), hint=_again(name)))
    count = len(edits.differences) + len(edits.problems)
    error = CheckError(
        f"{name}: build {result.build} is current again, and {counted(count, 'file')} of it "
        f"{'is' if count == 1 else 'are'} not as built:\n" + "\n".join(edits.lines()),
        hint=f"nox -s builds -- {name} shows others that were current; --build ID goes to one of them",
    )
    return replace(result, error=error)


def _unverified(result: HostResult, why: str) -> str:
    why = why.removeprefix(f"{result.host}: ")
    return f"{result.host}: build {result.build} is current again, but could not be verified: {why}"


def _again(host: str) -> str:
    return f"nox -s match -- REFERENCE {host} verifies it; another rollback would go forward again"


def _activation(
    receipt: Mapping[str, Any], request: Request, hold: Mapping[str, str] | None = None
) -> Activate:
    return Activate(
        build=receipt["build"],
        receipt=receipt,
        hold=hold,
        adopt_link=request.adopt_link,
        despite_running=request.despite_running,
    )


def _carry_out(step: Activate, host: OpenHost, session: Session) -> HostResult:
    """Show the plan, move the pointer, say what is current."""
    name = host.spec.name
    changes = step.plan(host.state)
    path = f"{host.state.root}/builds/{step.build}"
    if not changes:
        headline = f"build {step.build} is current already"
        return HostResult(host=name, headline=headline, build=step.build, path=path)
    session.listener.plan(name, changes)
    if session.request.dry_run:
        step.rehearse(host.agent, host.state)
        return HostResult(host=name, headline="dry run: nothing was changed", build=step.build, path=path)
    done = step.apply(host.agent, host.state, who(session.request.session))
    stayed = step.build == host.state.current_build and host.state.hold and not step.hold
    return HostResult(
        host=name,
        headline=f"hold lifted: build {step.build} stays current"
        if stayed
        else f"build {step.build} is current",
        changed=True,
        build=step.build,
        path=path,
        generation=done.generation,
        fingerprint=_word(step.receipt.get("fingerprint")),
        notes=notes_of(done.adopted, done.running),
        next=_next(step, host),
    )


def _next(step: Activate, host: OpenHost) -> tuple[str, ...]:
    if not step.hold:
        return (f"nox -s rollback -- {host.spec.name}",)
    left = host.state.current_build
    return (f"nox -s switch -- {host.spec.name} --build {left}",) if left else ()


def _staged_receipt(host: OpenHost) -> Mapping[str, Any]:
    if host.state.staged is None:
        name = host.spec.name
        raise RefusedError(f"{name}: nothing is staged", hint=f"nox -s build_env -- {name} --stage")
    return {**host.state.staged.receipt, "build": host.state.staged.build}


def _held_receipt(session: Session, host: OpenHost) -> Mapping[str, Any] | None:
    """Return the current receipt where the host is held at what the spec wants, and nothing waits."""
    state, spec = host.state, host.spec
    if state.hold is None or state.waiting or state.current_build is None:
        return None
    lock = session.locker.answering(spec, platform_of(spec, state, host.agent))
    wanted = inputs_of(session.fleet.folder.parent, spec, lock).id if lock else None
    return state.receipt if wanted == state.current_build else None


def _previous_receipt(host: OpenHost) -> Mapping[str, Any]:
    name, state = host.spec.name, host.state
    previous, there = state.receipt.get("previous"), f"nox -s builds -- {name} shows what is there"
    if state.generation is None:
        raise RefusedError(f"{name}: nothing was ever current there: no generation to go back to", hint=there)
    if previous is None:
        raise RefusedError(
            f"{name}: generation {state.generation} was the first: there is no generation to go back to",
            hint=f"{there}; `nox -s switch -- {name}` activates a staged one",
        )
    for receipt in _history(host):
        if receipt.get("generation") == previous and receipt["build"] in state.builds:
            return receipt
    raise RefusedError(
        f"{name}: the build of generation {previous}, which was current before, is gone",
        hint=f"{there}; --build ID goes back to another that was current",
    )


def _receipt_of(host: OpenHost, word: str) -> Mapping[str, Any]:
    """Return the receipt of the last generation whose build's id begins with ``word``, or the staged one.

    What never passed its checks has none.
    """
    name, staged = host.spec.name, host.state.staged
    known = {receipt["build"]: receipt for receipt in _history(host)}
    if staged:
        known[staged.build] = _staged_receipt(host)
    there = [each for each in known if each in host.state.builds]
    fitting = [word] if word in there else [each for each in there if each.startswith(word)]
    if len(fitting) > 1:
        raise RefusedError(
            f"{name}: {word} begins several builds: {', '.join(fitting)}", hint="say more of it"
        )
    if not fitting:
        raise RefusedError(
            f"{name}: no build {word} that was current or is staged",
            hint=f"there: {', '.join(there) or 'none'}",
        )
    return known[fitting[0]]


def _history(host: OpenHost) -> list[Mapping[str, Any]]:
    receipts: list[Mapping[str, Any]] = host.agent.call("generation.history", root=host.state.root)
    return receipts


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None
