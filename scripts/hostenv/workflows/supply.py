"""What a build needs on its host: wheels by hash, an interpreter, uv; and the way that each takes there."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from hostenv.agent.amounts import megabytes
from hostenv.errors import HostError, SupplyError
from hostenv.machine import uv
from hostenv.spec.environment import Fetching
from hostenv.steps import fetch, supply_host, supply_uv
from hostenv.steps.make import HostPython, pythons_of
from hostenv.steps.supply_controller import ControllerSend, wheel_here
from hostenv.steps.supply_host import HostFetch
from hostenv.steps.supply_python import BringPython, choose
from hostenv.steps.supply_relay import ByRelay, RelaySend, Way
from hostenv.steps.supply_survey import Held, survey
from hostenv.workflows.host import who

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.spec.lock import Lock, LockEntry
    from hostenv.steps.supply_stream import Sender
    from hostenv.workflows.events import Listener
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.session import Session


_PATIENCE = 2.5
_LOCAL_PATIENCE = 0.2
"""Seconds to wait for a holder of the host's lock that may just be ending: killed, or its connection cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """What makes a build on the host: uv's path there, and the interpreter."""

    uv: str
    python: HostPython


class Supply(Protocol):
    """The supply of one host with one lock. Nothing is written before :meth:`wheels` or :meth:`tools`."""

    notes: list[str]
    """What an operator must know of what came otherwise than planned."""

    @property
    def size(self) -> int:
        """Bytes of the wheels that will be brought under the host's root."""

    def plan(self) -> tuple[str, ...]:
        """Say what will be brought, and which way."""

    def tools(self) -> Tools:
        """Bring interpreter and uv; before anything else is moved."""

    def wheels(self) -> Mapping[str, str]:
        """Bring the missing wheels; return where each lies on the host, by sha256."""

    def local_wheel(self, entry: LockEntry) -> pathlib.Path:
        """Return a wheel's path on this machine: a series is computed on the controller."""


def supply_for(session: Session, host: OpenHost, lock: Lock, *, tools: bool = True) -> Supply:
    """Return how a host is supplied. ``tools``: for a build, not only to fill the wheelhouse.

    The host is asked what it holds; an index may be asked where the rest lies.
    """
    made = LocalSupply if host.spec.is_local else RemoteSupply
    return made(session, host, lock, tools=tools)


def way_by(session: Session, host: OpenHost, via: str) -> Way:
    """Return the way by a relay to a host's root."""
    return Way(
        root=host.state.root,
        spec=host.spec,
        specs=tuple(session.fleet.specs.values()),
        via=via,
        depot=session.depot,
        who=who(session.request.session),
    )


class _OneHost:
    """Tells a session's listener of one host."""

    def __init__(self, listener: Listener, name: str) -> None:
        self._listener = listener
        self._name = name

    def phase(self, name: str, total: int | None = None) -> None:
        """Tell what begins."""
        self._listener.phase(self._name, name, total)

    def advance(self, done: int) -> None:
        """Tell the bytes of it that are complete."""
        self._listener.advance(self._name, done)


class _Common:
    """What both kinds know: what is held, and which interpreter the build gets."""

    def __init__(self, session: Session, host: OpenHost, lock: Lock, *, tools: bool) -> None:
        self.notes: list[str] = []
        self._host = host
        self._root = host.state.root
        self._lock = lock
        self._depot = session.depot
        self._who = who(session.request.session)
        self._taken = False
        self._remember = not session.request.dry_run
        self._progress = _OneHost(session.listener, host.spec.name)
        self._python = choose(host.spec, host.agent, self._root, lock.platform.python) if tools else None

    def _survey(self, *, remember: bool) -> Held:
        given = self._host.spec.supply.wheelhouse
        return survey(self._host.agent, self._root, self._lock, given=given, remember=remember)

    def _python_plan(self) -> tuple[str, ...]:
        return self._python.plan() if isinstance(self._python, BringPython) else ()

    def _take(self) -> None:
        """Hold the host's lock from the first write to the end of the session there."""
        if not self._taken:
            patience = _LOCAL_PATIENCE if self._host.spec.is_local else _PATIENCE
            self._host.agent.call("writer.take", root=self._root, who=dict(self._who), patience=patience)
            self._taken = True

    @property
    def _sender(self) -> Sender:
        """What takes files from here to the host."""
        return self._host.reach

    def _bring_python(self) -> HostPython:
        if isinstance(self._python, BringPython):
            self._take()
            self._progress.phase("python")
            self._python = self._python.apply(
                self._sender, self._depot, self._who, on_progress=lambda _: None
            )
        if self._python is None:
            raise TypeError("tools were asked of a supply that was made without")
        return self._python


