"""Wheels by way of the controller: fetched here once for all hosts, sent to each that lacks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hostenv.machine.bulk import File
from hostenv.steps.fetch import wheel_of
from hostenv.steps.supply_stream import Total, send
from hostenv.steps.supply_survey import amount

if TYPE_CHECKING:
    import pathlib

    from hostenv.machine.reach import Reach
    from hostenv.spec.lock import Lock, LockEntry
    from hostenv.steps.depot import Depot
    from hostenv.steps.supply_stream import Sender
    from hostenv.steps.supply_survey import Held


class Progress(Protocol):
    """Hears of what is going on, for one host."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Something of ``total`` bytes, or of unknown length, begins."""

    def advance(self, done: int) -> None:
        """So many bytes of it are complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSend:
    """Send what a host lacks from the controller's wheelhouse; ``why``, if not by the spec."""

    root: str
    lock: Lock
    held: Held
    depot: Depot
    why: str | None = None

    def plan(self) -> tuple[str, ...]:
        """Say what will be fetched here, and what will be sent."""
        here = self.depot.plan(self.lock, self.held.missing)
        lines = []
        if here.missing:
            lines.append(f"fetch    {amount(here.missing)}, into {self.depot.folder}{_because(self.why)}")
        lines.append(f"send     {amount(self.held.missing)}, by SSH, to {self.root}/wheelhouse")
        lines += [
            f"replace  {entry.filename}: not the bytes that the lock names" for entry in self.held.wrong
        ]
        return tuple(lines)

    def apply(self, reach: Sender, progress: Progress) -> None:
        """Fetch, then send. The host's lock is held; what has landed stays, whatever comes after."""
        missing = self.held.missing
        progress.phase("fetch here")
        self.depot.fill(
            self.lock,
            missing,
            on_start=lambda size: progress.phase("fetch here", size),
            on_progress=progress.advance,
        )
        progress.phase("send", self.held.size)
        files = [wheel_of(entry) for entry in missing]
        send(reach, self.root, self.depot.folder, files, on_progress=progress.advance)


def wheel_here(reach: Reach, depot: Depot, entry: LockEntry, path: str) -> pathlib.Path:
    """Return a wheel's path on the controller; it is received from the host's ``path`` where it is not here.

    Series are computed on the controller. One host brings it for all, and no index is needed for it.
    """
    file = wheel_of(entry)
    with depot.turn(entry.sha256):
        if not depot.holds(file):
            _receive(reach, depot, entry, path)
    return depot.path(file)


def _receive(reach: Reach, depot: Depot, entry: LockEntry, path: str) -> None:
    from hostenv.steps.landing import landing_in  # noqa: PLC0415  only where a host fetched by itself

    depot.house.prepare()
    place = depot.path(wheel_of(entry))
    folder, _, name = path.rpartition("/")
    with landing_in(depot.folder) as landing:
        wanted = File(path=name, size=entry.size, sha256=entry.sha256)
        reach.receive_files(folder, landing, [wanted], on_progress=Total(lambda _: None).add)
        place.parent.mkdir(exist_ok=True)
        (landing / name).replace(place)


def _because(why: str | None) -> str:
    return f": {why}" if why else ""
