"""A command on a host behind SSH, as a channel."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import paramiko

if TYPE_CHECKING:
    from hostenv.errors import UnreachableError

LOST = (OSError, EOFError, paramiko.SSHException)
"""What the library raises when a connection fails."""

_TAIL = 4096
_SETTLE = 1.0
"""Seconds that a connection may take to say that it is no more, once its channels are closed."""


class Connection(Protocol):
    """What a channel knows of the connection that it belongs to."""

    def lost(self) -> str | None:
        """Say why the connection is no more; ``None`` while it stands."""

    def unreachable(self, why: str) -> UnreachableError:
        """Return the error that names the host."""


class SshChannel:
    """A command on a host as a :class:`~hostenv.machine.channel.Channel`."""

    def __init__(self, session: Any, connection: Connection) -> None:
        self._session = session
        self._connection = connection
        self._errors = bytearray()
        self._dropped = False
        # Standard error shares the channel's window: unread, it would stop standard output.
        self._reader = threading.Thread(target=self._read_errors, name="stderr", daemon=True)
        self._reader.start()

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        try:
            while view:
                sent = self._session.send(view)
                if not sent:
                    raise self._ended()
                view = view[sent:]
        except LOST as error:
            raise self._ended() from error

    def close_input(self) -> None:
        """End the command's standard input."""
        try:
            self._session.shutdown_write()
        except LOST as error:
            raise self._ended() from error

    def receive(self, limit: int) -> bytes:
        """Return what has arrived; an end that the host did not send is a lost connection."""
        try:
            data: bytes = self._session.recv(limit)
        except LOST as error:
            raise self._ended() from error
        if not data and self._lost():
            raise self._ended()
        return data

    def stderr_tail(self) -> str:
        """Return the end of standard error."""
        return self._errors.decode(errors="replace")

    def wait(self, timeout: float) -> int | None:
        """Return the exit status; ``-1`` for a command that a signal ended (SSH sends no status then)."""
        deadline = time.monotonic() + timeout
        if not self._session.status_event.wait(timeout):
            return None
        if self._session.exit_status < 0 and self._lost():
            raise self._ended()
        self._reader.join(max(0.0, min(1.0, deadline - time.monotonic())))
        return int(self._session.exit_status)

    def end(self) -> None:
        """Drop the channel: what waits for it ends."""
        self.close()

    def close(self) -> None:
        """Drop the channel."""
        self._dropped = True
        with contextlib.suppress(*LOST):
            self._session.close()

    def _read_errors(self) -> None:
        with contextlib.suppress(*LOST):
            while data := self._session.recv_stderr(65536):
                self._errors += data
                del self._errors[:-_TAIL]

    def _lost(self) -> str | None:
        """Say why the connection is no more; ``None`` for a command that ended by itself.

        A host ends a command with a message. Without one the connection is failing, and the library closes
        its channels a moment before it says so of the connection.
        """
        deadline = time.monotonic() + _SETTLE
        while not (why := self._connection.lost()):
            if self._dropped or self._session.eof_received or time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        return why

    def _ended(self) -> UnreachableError:
        if why := self._lost():
            return self._connection.unreachable(why)
        told = self.stderr_tail().strip()
        return self._connection.unreachable(f"the command ended{': ' + told if told else ''}")
