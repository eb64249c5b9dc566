"""Building a host's environment, checking it, and switching to it."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.errors import CheckError
from hostenv.spec.environment import Activate as ActivateMode
from hostenv.steps.activate import Activate, Stage
from hostenv.steps.make import Make
from hostenv.workflows.events import HostResult
from hostenv.workflows.host import open_for_writing, who
from hostenv.workflows.inputs import inputs_of
from hostenv.workflows.locking import platform_of
from hostenv.workflows.switched import notes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostenv.checks.judge import Verdict
    from hostenv.machine.fleet import Turn
    from hostenv.spec.lock import LockEntry
    from hostenv.spec.spec import Spec
    from hostenv.steps.overlays import BringOverlays
    from hostenv.steps.payload import Source
    from hostenv.steps.series import SeriesResult
    from hostenv.workflows.fit import Fit
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.locking import Locked
    from hostenv.workflows.session import Session
    from hostenv.workflows.supply import Supply


def build_env(session: Session, spec: Spec, turn: Turn) -> HostResult:
    """Bring one host to what its spec says: lock, wheels, build, checks, switch; each only where it is due.

    Killed at any moment the current environment is whole, and run again it goes on. Raises HostenvError
    where the work cannot be done; what fails a gate is :class:`CheckError`, and the build stays to look at.
    """
    with open_for_writing(session.fleet, spec, turn) as host:
        return run_on(session, host).carry_out()


def run_on(session: Session, host: OpenHost, *, more: More | None = None) -> Run:
    """Return the way of an open host through the session, its lock found."""
    spec = host.spec
    platform = platform_of(spec, host.state, host.agent)
    locked = session.locker.lock(spec, platform, lambda: session.listener.phase(spec.name, "resolve"))
    return Run(session, host, locked, more or More())


@dataclass(frozen=True, kw_only=True, slots=True)
class More:
    """What another session wants beyond ``build_env``.

    ``source`` has the contents of overlays; ``edited`` is a build that somebody changed by hand, to be made
    anew where it is the one that is wanted; ``prove`` is called with a finished build's id before it is
    staged or switched to, says what it found, and raises where it may not be.
    """

    source: Source | None = None
    edited: str | None = None
    prove: Callable[[str], tuple[str, ...]] | None = None


class Run:
    """One host's way through the session, once its lock is known."""

    def __init__(self, session: Session, host: OpenHost, locked: Locked, more: More) -> None:
        self._session = session
        self._host = host
        self._spec = host.spec
        self._locked = locked
        self._who = who(session.request.session)
        self._more = more
        self._repository = session.fleet.folder.parent
        self.inputs = inputs_of(self._repository, host.spec, locked.lock)
        self.id = self.inputs.id
        self._make = Make(
            inputs=self.inputs,
            settings=host.spec.build,
            remake=session.request.remake or more.edited == self.id,
            despite_running=session.request.despite_running,
        )
        self._supplied: tuple[str, ...] = ()
        self._fit: Fit | None = None

    def carry_out(self) -> HostResult:
        """Plan, show, change; one after another."""
        supply = overlays = None
        if self._make.remake or self.id not in self._host.state.builds:
            self._make.check_ground(self._host.state)
            wheels = replace(self._locked.lock, entries=self.inputs.wheels)
            from hostenv.workflows.supply import supply_for  # noqa: PLC0415  a run with nothing to do stays quick

            supply = supply_for(self._session, self._host, wheels)
            overlays = self._overlays()
            self._try_series(supply)
        last = self._finish({})
        lines = (
            *self._locked.plan(),
            *(supply.plan() if supply else ()),
            *(overlays.plan() if overlays else ()),
            *self._make.plan(self._host.state, missing=supply.size if supply else 0),
            *(last.plan(self._host.state) if last else ()),
        )
        if not lines:
            return self._unchanged()
        self._session.listener.plan(self._spec.name, (*lines, *_left_out(self._spec)))
        if self._session.request.dry_run:
            return self._result("dry run: nothing was changed", notes=self._held())
        self._locked.write()
        if not supply:
            return self._finished(self._kept(), "checked and current")
        return self._finished(self._built(supply, overlays), "built, checked and current")

    def _unchanged(self) -> HostResult:
        """Say that nothing is to be done; a build that would not pass any more is judged first.

        That is one whose waiver has run out since, or whose spec judges otherwise than its receipt says.
        """
        receipt: Mapping[str, Any] = self._host.state.receipt
        today = dt.datetime.now(dt.UTC).date().isoformat()
        until = min((each["until"] for each in receipt.get("waived", ())), default=today)
        if receipt.get("judged_by") == judged_by(self._spec) and today <= until:
            return self._result("nothing to do", notes=self._held())
        facts = self._kept()
        verdict = self._judged(facts)
        if verdict.passed:
            return self._result("nothing to do", verdict=verdict, notes=self._held())
        return self._failed(facts, verdict)

    def _judged(self, facts: Mapping[str, Any]) -> Verdict:
        from hostenv.workflows.judging import judged  # noqa: PLC0415  a run with nothing to do stays quick

        state = self._host.state
        may_be_open = state.current_build == self.id or (self._make.remake and self.id in state.builds)
        return judged(self._session, self._host, self._path, facts, may_be_open=may_be_open)

    def _failed(self, facts: Mapping[str, Any], verdict: Verdict) -> HostResult:
        error = CheckError(
            f"{self._spec.name}: build {self.id} failed its checks; the environment is what it was",
            hint="mend what was found, or waive it in the spec; the build stays to look at: "
            f"nox -s verify_abi -- {self._spec.name} --venv {self._path} --suggest seeks a change, "
            f"nox -s build_env -- {self._spec.name} --remake makes it anew",
        )
        return self._result("checks failed", facts=facts, verdict=verdict, error=error)

    @property
    def _path(self) -> str:
        return f"{self._host.state.root}/builds/{self.id}"

    def _overlays(self) -> BringOverlays | None:
        """Return what brings the overlays' contents; refused where they cannot work on this host."""
        if not self.inputs.overlays:
            return None
        from hostenv.steps.overlays import bring_overlays  # noqa: PLC0415  a run without overlays stays quick
        from hostenv.workflows.fit import Fit  # noqa: PLC0415
        from hostenv.workflows.supply import way_by  # noqa: PLC0415

        self._fit = Fit(self._host, self.inputs)
        unknown = self._fit.check()
        root, payload = self._host.state.root, self._session.payload
        step = bring_overlays(self._host.agent, root, self.inputs.overlays, payload, self._more.source)
        via = self._spec.supply.via
        return replace(step, unknown=unknown, way=way_by(self._session, self._host, via) if via else None)

    def _built(self, supply: Supply, overlays: BringOverlays | None) -> Mapping[str, Any]:
        """Bring what is missing, compute the series on the locked wheels, make the build."""
        listener, name = self._session.listener, self._spec.name
        tools = supply.tools()
        wheels = supply.wheels()
        self._supplied = tuple(supply.notes)
        if overlays and self._fit:
            self._supplied += self._fit.check(wheels.values())
            listener.phase(name, "overlays")
            overlays.apply(
                self._host.reach,
                self._who,
                on_start=lambda size: listener.phase(name, "overlays", size),
                on_progress=lambda done: listener.advance(name, done),
            )
        results = self._series_results(supply)
        return self._make.apply(
            self._host.agent,
            self._host.state,
            uv=tools.uv,
            python=tools.python,
            wheels=wheels,
            results=results,
            repository=self._repository,
            who=self._who,
            on_event=lambda event: listener.phase(name, event["phase"]),
        )

    def _try_series(self, supply: Supply) -> None:
        """Apply the series where what they are for is here: what does not apply is told before the plan."""
        if not (self._spec.is_local and self.inputs.series):
            return
        from hostenv.steps.patched import touched_by  # noqa: PLC0415  a run with nothing to do stays quick

        wheels = (supply.local_wheel(entry) for entry in self._patched_wheels().values())
        if all(wheel.exists() for wheel in wheels) and not self._session.payload.missing(
            touched_by(self.inputs)
        ):
            self._series_results(supply)

    def _patched_wheels(self) -> Mapping[str, LockEntry]:
        entries, inputs = self._locked.lock.by_name, self.inputs
        return {each.dist: entries[each.dist] for each in inputs.series if not inputs.overlay_with(each.dist)}

    def _series_results(self, supply: Supply) -> tuple[SeriesResult, ...]:
        """Compute the series; what of overlays is not here comes back from the host, which has it by now."""
        from hostenv.steps.patched import compute_all, touched_by  # noqa: PLC0415  as above
        from hostenv.steps.payload import Source  # noqa: PLC0415

        payload, root = self._session.payload, self._host.state.root
        source = Source(self._host.reach, root=root, environments=())
        payload.bring(source, self.inputs.overlays, touched_by(self.inputs), on_progress=lambda _: None)
        wheels = {name: supply.local_wheel(entry) for name, entry in self._patched_wheels().items()}
        return compute_all(self.inputs, wheels, payload.folder)

    def _kept(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._host.agent.call(
            "build.facts", root=self._host.state.root, build=self.id
        )
        return facts

    def _finished(self, facts: Mapping[str, Any], headline: str) -> HostResult:
        """Judge what was built, then stage it or switch to it."""
        verdict = self._judged(facts)
        if not verdict.passed:
            return self._failed(facts, verdict)
        proven = self._more.prove(self.id) if self._more.prove else ()
        step = self._finish(self._receipt(facts, verdict))
        if step is None:
            return self._result(headline, facts=facts, verdict=verdict, notes=(*proven, *self._held()))
        if isinstance(step, Stage):
            step.apply(self._host.agent, self._host.state, self._who)
            switch = f"nox -s switch -- {self._spec.name}"
            notes = (*proven, *self._held())
            return self._result("staged", facts=facts, verdict=verdict, notes=notes, next_=(switch,))
        done = step.apply(self._host.agent, self._host.state, self._who)
        notes = (*proven, *notes_of(done.adopted, done.running))
        return replace(
            self._result(headline, facts=facts, verdict=verdict, notes=notes),
            generation=done.generation,
            next=(f"{self._path}/bin/python", f"nox -s rollback -- {self._spec.name}")[
                : 2 if done.previous else 1
            ],
        )

    def _finish(self, receipt: Mapping[str, object]) -> Activate | Stage | None:
        """Return the last step: a switch, or a stage where the spec, the operator or a hold wants one.

        For a build that is current a switch only makes the link, and what does not switch is nothing. Where
        ``current`` no longer leads to the build that it names, it is made to, whatever else is wanted.
        """
        request = self._session.request
        stays = request.stage or self._host.state.hold is not None
        hold: Mapping[str, str] | None = None
        if self._host.state.current_build == self.id:
            if stays:
                return None
        elif self._host.state.astray and self._host.state.receipt.get("build") == self.id:
            kept = self._host.state.hold  # mending moves nobody to another build
            hold = {"by": kept.by, "why": kept.why} if kept else None
        elif stays or self._spec.build.activate is ActivateMode.MANUAL:
            return Stage(build=self.id, receipt=receipt)
        return Activate(
            build=self.id,
            receipt=receipt,
            hold=hold,
            adopt_link=request.adopt_link,
            despite_running=request.despite_running,
        )

    def _held(self) -> tuple[str, ...]:
        hold, state = self._host.state.hold, self._host.state
        if hold is None:
            return ()
        broken: tuple[str, ...] = ()
        if state.astray and (build := state.receipt.get("build")) != self.id:
            broken = (f"{state.astray}; `nox -s switch -- {self._spec.name} --build {build}` mends it",)
        return (*broken, f"held by {hold.by}: {hold.why}; `nox -s switch -- {self._spec.name}` moves on")

    def _receipt(self, facts: Mapping[str, Any], verdict: Verdict) -> Mapping[str, object]:
        inputs = self._make.inputs
        return {
            "spec": self._spec.name,
            **self._who,
            "fingerprint": facts["tree"]["fingerprint"],
            "interpreter": facts["tree"]["interpreter"],
            "lock": {"name": self._locked.path.name, "inputs": inputs.lock.inputs_digest},
            "inputs": inputs.describe(),
            "judged_by": judged_by(self._spec),
            "findings": {finding.rule: finding.severity for finding in verdict.findings},
            "waived": [
                {"rule": each.finding.rule, "object": each.finding.object, "until": str(each.until)}
                for each in verdict.waived
            ],
        }

    def _result(  # noqa: PLR0913  the parts of a result, by keyword
        self,
        headline: str,
        *,
        facts: Mapping[str, Any] | None = None,
        verdict: Verdict | None = None,
        error: CheckError | None = None,
        notes: tuple[str, ...] = (),
        next_: tuple[str, ...] = (),
    ) -> HostResult:
        current = self._host.state.current_build == self.id
        told: Mapping[str, Any] = facts["tree"] if facts else self._host.state.receipt if current else {}
        interpreter = told.get("interpreter") or {}
        return HostResult(
            host=self._spec.name,
            headline=headline,
            changed=facts is not None,
            build=self.id,
            path=self._path,
            generation=self._host.state.generation if current else None,
            fingerprint=told.get("fingerprint"),
            interpreter=interpreter.get("version"),
            verdict=verdict,
            error=error,
            notes=(*self._supplied, *notes),
            next=next_,
        )


def _left_out(spec: Spec) -> tuple[str, ...]:
    """Say what of its classes' lists a spec's own replace: nobody notices what is not there."""
    return tuple(
        f"without  class's {key} left out: {', '.join(names)}; the list in {spec.path.name} replaces its own"
        for key, names in spec.left_out.items()
    )


def judged_by(spec: Spec) -> str:
    """Return a digest of what a spec's checks go by beside the environment: kept in the receipt."""
    env, checks = spec.env, spec.checks
    said = (env.requires, env.overrides, env.excludes, checks.allow)
    return hashlib.sha256(repr([[str(each) for each in part] for part in said]).encode()).hexdigest()[:16]
