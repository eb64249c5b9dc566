"""This machine as a host: the agent as a child process, no SSH."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import weakref
from typing import TYPE_CHECKING

from hostenv.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK = 1000
"""Milliseconds between two looks whether a command that says nothing was given up."""


class LocalChannel:
    """A child process's streams as a :class:`~hostenv.machine.channel.Channel`."""

    def __init__(self, argv: Sequence[str]) -> None:
        # A file, not a pipe: nobody has to read it for the child to go on.
        self._given_up = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the controller, which then ends the agent in order
            )
            self._poll = select.poll()
            if self._process.stdout:
                self._poll.register(self._process.stdout, select.POLLIN)
        except OSError as error:
            self._errors.close()
            raise UnreachableError(f"local: cannot start {argv[0]}: {error.strerror}") from error

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``."""
        pipe = self._process.stdin
        view = memoryview(data)
        while view and pipe:
            try:
                view = view[os.write(pipe.fileno(), view) :]
            except OSError as error:
                raise UnreachableError(
                    f"local: the agent ended: {self.stderr_tail().strip() or error.strerror}"
                ) from error

    def close_input(self) -> None:
        """End the child's standard input."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def receive(self, limit: int) -> bytes:
        """Return what has arrived, at most ``limit`` bytes."""
        pipe = self._process.stdout
        while pipe and not self._poll.poll(_LOOK):
            if self._given_up:
                return b""
        return os.read(pipe.fileno(), limit) if pipe else b""

    def stderr_tail(self) -> str:
        """Return the end of the child's standard error."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 4096, max(0, size - 4096)).decode(errors="replace")

    def wait(self, timeout: float) -> int | None:
        """Return the exit status once there is one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def end(self) -> None:
        """Kill the command and what it started; the streams stay open, another thread may be reading them."""
        self._given_up = True
        if self.wait(0.0) is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except PermissionError:  # it runs with more rights than we have, and ends with its input
                self.close_input()

    def close(self) -> None:
        """Close the streams; an agent that does not end at the end of its input is killed."""
        self.close_input()
        if self.wait(1.0) is None:
            try:
                self._process.kill()
            except PermissionError:  # it runs with more rights than we have, and ends with its input
                self.wait(1.0)
            else:
                self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()


class LocalTransport:
    """Starts commands on this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._opened: weakref.WeakSet[LocalChannel] = weakref.WeakSet()

    def open(self, argv: Sequence[str]) -> LocalChannel:
        """Start ``argv`` as a child in a session of its own."""
        channel = LocalChannel(argv)
        self._opened.add(channel)
        return channel

    def close(self) -> None:
        """End what still runs: whoever waits for it, in another thread, too, sees the end of its output."""
        for channel in tuple(self._opened):
            channel.end()
