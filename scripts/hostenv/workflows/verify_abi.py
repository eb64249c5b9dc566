"""Judging an environment's binaries: whether they load, and whether their GPU code runs on that host."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import pathlib
import posixpath
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from hostenv.checks import across_hosts
from hostenv.checks.abi_rules import RULES
from hostenv.checks.gpu_code import gpu_entry
from hostenv.checks.judge import Facts, judge
from hostenv.errors import InputError, RefusedError
from hostenv.facts.gpu_code import GpuCodeFacts, GpuTargets
from hostenv.facts.host_saved import SavedFacts
from hostenv.facts.objects import LoadFacts, described
from hostenv.machine.fleet import run_on_hosts
from hostenv.machine.reach import Reach
from hostenv.spec.host import Mode
from hostenv.spec.overlay import load_overlays
from hostenv.workflows.abifacts import AbiReader, host_of, kept_answer
from hostenv.workflows.candidates import Wheels, open_reference, reference_place
from hostenv.workflows.host import read_state
from hostenv.workflows.suggest import Failing, proposals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.utils import NormalizedName

    from hostenv.checks.across_hosts import Library
    from hostenv.checks.judge import Verdict
    from hostenv.checks.suggest import Proposal
    from hostenv.errors import HostenvError
    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.candidates import Reference
    from hostenv.workflows.events import Listener
    from hostenv.workflows.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was found of one environment; ``objects`` as the JSON has them.

    ``seconds`` is the agent's own time; ``cached``: nothing had changed, so nothing was looked at again.
    ``proposals`` that make it pass, where it did not and they were asked for.
    """

    host: str
    venv: str
    verdict: Verdict
    objects: tuple[Mapping[str, object], ...]
    targets: GpuTargets
    seconds: float
    cached: bool
    nccl: tuple[Library, ...]
    proposals: tuple[Proposal, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostVerdict:
    """One host's result: what was judged, or the error that kept it from being."""

    host: str
    seconds: float
    judged: Judged | None = None
    error: HostenvError | None = None


def verify_abi(fleet: Fleet, request: Request, listener: Listener) -> tuple[HostVerdict, ...]:
    """Judge the current build of every host, or ``request.venv``, statically: nothing of it is run.

    Without hosts the fleet's defaults are judged. Raises :class:`InputError` where there is nothing to judge.
    """
    if request.reference and not request.suggest:
        raise InputError("--reference is what --suggest takes from", hint="add --suggest")
    words = request.hosts or fleet.default_hosts
    specs = {spec.name: spec for spec in fleet.select(words)}
    if not specs:
        raise InputError("there is no host to judge", hint="name one, or set default-hosts in fleet.toml")

    def on_one(spec: Spec, turn: Turn) -> Judged:
        try:
            return _judge_host(fleet, spec, turn, request, listener)
        finally:
            listener.finished(spec.name)

    results = run_on_hosts(specs, on_one, jobs=request.jobs)
    together = _together(specs, {name: each.value for name, each in results.items() if each.value})
    return tuple(
        HostVerdict(host=name, seconds=result.seconds, judged=together.get(name), error=result.error)
        for name, result in results.items()
    )


def _together(specs: Mapping[str, Spec], judged: Mapping[str, Judged]) -> dict[str, Judged]:
    """Return what was judged, with what only several hosts together show."""
    nccl = {name: each.nccl for name, each in judged.items()}
    locks = {name: specs[name].lock_owner for name in judged}
    today = dt.datetime.now(dt.UTC).date()
    found = {}
    for name, each in judged.items():
        peers = across_hosts.Peers(host=name, nccl=nccl, locks=locks)
        waivers = specs[name].checks.allow
        verdict = across_hosts.with_peers(each.verdict, peers, waivers, today=today)
        found[name] = replace(each, verdict=verdict.on(name))
    return found


def _judge_host(fleet: Fleet, spec: Spec, turn: Turn, request: Request, listener: Listener) -> Judged:
    saved = SavedFacts.load(request.facts) if request.facts else None
    place = reference_place(fleet, spec, request.reference) if request.reference else None
    reach = Reach(spec, specs=fleet.specs.values())
    turn.ends_with(reach.close)
    with reach:
        venv, cache, own = _place(reach, spec, request)
        host = saved.facts if saved else host_of(reach, spec, listener)
        reader = AbiReader(
            fleet=fleet,
            reach=reach,
            spec=spec,
            request=request,
            listener=listener,
            host=host,
            saved=saved,
        )
        answer = reader.objects(venv, cache=cache)
        facts = reader.facts(venv, answer, own=own)
        judged = _judged(spec, venv, facts, answer)
        if request.suggest and not judged.verdict.passed:
            listener.phase(spec.name, "suggest")
            opened = open_reference(fleet, place, reach, turn, listener) if place else nullcontext()
            with opened as reference:
                found = _proposals(reader, venv, facts, judged, reference, own=own)
                judged = replace(judged, proposals=found)
    return judged


def _proposals(  # noqa: PLR0913  what was judged and how
    reader: AbiReader, venv: str, facts: Facts, judged: Judged, reference: Reference | None, *, own: bool
) -> tuple[Proposal, ...]:
    reach, spec = reader.reach, reader.spec
    root = read_state(reach.agent, spec).root
    failing = Failing(
        spec=spec,
        facts=facts,
        verdict=judged.verdict,
        rules=RULES,
        simulate=lambda laid, gone: reader.objects(venv, laid=laid, gone=gone),
        wheels=Wheels(agent=reach.agent, spec=spec, root=root),
        own=own,
        fixed=_fixed(reader.fleet, spec) if own else frozenset(),
    )
    return proposals(failing, reference)


def _fixed(fleet: Fleet, spec: Spec) -> frozenset[NormalizedName]:
    """Return the distributions whose versions the spec's series and overlays hold."""
    overlays = load_overlays(fleet.folder.parent / "overlays", (each.name for each in spec.overlays))
    laid = {canonicalize_name(each.name) for overlay in overlays for each in overlay.distributions}
    return frozenset({*laid, *(each.distribution for each in spec.env.patches)})


def _judged(spec: Spec, venv: str, facts: Facts, answer: Mapping[str, Any]) -> Judged:
    loads, code, targets = facts[LoadFacts], facts[GpuCodeFacts], facts[GpuTargets]
    verdict = judge(facts, RULES, spec.checks.allow, today=dt.datetime.now(dt.UTC).date())
    entries = []
    for item in loads.objects:
        entry = described(item)
        if item.path in code.objects:
            entry |= gpu_entry(item.path, code.objects[item.path], targets)
        entries.append(entry)
    return Judged(
        host=spec.name,
        venv=venv,
        verdict=verdict,
        objects=tuple(entries),
        targets=targets,
        seconds=answer["seconds"],
        cached=answer["cached"],
        nccl=across_hosts.nccl_of(facts),
    )


def _place(reach: Reach, spec: Spec, request: Request) -> tuple[str, str | None, bool]:
    """Return the environment to judge, where its answer is kept, and whether it is a build of this host.

    The answer is never kept in a foreign environment.
    """
    if request.venv is None:
        state = read_state(reach.agent, spec)
        if state.astray:
            hint = f"nox -s build_env -- {spec.name} mends it"
            raise RefusedError(f"{spec.name}: {state.astray}", hint=hint)
        if state.current_build is None:
            raise RefusedError(
                f"{spec.name}: nothing is current under {state.root}",
                hint=f"nox -s build_env -- {spec.name}, or --venv PATH for an environment made otherwise",
            )
        venv, own = f"{state.root}/builds/{state.current_build}", True
    else:
        if not posixpath.isabs(request.venv) and not spec.is_local:
            raise InputError(f"--venv {request.venv}: must be absolute on {spec.name}")
        venv = str(pathlib.Path(request.venv).absolute()) if spec.is_local else request.venv
        own = posixpath.dirname(venv) == f"{_root(spec)}/builds"
    if own:
        return venv, kept_answer(venv) if spec.host.mode is Mode.MANAGE else None, True
    return venv, str(_kept_here(venv)) if spec.is_local else None, False


def _root(spec: Spec) -> str:
    """Return the host's root, of this machine as an absolute path."""
    return str(pathlib.Path(spec.host.root).expanduser() if spec.is_local else spec.host.root)


def _kept_here(venv: str) -> pathlib.Path:
    """Return where the controller keeps the answer on a foreign environment of its own machine."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(base, "hostenv", "objects")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(os.fsencode(venv)).hexdigest()[:32]
