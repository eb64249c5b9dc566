"""Whether a host's root can take what is to be written: seen before anything is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent.amounts import megabytes
from hostenv.errors import RefusedError

if TYPE_CHECKING:
    from hostenv.facts.root import RootState


def require_writable(state: RootState) -> None:
    """Refuse a root that this user cannot write, or that lies on a read-only disk."""
    if state.unwritable:
        raise RefusedError(
            f"{state.root} cannot be written: {state.unwritable}",
            hint="host.root must be on a writable disk, in a folder of the login's user",
        )


def require_executable(state: RootState) -> None:
    """Refuse a root from which no interpreter would start."""
    if state.noexec:
        raise RefusedError(
            f"{state.root} lies on a filesystem that is mounted noexec: no interpreter would start there",
            hint="choose another host.root, or remount it with exec",
        )


def require_room(state: RootState, needed: int, what: str) -> None:
    """Refuse a root whose disk has less than ``needed`` bytes free; ``what`` says what they are for."""
    if state.free < needed:
        raise RefusedError(
            f"{state.root}: {megabytes(needed)} needed ({what}), {megabytes(state.free)} free",
            hint="free some space (nox -s prune), or lower build.min-free in the spec",
        )
