"""Wheels by way of a relay (``supply.via``): from an index to the relay, from there to the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.errors import HostError, SupplyError
from hostenv.machine.relay import onward, relay_at
from hostenv.steps import supply_host
from hostenv.steps.fetch import wheel_of
from hostenv.steps.make import pythons_of
from hostenv.steps.supply_controller import ControllerSend
from hostenv.steps.supply_host import HostFetch
from hostenv.steps.supply_survey import amount, survey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.machine.reach import Reach
    from hostenv.machine.relay import Relay
    from hostenv.spec.lock import Lock
    from hostenv.spec.spec import Spec
    from hostenv.steps.depot import Depot
    from hostenv.steps.supply_controller import Progress
    from hostenv.steps.supply_survey import Held


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySend:
    """Send what a host lacks from a relay's wheelhouse; ``specs`` are all, since one may be the relay's."""

    root: str
    spec: Spec
    specs: tuple[Spec, ...]
    via: str
    lock: Lock
    held: Held
    depot: Depot
    who: Mapping[str, str]

    def plan(self) -> tuple[str, ...]:
        """Say what will pass through the relay; it is not asked before."""
        return (
            f"send     {amount(self.held.missing)}, from the relay {self.via}, which fetches what it lacks",
        )

    def apply(self, reach: Reach, progress: Progress) -> None:
        """Fill the relay's wheelhouse, once for all hosts behind it; then let it send. The lock is held.

        Raises :class:`~hostenv.errors.HostError` with the words of the relay's ssh where it cannot.
        """
        with self.depot.turn(f"relay {self.via}"), relay_at(self.via, self.specs) as relay:
            relay.agent.call("writer.take", root=relay.root, who=dict(self.who), patience=600.0)
            self._fill(relay, progress)
        progress.phase(f"send from {self.via}", self.held.size)
        with relay_at(self.via, self.specs) as relay:
            self._forward(relay, progress)
        wheels = [tuple(wheel_of(entry)) for entry in self.held.missing]
        reach.agent.call("wheelhouse.adopt", root=self.root, wheels=wheels)

    def _fill(self, relay: Relay, progress: Progress) -> None:
        """Fetch on the relay; where it cannot, send it from here, which then does cross the controller."""
        wanted = replace(self.lock, entries=self.held.missing)
        there = survey(relay.agent, relay.root, wanted)
        if not there.missing:
            return
        progress.phase(f"fetch on {self.via}", there.size)
        why = self._fetch(relay, wanted, there, progress)
        if why:
            there = survey(relay.agent, relay.root, wanted)
            ControllerSend(root=relay.root, lock=wanted, held=there, depot=self.depot, why=why).apply(
                relay, progress
            )

    def _fetch(self, relay: Relay, wanted: Lock, there: Held, progress: Progress) -> str | None:
        found = pythons_of(relay.agent, root=relay.root)
        python = next((each for each in found if supply_host.is_new_enough(each)), None)
        if python is None:
            return "it has no Python 3.11"
        try:
            sources, logins = supply_host.located(wanted, there)
            why = supply_host.hindrance(relay.agent, sources)
            if why is None:
                step = HostFetch(root=relay.root, python=python, held=there, sources=sources, logins=logins)
                step.apply(relay.agent, self.who, on_progress=progress.advance)
        except (HostError, SupplyError) as error:
            return error.message
        return why

    def _forward(self, relay: Relay, progress: Progress) -> None:
        identity = self.spec.identity

        def on_event(event: Mapping[str, Any]) -> None:
            progress.advance(int(event["bytes"]))

        relay.agent.call(
            "relay.forward",
            root=relay.root,
            argv=onward(self.spec),
            target=self.root,
            machine_id=identity.machine_id if identity else "",
            wheels=[tuple(wheel_of(entry)) for entry in self.held.missing],
            on_event=on_event,
        )
