"""Read-only reconnaissance of hosts, side by side, and what they are to each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.checks.container_claim import container_notes
from hostenv.checks.probe_notes import probe_notes
from hostenv.checks.same_machine import relations
from hostenv.facts.host import HostFacts
from hostenv.machine.fleet import run_on_hosts
from hostenv.machine.reach import Reach
from hostenv.steps.save_facts import SaveFacts
from hostenv.workflows.parents import parents_of

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.checks.same_machine import Relation
    from hostenv.errors import HostenvError
    from hostenv.machine.fleet import Result, Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.parents import Parents

_CACHES = ("_CACHE_DIR", "_WORKSPACE_BASE", "_CACHE_HOME", "HF_HOME", "TMPDIR")
"""Ends of the variables of a service that name folders in which it writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOptions:
    """How to probe. ``save`` keeps the stable facts in ``envspecs/facts/``, ``timeout`` is seconds a host."""

    jobs: int = 8
    timeout: float = 60.0
    smi_seconds: float = 15.0
    hash_seconds: float = 0.5
    search_seconds: float = 1.0
    exports: bool = False
    save: bool = False
    ssh_config: pathlib.Path | None = None
    python: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostProbe:
    """What came of one host: its facts, or the error that kept them from being read.

    ``answer`` is the agent's own JSON, ``host_key`` the fingerprint that SSH showed, ``seconds`` all that
    it took, ``saved`` the file that was written. ``parent_of`` are the containers for whose sake a machine
    was probed that nobody asked for.
    """

    name: str
    spec: Spec
    seconds: float
    facts: HostFacts | None = None
    answer: Mapping[str, Any] | None = None
    host_key: str | None = None
    notes: tuple[Finding, ...] = ()
    saved: pathlib.Path | None = None
    error: HostenvError | None = None
    parent_of: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeReport:
    """The hosts in the order asked for, and the relation of every two that answered."""

    hosts: tuple[HostProbe, ...]
    relations: tuple[Relation, ...]

    @property
    def failed(self) -> tuple[HostProbe, ...]:
        """The hosts that could not be probed, of those that were asked for."""
        return tuple(host for host in self.hosts if host.error and not host.parent_of)


def probe(
    fleet: Fleet,
    specs: Sequence[Spec],
    options: ProbeOptions,
    *,
    on_host: Callable[[str, bool], None] | None = None,
) -> ProbeReport:
    """Probe the hosts of ``specs``; ``on_host(name, succeeded)`` is called as each ends.

    One host's failure or bug does not stop another: it stands in the report. The machines that containers
    among them run on are probed, too (:func:`hostenv.workflows.parents.parents_of`).
    """
    parents = parents_of(fleet, specs)
    wanted = {spec.name: spec for spec in (*specs, *parents.extra)}

    def on_result(result: Result[HostProbe]) -> None:
        if on_host:
            on_host(result.name, result.error is None)

    def work(spec: Spec, turn: Turn) -> HostProbe:
        asked = spec.name not in {each.name for each in parents.extra}
        return _probe_host(fleet, spec, turn, options if asked else replace(options, save=False))

    results = run_on_hosts(wanted, work, jobs=options.jobs, timeout=options.timeout, on_result=on_result)
    hosts = _with_parents(tuple(_ended(wanted[name], each) for name, each in results.items()), parents)
    return ProbeReport(
        hosts=hosts, relations=relations({host.name: host.facts for host in hosts if host.facts})
    )


def _with_parents(hosts: tuple[HostProbe, ...], parents: Parents) -> tuple[HostProbe, ...]:
    """Hold containers against their parents, and mark the parents that nobody asked for."""
    by_name = {host.name: host for host in hosts}
    extra = {spec.name for spec in parents.extra}

    def completed(host: HostProbe) -> HostProbe:
        claim = host.spec.host.container
        parent = by_name.get(parents.names.get(host.name, ""))
        notes = host.notes
        if claim and host.facts and host.name not in extra:
            known = (parent.name, parent.facts or str(parent.error).split("\n")[0]) if parent else None
            notes = (*notes, *container_notes(host.name, claim, host.facts, known))
        if host.name in extra and not host.spec.identity:
            notes = tuple(note for note in notes if note.rule != "identity-missing")  # nobody wants to write
        children = tuple(name for name, of in parents.names.items() if of == host.name)
        return replace(host, notes=notes, parent_of=children if host.name in extra else ())

    return tuple(map(completed, hosts))


def questions(spec: Spec, options: ProbeOptions) -> dict[str, Any]:
    """Return what to ask a host's agent, from its spec: places, units, commands, the service's variables."""
    root = str(spec.host.root)
    environment = _environment(spec, root)
    caches = [value for name, value in environment.items() if name.endswith(_CACHES)]
    folders = (spec.supply.wheelhouse, spec.host.link, spec.capture.venv if spec.capture else None)
    wheelhouse, link, captured = (str(folder) if folder else None for folder in folders)
    return {
        "root": root,
        "disks": [path for path in (wheelhouse, *caches) if path and path.startswith(("/", "~"))],
        "venvs": [path for path in (link, f"{root}/current/env", captured) if path],
        "models": [str(model.path) for model in spec.models],
        "units": [spec.service.unit] if spec.service and spec.service.unit else [],
        "commands": [command.name for command in spec.system.commands],
        "libraries": list(spec.system.libraries),
        "environment": environment,
        "exports": options.exports or options.save,
        "smi_seconds": options.smi_seconds,
        "hash_seconds": options.hash_seconds,
        "search_seconds": options.search_seconds,
    }


def _environment(spec: Spec, root: str) -> dict[str, str]:
    """Return the service's environment as it is for the current build."""
    if spec.service is None:
        return {}
    places = {"{build}": f"{root}/current/env", "{root}": root, "{id}": "current"}
    environment = {}
    for name, value in spec.service.env.items():
        resolved = value.replace("{port}", str(spec.service.port or ""))
        for placeholder, place in places.items():
            resolved = resolved.replace(placeholder, place)
        environment[name] = resolved
    return environment


def _probe_host(fleet: Fleet, spec: Spec, turn: Turn, options: ProbeOptions) -> HostProbe:
    """Read a host's facts, keep them where that is asked for, and judge them."""
    reach = Reach(spec, specs=fleet.specs.values(), ssh_config=options.ssh_config, python=options.python)
    turn.ends_with(reach.close)
    with reach:
        answer = reach.agent.call("probe.host", **questions(spec, options))
        host_key = reach.host_key
    facts = HostFacts.from_dict(answer, name=f"{spec.name}: the probe's answer")
    identities = {name: each.identity for name, each in fleet.specs.items() if each.identity}
    saved = None
    if options.save and not turn.given_up.is_set():
        saved = SaveFacts(path=fleet.facts_path(spec), answer=answer).apply()
    return HostProbe(
        name=spec.name,
        spec=spec,
        seconds=0.0,
        facts=facts,
        answer=answer,
        host_key=host_key,
        notes=probe_notes(spec, facts, host_key=host_key, identities=identities),
        saved=saved,
    )


def _ended(spec: Spec, result: Result[HostProbe]) -> HostProbe:
    if result.value:
        return replace(result.value, seconds=result.seconds)
    return HostProbe(name=spec.name, spec=spec, seconds=result.seconds, error=result.error)
