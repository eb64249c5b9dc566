"""The seam between a host's transport and everything that talks over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Channel(Protocol):
    """A started command on a host: bytes to its input, bytes of its output.

    A transport raises :class:`~hostenv.errors.UnreachableError` from any of these when the host is lost.
    """

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` to the command's standard input."""

    def close_input(self) -> None:
        """End the command's standard input."""

    def receive(self, limit: int) -> bytes:
        """Return at most ``limit`` bytes of standard output, at least one; ``b""`` at its end."""

    def stderr_tail(self) -> str:
        """Return the last 4 KiB of standard error so far, decoded leniently."""

    def wait(self, timeout: float) -> int | None:
        """Return the exit status, or ``None`` when the command has not ended after ``timeout`` seconds."""

    def end(self) -> None:
        """Give the command up; another thread that waits in ``send`` or ``receive`` is woken."""

    def close(self) -> None:
        """Drop the channel; what still runs behind it sees the end of its input."""


class Transport(Protocol):
    """A way to start commands on one host."""

    @property
    def name(self) -> str:
        """The host's name in ``envspecs/``: the key of every result."""

    def open(self, argv: Sequence[str]) -> Channel:
        """Start ``argv`` there (quoted at the wire, never interpreted by a shell) and return its channel."""

    def close(self) -> None:
        """Give up the connection; idempotent."""
