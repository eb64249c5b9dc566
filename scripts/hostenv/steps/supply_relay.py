"""What a build needs, by way of a relay (``supply.via``): from an index to it, from there to the host."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.agent.wheelhouse import Wheel
from hostenv.errors import HostError, SupplyError, UnreachableError
from hostenv.machine.bulk import File
from hostenv.machine.relay import onward, relay_at
from hostenv.steps import supply_host
from hostenv.steps.fetch import wheel_of
from hostenv.steps.make import pythons_of
from hostenv.steps.supply_controller import ControllerSend
from hostenv.steps.supply_host import HostFetch
from hostenv.steps.supply_survey import Held, amount, find, survey

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostenv.index.source import Login, Source
    from hostenv.machine.agent import Agent
    from hostenv.machine.relay import Relay
    from hostenv.spec.environment import PythonArchive
    from hostenv.spec.lock import Lock
    from hostenv.spec.spec import Spec
    from hostenv.steps.depot import Depot
    from hostenv.steps.supply_controller import Progress
    from hostenv.steps.supply_stream import Sender

_NOTHING = Held(paths={}, missing=(), wrong=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The way to a host's ``root`` by the relay ``via``; ``specs`` are all, since one may be the relay's."""

    root: str
    spec: Spec
    specs: tuple[Spec, ...]
    via: str
    depot: Depot
    who: Mapping[str, str]

    @contextlib.contextmanager
    def filling(self) -> Iterator[Relay]:
        """Reach the relay to bring something there: alone, once for all hosts behind it."""
        with self.depot.turn(f"relay {self.via}"), self.reached() as relay:
            relay.agent.call("writer.take", root=relay.root, who=dict(self.who), patience=600.0)
            yield relay

    @contextlib.contextmanager
    def reached(self) -> Iterator[Relay]:
        """Reach the relay; what keeps us from it is told with what may be done."""
        with contextlib.ExitStack() as stack:
            try:
                relay = stack.enter_context(relay_at(self.via, self.specs))
            except UnreachableError as error:
                hint = f'mend the way to {self.via}, or take supply.via = "{self.via}" out of the spec'
                raise UnreachableError(error.message, hint=error.hint or hint) from error
            yield relay

    def forward(self, folder: str, files: Sequence[File], on_progress: Callable[[int], None]) -> None:
        """Let the relay put files of a folder of its root into the same folder of the host's.

        Raises :class:`~hostenv.errors.HostError` with the words of the relay's ssh where it cannot.
        """
        identity = self.spec.identity

        def on_event(event: Mapping[str, Any]) -> None:
            on_progress(int(event["bytes"]))

        with self.reached() as relay:
            relay.agent.call(
                "relay.forward",
                root=relay.root,
                argv=onward(self.spec),
                target=self.root,
                machine_id=identity.machine_id if identity else "",
                folder=folder,
                files=[(file.path, file.sha256, file.size) for file in files],
                on_event=on_event,
            )

    def fetch(
        self,
        relay: Relay,
        located: Callable[[], tuple[tuple[Source, ...], Mapping[str, Login]]],
        held: Held,
        on_progress: Callable[[int], None],
    ) -> str | None:
        """Fetch on the relay what ``located`` tells; return why it cannot, ``None`` where it is there."""
        found = pythons_of(relay.agent, root=relay.root)
        python = next((each for each in found if supply_host.is_new_enough(each)), None)
        if python is None:
            return "it has no Python 3.11"
        try:
            sources, logins = located()
            why = supply_host.hindrance(relay.agent, sources)
            if why is None:
                step = HostFetch(root=relay.root, python=python, held=held, sources=sources, logins=logins)
                step.apply(relay.agent, self.who, on_progress=on_progress)
        except (HostError, SupplyError) as error:
            return error.message
        return why


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySend:
    """Send the wheels that a host lacks from a relay's wheelhouse."""

    way: Way
    lock: Lock
    held: Held

    def plan(self) -> tuple[str, ...]:
        """Say what will pass through the relay; it is not asked before."""
        via = self.way.via
        return (f"send     {amount(self.held.missing)}, from the relay {via}, which fetches what it lacks",)

    def apply(self, reach: Sender, progress: Progress) -> str | None:
        """Fill the relay's wheelhouse, once for all hosts behind it; then let it send. The lock is held.

        Returns why the relay could not fetch, so that the wheels went there from here, which may be far.
        """
        way, root = self.way, self.way.root
        with way.filling() as relay:
            why = self._fill(relay, progress)
        progress.phase(f"send from {way.via}", self.held.size)
        wheels = [wheel_of(entry) for entry in self.held.missing]
        way.forward("wheelhouse", [_file(wheel) for wheel in wheels], progress.advance)
        reach.agent.call("wheelhouse.adopt", root=root, wheels=[tuple(wheel) for wheel in wheels])
        return why

    def _fill(self, relay: Relay, progress: Progress) -> str | None:
        wanted = replace(self.lock, entries=self.held.missing)
        there = survey(relay.agent, relay.root, wanted)
        if not there.missing:
            return None
        progress.phase(f"fetch on {self.way.via}", there.size)
        why = self.way.fetch(
            relay, lambda: supply_host.located(wanted, there), there, on_progress=progress.advance
        )
        if why:
            there = survey(relay.agent, relay.root, wanted)
            step = ControllerSend(root=relay.root, lock=wanted, held=there, depot=self.way.depot, why=why)
            step.apply(relay, progress)
        return why


