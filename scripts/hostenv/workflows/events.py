"""What a workflow tells while it works, and what it says of a host at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostenv.checks.judge import Verdict
    from hostenv.errors import HostenvError


class Listener(Protocol):
    """Hears of progress; implementations must take calls from several threads."""

    def plan(self, host: str, lines: Sequence[str]) -> None:
        """Say what is about to change on ``host``; called once, before the first change."""

    def phase(self, host: str, name: str, total: int | None = None) -> None:
        """Say that ``host`` began a phase of ``total`` bytes, or of unknown length."""

    def advance(self, host: str, done: int) -> None:
        """Say that ``done`` bytes of the phase are complete, in all."""

    def finished(self, host: str) -> None:
        """Say that nothing more comes from ``host``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostResult:
    """What a session did on one host.

    ``changed`` is false where everything already was as wanted. ``error`` is set where the work could not
    be done, and then the rest says how far it came.
    """

    host: str
    headline: str
    changed: bool = False
    build: str | None = None
    path: str | None = None
    generation: int | None = None
    fingerprint: str | None = None
    interpreter: str | None = None
    verdict: Verdict | None = None
    error: HostenvError | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = field(default=())
    """Command lines that an operator is likely to type next."""

    @property
    def ok(self) -> bool:
        """Whether the host is as the operator asked."""
        return self.error is None
