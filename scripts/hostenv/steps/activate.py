"""Making a finished build current, or staging it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.facts.root import RootState
    from hostenv.machine.agent import Agent


@dataclass(frozen=True, kw_only=True, slots=True)
class Activated:
    """What a switch did.

    ``running`` are processes that ran through the link; ``adopted`` where the directory went that stood at
    the link.
    """

    generation: int
    previous: int | None
    running: tuple[Mapping[str, Any], ...]
    adopted: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Activate:
    """Point ``current`` at a new generation of ``build``. ``hold`` is the hold that the host has after it."""

    build: str
    receipt: Mapping[str, object]
    hold: Mapping[str, str] | None = None
    adopt_link: bool = False
    despite_running: bool = False

    def plan(self, state: RootState) -> tuple[str, ...]:
        """Say what will change; nothing where the build is current, not held, and the link in place.

        Raises :class:`RefusedError` where something else stands at the link.
        """
        lines = []
        if state.link_state == "other" and not self.adopt_link:
            raise RefusedError(
                f"{state.link} exists and is not hostenv's link",
                hint="--adopt-link moves it aside, to a name beside it, and puts the link in its place",
            )
        if state.current_build != self.build:
            now = f"from build {state.current_build}" if state.current_build else "for the first time"
            now = f"anew: {state.astray}" if state.astray else now
            lines.append(f"switch   current → build {self.build}, {now}")
        if state.hold and self.hold:
            lines.insert(0, f"held     by {state.hold.by}: {state.hold.why}")
        if state.hold and not self.hold:
            lines.append(f"hold     lifted (set by {state.hold.by}: {state.hold.why})")
        if self.hold:
            lines.append(f"hold     set: {self.hold['why']}")
        if state.link_state in {"absent", "other"}:
            aside = ", what stands there is moved aside" if state.link_state == "other" else ""
            lines.append(f"link     {state.link} → {state.root}/current/env{aside}")
        return tuple(lines)

    def rehearse(self, agent: Agent, state: RootState) -> None:
        """Raise :class:`RefusedError` where processes that run now would keep the pointer where it is."""
        if state.current_build not in {None, self.build} and not self.despite_running:
            agent.call("generation.require_idle", root=state.root, link=state.link)

    def apply(self, agent: Agent, state: RootState, who: Mapping[str, str]) -> Activated:
        """Move the pointer. Raises :class:`RefusedError` for running processes, another writer, a link."""
        answer = agent.call(
            "generation.activate",
            root=state.root,
            build=self.build,
            receipt=dict(self.receipt),
            who=dict(who),
            link=state.link,
            adopt_link=self.adopt_link,
            despite_running=self.despite_running,
            hold=dict(self.hold) if self.hold else None,
            seen={"generation": state.generation, "hold": state.hold.since if state.hold else None},
        )
        return Activated(
            generation=answer["generation"],
            previous=answer["previous"],
            running=tuple(answer["running"]),
            adopted=answer["adopted"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Leave ``build`` for the next ``switch``, with the receipt that its generation will hold."""

    build: str
    receipt: Mapping[str, object]

    def plan(self, state: RootState) -> tuple[str, ...]:
        """Say what will change."""
        staged = state.staged is not None and state.staged.build == self.build
        return () if staged else (f"stage    build {self.build}; `switch` activates it",)

    def apply(self, agent: Agent, state: RootState, who: Mapping[str, str]) -> None:
        """Write the mark."""
        agent.call(
            "generation.stage", root=state.root, build=self.build, receipt=dict(self.receipt), who=dict(who)
        )
