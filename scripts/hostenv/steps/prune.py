"""Removing from a host the builds that nothing uses, and what killed sessions left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.agent.amounts import counted, megabytes
from hostenv.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.facts.builds import BuildFacts, RootBuilds
    from hostenv.machine.agent import Agent

_DAY = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel in the wheelhouse that no build and no lock names. ``size`` in bytes."""

    sha256: str
    name: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Contents of overlays in the store that no build names: how many ``files``, ``size`` in bytes."""

    files: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """What was removed (paths), what stayed after all (build → why), and the bytes that were freed."""

    removed: tuple[str, ...]
    kept: Mapping[str, str]
    freed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prune:
    """Remove ``builds`` and ``wheels``, everything unfinished, and what of the store no build names then."""

    builds: tuple[BuildFacts, ...]
    wheels: tuple[Wheel, ...] = ()
    contents: Contents | None = None

    def plan(self, found: RootBuilds, *, despite_unknown: bool = False) -> tuple[str, ...]:
        """Say what will be removed.

        Raises :class:`RefusedError` where there are processes that may use a build and cannot be seen.
        """
        if self.builds and found.unknown and not despite_unknown:
            raise RefusedError(
                f"it is not known what uses the builds under {found.root}: {'; '.join(found.unknown)}",
                hint='as root (host.become = "sudo") all can be seen; or pass --despite-unknown',
            )
        lines = [
            f"remove   build {each.build}: {megabytes(each.freed)}, {_age(each)}{_unsound(each)}"
            for each in self.builds
        ]
        lines += [f"remove   {each.path}: {megabytes(each.size)}, unfinished" for each in found.unfinished]
        lines += [
            f"remove   {each.path}: {megabytes(each.size)}, its build is gone" for each in found.orphans
        ]
        lines += [
            f"remove   {each.name}: {megabytes(each.size)}, no build's and no lock's" for each in self.wheels
        ]
        if self.contents and self.contents.files:
            count, size = self.contents.files, megabytes(self.contents.size)
            what = f"{counted(count, 'content')} of overlays"
            lines.append(f"remove   {what}: {size}, no build's, in {found.root}/store")
        return tuple(lines)

    def apply(
        self,
        agent: Agent,
        root: str,
        who: Mapping[str, str],
        *,
        despite_unknown: bool = False,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Pruned:
        """Remove; every build is looked at once more under the host's lock, and stays if it is used."""
        answer = agent.call(
            "builds.prune",
            root=root,
            who=dict(who),
            builds=[each.build for each in self.builds],
            wheels=[each.sha256 for each in self.wheels],
            despite_unknown=despite_unknown,
            on_event=on_event,
        )
        return Pruned(
            removed=tuple(answer["removed"]),
            kept={each["build"]: each["why"] for each in answer["kept"]},
            freed=answer["freed"],
        )


def removable(builds: Sequence[BuildFacts], keep: int) -> tuple[BuildFacts, ...]:
    """Return the builds that may go, oldest first: ``keep`` stay, and all that are used.

    Used builds count among those that stay; a build whose interpreter is gone does not.
    """
    newest_first = sorted(builds, key=lambda each: -each.last)
    left = keep - sum(each.is_used for each in builds)
    going = []
    for each in newest_first:
        if each.is_used:
            continue
        if each.sound and left > 0:
            left -= 1
        else:
            going.append(each)
    return tuple(reversed(going))


def _age(build: BuildFacts) -> str:
    days = (time.time() - build.last) / _DAY
    what = "last current" if build.activated else "made"
    return f"{what} {days:.0f} days ago" if days >= 1 else f"{what} today"


def _unsound(build: BuildFacts) -> str:
    return "" if build.sound else "; its interpreter is gone"
