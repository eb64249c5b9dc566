"""Having the contents of overlays in a host's store: only what the host has nowhere is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted, megabytes
from hostenv.agent.store import relative
from hostenv.machine.bulk import File
from hostenv.machine.forward import Forwarding
from hostenv.steps.supply_stream import Sender, Total

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.machine.agent import Agent
    from hostenv.machine.reach import Reach
    from hostenv.spec.overlay import Overlay
    from hostenv.steps.payload import Payload, Source
    from hostenv.steps.supply_relay import Way


@dataclass(frozen=True, kw_only=True, slots=True)
class BringOverlays:
    """Bring what a host lacks.

    ``missing`` must come from the controller, ``elsewhere`` lies in builds or wheels there; both are sha256
    → size in bytes. ``unknown`` is what could not be told of whether they will work there. With a ``way``
    they go by a relay, which keeps them: to it once, and from there to every host behind it.
    """

    root: str
    overlays: tuple[Overlay, ...]
    missing: Mapping[str, int]
    elsewhere: Mapping[str, int]
    payload: Payload
    source: Source | None
    unknown: tuple[str, ...] = ()
    way: Way | None = None

    def plan(self) -> tuple[str, ...]:
        """Say what will be sent and what is there."""
        lines = []
        absent = self.payload.missing(self.missing)
        if absent:
            lines.append(f"receive  {_count(absent)} of overlays, into {self.payload.folder}")
        if self.missing:
            by = f", by the relay {self.way.via}" if self.way else ""
            lines.append(f"send     {_count(self.missing)} of overlays, to {self.root}/store{by}")
        if self.elsewhere:
            lines.append(f"reuse    {_count(self.elsewhere)} of overlays, from builds and wheels there")
        return (*lines, *(f"unknown  {line}" for line in self.unknown))

    def apply(
        self,
        reach: Reach,
        who: Mapping[str, str],
        *,
        on_start: Callable[[int], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Bring it: gather there, send what is here and sound, and what is not while it is received.

        Every file by its hash, and what arrived stays.

        The host's lock is taken. Raises :class:`~hostenv.errors.SupplyError` for what nobody has.
        """
        if not (self.missing or self.elsewhere):
            return
        agent = reach.agent
        agent.call("writer.take", root=self.root, who=dict(who))
        absent: dict[str, int] = agent.call(
            "store.gather", root=self.root, who=dict(who), contents={**self.missing, **self.elsewhere}
        )
        if not absent:
            return
        if self.way:
            self._apply_by(self.way, absent, on_start, on_progress)
            return
        total = Total(on_progress)
        lacking = self.payload.lacking(absent)
        on_start(sum(lacking.values()) + sum(absent.values()))
        store = f"{self.root}/store"
        self._send(reach, store, _without(absent, lacking), total.add)
        if lacking:
            size = sum(lacking.values())
            with Forwarding(reach.streams(size), store, size=size, on_progress=total.add) as way:
                forwarded = self.payload.bring(
                    self.source, self.overlays, lacking, on_progress=total.add, onward=_Onward(way)
                )
                whole = way.settle()
            left = _without(lacking, forwarded)  # brought for another host
            if not whole:
                left = agent.call("store.gather", root=self.root, who=dict(who), contents=dict(lacking))
            self._send(reach, store, left, total.add)

    def _apply_by(
        self,
        way: Way,
        absent: Mapping[str, int],
        on_start: Callable[[int], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Have the relay hold what the host lacks, then let it send."""
        total = Total(on_progress)
        with way.filling() as relay:
            there: dict[str, int] = relay.agent.call(
                "store.gather", root=relay.root, who=dict(way.who), contents=dict(absent)
            )
            lacking = self.payload.lacking(there)
            on_start(sum(lacking.values()) + sum(there.values()) + sum(absent.values()))
            if there:
                self.payload.bring(self.source, self.overlays, lacking, on_progress=total.add)
                self._send(relay, f"{relay.root}/store", there, total.add)
        before = total.done
        way.forward("store", _files(absent), lambda done: on_progress(before + done))

    def _send(
        self, to: Sender, store: str, contents: Mapping[str, int], on_progress: Callable[[int], None]
    ) -> None:
        """Send what is here."""
        if contents:
            to.send_files(self.payload.folder, store, _files(contents), on_progress=on_progress)


@dataclass(frozen=True, slots=True)
class _Onward:
    """The way to the host's store, for what its contents are received from."""

    way: Forwarding

    def forward(
        self,
        source: Reach,
        folder: str,
        keep: pathlib.Path,
        files: Sequence[File],
        *,
        hurried: Callable[[], bool],
    ) -> None:
        """Send on what is received: :meth:`hostenv.machine.forward.Forwarding.receive`."""
        self.way.receive(
            files,
            sources=source.streams(sum(file.size for file in files)),
            source=folder,
            keep=keep,
            names={file.path: relative(file.sha256 or "") for file in files},
            hurried=hurried,
        )


def _files(contents: Mapping[str, int]) -> list[File]:
    """Return contents as files of a store, the smallest first."""
    return [
        File(path=relative(sha256), size=size, sha256=sha256)
        for sha256, size in sorted(contents.items(), key=lambda each: each[1])
    ]


def _without(contents: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {sha256: size for sha256, size in contents.items() if sha256 not in others}


def bring_overlays(
    agent: Agent, root: str, overlays: Sequence[Overlay], payload: Payload, source: Source | None
) -> BringOverlays:
    """Ask a host which contents of overlays it lacks. Nothing is written."""
    contents = {sha256: size for overlay in overlays for sha256, size in overlay.contents.items()}
    found = agent.call("store.find", root=root, contents=contents)
    return BringOverlays(
        root=root,
        overlays=tuple(overlays),
        missing=found["missing"],
        elsewhere=found["elsewhere"],
        payload=payload,
        source=source,
    )


def _count(contents: Mapping[str, int]) -> str:
    return f"{counted(len(contents), 'file')}, {megabytes(sum(contents.values()))}"