@dataclass(frozen=True, kw_only=True, slots=True)
class ByRelay:
    """A :class:`~hostenv.steps.supply_stream.Sender` that takes the way by a relay: uv, and an interpreter.

    What comes from the controller goes to the relay once, stays there by its hash, and from there to every
    host that lacks it. ``notes`` gets what an operator must know of that.
    """

    way: Way
    agent: Agent
    notes: list[str]

    def send_files(
        self,
        source: pathlib.Path,
        destination: str,
        files: Sequence[File],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, str]:
        """Put files there: those that the relay lacks are sent to it first."""
        folder = destination.removeprefix(f"{self.way.root}/")
        with self.way.filling() as relay:
            place = f"{relay.root}/{folder}"
            lacking = [file for file in files if _digest(relay, f"{place}/{file.path}") != file.sha256]
            if lacking:
                relay.send_files(source, place, lacking, on_progress=on_progress)
        self.way.forward(folder, files, lambda _: None)
        return {file.path: file.sha256 or "" for file in files}

    def fetched(self, archive: PythonArchive) -> Wheel | None:
        """Have an interpreter's archive on the relay, by its own download; ``None`` where it cannot."""
        with self.way.filling() as relay:
            (found,) = find(relay.agent, relay.root, [(archive.sha256, archive.file, 0)])
            if found.path:
                return Wheel(archive.sha256, archive.file, 0)
            if archive.url is None:
                return None
            why, wheel = self._fetch(relay, archive, archive.url)
        if why:
            self.notes.append(f"{self.way.via} could not fetch {archive.file} ({why}): it came from here")
        return wheel

    def _fetch(self, relay: Relay, archive: PythonArchive, url: str) -> tuple[str | None, Wheel | None]:
        try:
            source = _source(archive, url)
        except SupplyError as error:
            return error.message, None
        why = self.way.fetch(relay, lambda: ((source,), {}), _NOTHING, lambda _: None)
        return why, None if why else source.wheel


def _source(archive: PythonArchive, url: str) -> Source:
    from hostenv.index.fetch import size_of  # noqa: PLC0415  requests takes 0.1 s to import
    from hostenv.index.source import Source  # noqa: PLC0415

    return Source(sha256=archive.sha256, filename=archive.file, size=size_of(url, {}), url=url)


def _file(wheel: Wheel) -> File:
    return File(path=f"{wheel.sha256}/{wheel.filename}", size=wheel.size, sha256=wheel.sha256)


def _digest(relay: Relay, path: str) -> str | None:
    digest: str | None = relay.agent.call("file.digest", path=path)
    return digest
