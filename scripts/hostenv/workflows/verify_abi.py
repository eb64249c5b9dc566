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
from packaging.version import Version

from hostenv.checks import (
    across_hosts,
    agreement_rules,
    driver_floor,
    gpu_rules,
    integrity_rules,
    objects,
    op_schemas,
    python_rules,
    rules,
    stack_rules,
    surrounding,
)
from hostenv.checks.driver_floor import DriverFloor
from hostenv.checks.gpu_code import gpu_entry
from hostenv.checks.judge import Facts, judge
from hostenv.errors import InputError, RefusedError
from hostenv.facts.candidates import packed
from hostenv.facts.gpu_code import CudaRuntime, DottedPair, GpuCodeFacts, GpuTargets
from hostenv.facts.host import HostFacts
from hostenv.facts.host_saved import SavedFacts
from hostenv.facts.host_targets import gpu_targets
from hostenv.facts.objects import LoadFacts, described
from hostenv.facts.surroundings import ServiceSettings, Surroundings
from hostenv.machine.fleet import run_on_hosts
from hostenv.machine.reach import Reach
from hostenv.spec.host import Mode
from hostenv.spec.overlay import load_overlays
from hostenv.workflows.candidates import Wheels, open_reference, reference_place
from hostenv.workflows.host import read_state
from hostenv.workflows.looking import look_at_site, site_facts
from hostenv.workflows.probe import ProbeOptions, questions
from hostenv.workflows.suggest import Failing, proposals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.across_hosts import Library
    from hostenv.checks.judge import Verdict
    from hostenv.checks.suggest import Proposal
    from hostenv.errors import HostenvError
    from hostenv.facts.candidates import Excerpt
    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.candidates import Reference
    from hostenv.workflows.events import Listener
    from hostenv.workflows.request import Request

RULES = (
    *rules.RULES,
    *integrity_rules.RULES,
    *stack_rules.RULES,
    *agreement_rules.RULES,
    *python_rules.RULES,
    *op_schemas.RULES,
    *objects.RULES,
    *gpu_rules.RULES,
    *driver_floor.RULES,
    *surrounding.RULES,
)

_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
_OF_THE_LOADER = ("LD_LIBRARY_PATH", "LD_PRELOAD")


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
        found[name] = replace(each, verdict=verdict)
    return found


def _judge_host(fleet: Fleet, spec: Spec, turn: Turn, request: Request, listener: Listener) -> Judged:
    saved = SavedFacts.load(request.facts) if request.facts else None
    place = reference_place(fleet, spec, request.reference) if request.reference else None
    reach = Reach(spec, specs=fleet.specs.values())
    turn.ends_with(reach.close)
    with reach:
        venv, cache = _place(reach, spec, request)
        listener.phase(spec.name, "facts")
        asked = questions(spec, ProbeOptions(exports=False, search_seconds=0.0))
        host = (
            saved.facts
            if saved
            else HostFacts.from_dict(reach.agent.call("probe.host", **asked), name=spec.name)
        )
        reader = _Reader(
            fleet=fleet,
            reach=reach,
            spec=spec,
            request=request,
            listener=listener,
            host=host,
            saved=saved,
        )
        answer = reader.objects(venv, cache=cache)
        facts = reader.facts(venv, answer, own=request.venv is None)
        judged = _judged(spec, venv, facts, answer)
        if request.suggest and not judged.verdict.passed:
            listener.phase(spec.name, "suggest")
            opened = open_reference(fleet, place, reach, turn, listener) if place else nullcontext()
            with opened as reference:
                judged = replace(judged, proposals=_proposals(reader, venv, facts, judged, reference))
    return judged


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """Reads environments on one host, all of them against the same facts of it."""

    fleet: Fleet
    reach: Reach
    spec: Spec
    request: Request
    listener: Listener
    host: HostFacts
    saved: SavedFacts | None

    def objects(
        self,
        venv: str,
        *,
        cache: str | None = None,
        laid: Sequence[Excerpt] | None = None,
        gone: Sequence[str] = (),
    ) -> Mapping[str, Any]:
        """Ask what the loader says of the objects of an environment, others ``laid`` over, some ``gone``."""
        self.listener.phase(self.spec.name, "objects")
        answer: Mapping[str, Any] = self.reach.agent.call(
            "abi.objects",
            venv=venv,
            environment=_loader_settings(self.spec, venv),
            cache=cache,
            host=_saved_libraries(self.saved),
            laid=None if laid is None else [each.request for each in laid],
            gone=gone,
            data=None if laid is None else [packed(laid)],
        )
        return answer

    def facts(self, venv: str, answer: Mapping[str, Any], *, own: bool) -> Facts:
        """Return all facts of an environment, of whose objects ``answer`` tells."""
        spec = self.spec
        service = _service(spec, venv)
        around = self.reach.agent.call(
            "abi.surroundings",
            venv=venv,
            environment=dict(service.env),
            user=_user(spec, self.host),
            host=self.saved is None,
        )
        self.listener.phase(spec.name, "files")
        looked = look_at_site(self.reach, spec, venv, self.listener, full=own or self.request.rehash)
        loads = LoadFacts.from_dict(answer, name=f"{spec.name}: shared objects")
        return Facts(
            loads,
            GpuCodeFacts.from_dict(answer["gpu_code"]),
            gpu_targets(self.host),
            DriverFloor(minimum=spec.platform.driver_min),
            _runtime(loads),
            self.host,
            service,
            Surroundings.from_dict(around, name=f"{spec.name}: surroundings"),
            *site_facts(spec, looked, self.saved, own=own),
        )