class LocalSupply(_Common):
    """This machine: wheels are fetched straight into its root, uv is that of hostenv's environment."""

    def __init__(self, session: Session, host: OpenHost, lock: Lock, *, tools: bool) -> None:
        super().__init__(session, host, lock, tools=tools)
        self._wheelhouse = pathlib.Path(self._root, "wheelhouse")
        self._given: Mapping[str, str] = {}
        self._plan = self._look(remember=False)

    def _look(self, *, remember: bool) -> fetch.FetchPlan:
        """See what is there; what had to be hashed for it is noted, with the host's lock only."""
        if self._host.spec.supply.wheelhouse:
            self._given = self._survey(remember=remember).paths
        wanted = tuple(entry for entry in self._lock.entries if entry.sha256 not in self._given)
        return fetch.plan(replace(self._lock, entries=wanted), self._wheelhouse, remember=remember)

    @property
    def size(self) -> int:
        """Bytes to be fetched."""
        return self._plan.size

    def plan(self) -> tuple[str, ...]:
        """Say what will be brought."""
        return (*self._python_plan(), *self._plan.lines())

    def tools(self) -> Tools:
        """Unpack the interpreter where the spec brings one."""
        self._take()
        return Tools(uv=str(uv.binary()), python=self._bring_python())

    def wheels(self) -> Mapping[str, str]:
        """Fetch what is missing, as seen again under the host's lock: another session may have brought it."""
        self._take()
        self._plan = self._look(remember=True)
        if self._plan.missing:
            self._progress.phase("fetch", self._plan.size)
            fetch.apply(
                self._plan,
                on_progress=lambda progress: self._progress.advance(progress.bytes_done),
                stop=self._depot.stopped,
            )
        return {entry.sha256: str(self.local_wheel(entry)) for entry in self._lock.entries}

    def local_wheel(self, entry: LockEntry) -> pathlib.Path:
        """Return where it lies: this machine is the host."""
        if entry.sha256 in self._given:
            return pathlib.Path(self._given[entry.sha256])
        (path,) = fetch.paths(replace(self._lock, entries=(entry,)), self._wheelhouse)
        return path


