"""Reading all that the rules on an environment's binaries go by: its files, its host, its service."""

from __future__ import annotations

import pathlib
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.checks.driver_floor import DriverFloor
from hostenv.checks.judge import Facts
from hostenv.errors import InputError
from hostenv.facts.candidates import packed
from hostenv.facts.gpu_code import GpuCodeFacts, runtime_of
from hostenv.facts.host import HostFacts
from hostenv.facts.host_targets import gpu_targets
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import ServiceSettings, Surroundings
from hostenv.workflows.looking import look_at_site, site_facts
from hostenv.workflows.probe import ProbeOptions, questions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostenv.facts.candidates import Excerpt
    from hostenv.facts.host_saved import SavedFacts
    from hostenv.machine.reach import Reach
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import Listener
    from hostenv.workflows.request import Request

_OF_THE_LOADER = ("LD_LIBRARY_PATH", "LD_PRELOAD")


def host_of(reach: Reach, spec: Spec, listener: Listener) -> HostFacts:
    """Return what a host has, as the rules on binaries go by it: read now, and quickly."""
    listener.phase(spec.name, "facts")
    asked = questions(spec, ProbeOptions(exports=False, search_seconds=0.0))
    return HostFacts.from_dict(reach.agent.call("probe.host", **asked), name=spec.name)


def kept_answer(build: str) -> str:
    """Return where a build keeps the answer on its objects, beside what else is kept of it."""
    return f"{build}/.hostenv/objects"


@dataclass(frozen=True, kw_only=True, slots=True)
class AbiReader:
    """Reads environments on one host, all of them against the same facts of it, its own or ``saved`` ones."""

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
            runtime_of(loads),
            self.host,
            service,
            Surroundings.from_dict(around, name=f"{spec.name}: surroundings"),
            *site_facts(spec, looked, self.saved, own=own),
        )


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
