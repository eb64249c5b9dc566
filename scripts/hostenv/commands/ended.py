"""How a session ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostenv.errors import HostenvError


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What is left to say once the results of all hosts are shown.

    ``failure`` is the line to fail with, ``None`` where every host got there; ``errors`` are those of hosts.
    """

    failure: str | None
    errors: tuple[HostenvError, ...] = ()


def ended(failure: str | None, errors: Iterable[HostenvError | None]) -> Ended:
    """Return how a session ended whose hosts have these errors, or none."""
    return Ended(failure=failure, errors=tuple(error for error in errors if error))