class RemoteSupply(_Common):
    """A host behind SSH."""

    def __init__(self, session: Session, host: OpenHost, lock: Lock, *, tools: bool) -> None:
        super().__init__(session, host, lock, tools=tools)
        self._tools = tools
        self._session = session
        self._held = self._survey(remember=self._remember)
        self._way = self._choose_way() if self._held.missing else None

    @property
    def size(self) -> int:
        """Bytes to be brought there."""
        return self._held.size

    def plan(self) -> tuple[str, ...]:
        """Say what will be brought, and which way."""
        return (
            *self._python_plan(),
            *(self._uv_plan() if self._tools else ()),
            *(self._way.plan() if self._way else ()),
        )

    def tools(self) -> Tools:
        """Bring the interpreter, then uv, each by hash and only where the host has none."""
        self._take()
        python = self._bring_python()
        self._progress.phase("uv")
        binary = supply_uv.binary_for(self._host.state.arch, self._depot)
        path = supply_uv.bring(self._sender, self._root, binary, on_progress=self._progress.advance)
        return Tools(uv=path, python=python)

    def wheels(self) -> Mapping[str, str]:
        """Bring the missing wheels the planned way; from the controller where the host fails by itself."""
        if isinstance(self._way, HostFetch):
            self._take()
            self._fetch_there(self._way)
        elif isinstance(self._way, RelaySend):
            self._take()
            why = self._way.apply(self._host.reach, self._progress)
            if why:
                via = self._way.way.via
                self.notes.append(f"the relay {via} could not fetch ({why}): the wheels went there from here")
        elif self._way:
            self._take()
            self._way.apply(self._host.reach, self._progress)
        self._way = None
        placed = {
            entry.sha256: f"{self._root}/wheelhouse/{entry.sha256}/{entry.filename}"
            for entry in self._held.missing
        }
        return {**self._held.paths, **placed}

    def local_wheel(self, entry: LockEntry) -> pathlib.Path:
        """Return a wheel's path here; received from the host where it fetched by itself."""
        path = self._held.paths.get(entry.sha256, f"{self._root}/wheelhouse/{entry.sha256}/{entry.filename}")
        return wheel_here(self._host.reach, self._depot, entry, path)

    def _choose_way(self) -> HostFetch | ControllerSend | RelaySend:
        supply = self._host.spec.supply
        if supply.via:
            return RelaySend(
                way=way_by(self._session, self._host, supply.via), lock=self._lock, held=self._held
            )
        if supply.offline or supply.fetch is Fetching.CONTROLLER:
            return self._by_controller(None)
        try:
            sources, logins = supply_host.located(self._lock, self._held)
        except SupplyError:
            if supply.fetch is Fetching.HOST:
                raise
            return self._by_controller(None)  # it may have them all; else it says what is wrong
        python = self._python_for_fetch()
        why = supply_host.hindrance(self._host.agent, sources) if python else "it has no Python 3.11"
        if why and supply.fetch is Fetching.HOST:
            raise SupplyError(
                f'{self._host.spec.name}: supply.fetch is "host", but {why}',
                hint='set it to "controller" or "auto", or offline = true',
            )
        if why or not python:
            return self._by_controller(f"the host cannot ({why})")
        return HostFetch(root=self._root, python=python, held=self._held, sources=sources, logins=logins)

    def _by_controller(self, why: str | None) -> ControllerSend:
        return ControllerSend(root=self._root, lock=self._lock, held=self._held, depot=self._depot, why=why)

    @property
    def _sender(self) -> Sender:
        via = self._host.spec.supply.via
        if via is None:
            return self._host.reach
        return ByRelay(way=way_by(self._session, self._host, via), agent=self._host.agent, notes=self.notes)

    def _python_for_fetch(self) -> HostPython | None:
        if isinstance(self._python, HostPython) and supply_host.is_new_enough(self._python):
            return self._python
        found = pythons_of(self._host.agent, root=self._root)
        return next((each for each in found if supply_host.is_new_enough(each)), None)

    def _fetch_there(self, way: HostFetch) -> None:
        self._progress.phase("fetch on the host", way.size)
        try:
            way.apply(self._host.agent, self._who, on_progress=self._progress.advance)
        except HostError as error:
            if self._host.spec.supply.fetch is Fetching.HOST:
                raise
            self.notes.append(f"the host could not fetch by itself ({error.message}): the controller did")
            before = self._held
            self._held = self._survey(remember=self._remember)
            self._by_controller(None).apply(self._host.reach, self._progress)
            self._held = replace(self._held, paths={**before.paths, **self._held.paths})

    def _uv_plan(self) -> tuple[str, ...]:
        arch = self._host.state.arch
        version = supply_uv.own_version()
        by = f", by {self._host.spec.supply.via}" if self._host.spec.supply.via else ""
        if not supply_uv.is_own_arch(arch):
            return (f"uv       {version} for {arch}, out of its wheel, to {self._root}/tools{by}",)
        binary = supply_uv.own_binary()
        if supply_uv.is_there(self._host.agent, self._root, binary):
            return ()
        return (f"uv       {version}, {megabytes(binary.size)}, to {binary.place(self._root)}{by}",)