def _proposals(
    reader: _Reader, venv: str, facts: Facts, judged: Judged, reference: Reference | None
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
        own=reader.request.venv is None,
        fixed=_fixed(reader.fleet, spec) if reader.request.venv is None else frozenset(),
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


def _place(reach: Reach, spec: Spec, request: Request) -> tuple[str, str | None]:
    """Return the environment to judge and where its answer is kept: never in a foreign environment."""
    if request.venv is None:
        state = read_state(reach.agent, spec)
        if state.current_build is None:
            raise RefusedError(
                f"{spec.name}: nothing is current under {state.root}",
                hint=f"nox -s build_env -- {spec.name}, or --venv PATH for an environment made otherwise",
            )
        venv = f"{state.root}/builds/{state.current_build}"
        return venv, f"{venv}/.hostenv/objects" if spec.host.mode is Mode.MANAGE else None
    if not posixpath.isabs(request.venv) and not spec.is_local:
        raise InputError(f"--venv {request.venv}: must be absolute on {spec.name}")
    venv = str(pathlib.Path(request.venv).absolute()) if spec.is_local else request.venv
    return venv, str(_kept_here(venv)) if spec.is_local else None


def _kept_here(venv: str) -> pathlib.Path:
    """Return where the controller keeps the answer on a foreign environment of its own machine."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(base, "hostenv", "objects")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(os.fsencode(venv)).hexdigest()[:32]


def _loader_settings(spec: Spec, venv: str) -> dict[str, str]:
    """Return what of the service's environment the loader goes by."""
    return {name: value for name, value in _service(spec, venv).env.items() if name in _OF_THE_LOADER}


def _service(spec: Spec, venv: str) -> ServiceSettings:
    """Return what the spec says of the process that will run from the environment."""
    if spec.service is None:
        return ServiceSettings(offline=spec.supply.offline)
    service = spec.service.filled(
        build=pathlib.PurePosixPath(venv), root=spec.host.root, build_id=posixpath.basename(venv)
    )
    return ServiceSettings(stated=True, env=service.env, args=service.args, offline=spec.supply.offline)


def _user(spec: Spec, host: HostFacts) -> str | None:
    """Return the login that the service's unit runs as, where the host shows it."""
    unit = spec.service.unit if spec.service else None
    return next((each.user for each in host.units.or_else(()) if each.name == unit), None)


def _saved_libraries(saved: SavedFacts | None) -> dict[str, Any] | None:
    """Return another machine's libraries as the agent judges against them."""
    if saved is None:
        return None
    glibc = saved.facts.system.glibc
    if not glibc.is_known:
        raise InputError(f"{saved.path}: the host's glibc is unknown: {glibc.unknown}")
    numbers = [int(part) for part in str(glibc.value).split(".")[:2]]
    return {"libraries": saved.document["libraries"], "glibc": numbers}


def _runtime(loads: LoadFacts) -> CudaRuntime:
    """Return the CUDA version of the environment's runtime, from its wheel or from torch."""
    for name in _RUNTIMES:
        if name in loads.installed:
            try:
                release = Version(loads.installed[name]).release
            except ValueError:
                continue
            return CudaRuntime(version=DottedPair(*release[:2]), source=f"{name} {loads.installed[name]}")
    if loads.cuda:
        return CudaRuntime(version=DottedPair.parse(loads.cuda), source=f"torch for CUDA {loads.cuda}")
    return CudaRuntime(version=None, source="no CUDA runtime in the environment")
