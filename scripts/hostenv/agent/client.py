"""The controller's side of the protocol, for an agent that works on a further host through its own ssh."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Tuple

from hostenv.agent import wire
from hostenv.agent.wire import AgentError

_NOISE = 64 << 10
_BEAT = 10.0
"""Seconds between two signs of life."""


class Client:
    """An agent at the end of ``argv`` (an ssh that starts it), given this agent's own code."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
            )
        except OSError as error:
            self._errors.close()
            raise AgentError(f"cannot run {argv[0]}: {error.strerror}") from error

    def start(self) -> None:
        """Send the code and wait for the greeting; :class:`AgentError` with ssh's words where none comes."""
        code = _own_code()
        self._write(b"%020d" % len(code) + code)
        seen = b""
        while wire.MARKER not in seen:
            piece = os.read(self._source, 1)  # the greeting comes once, and nothing after it may be taken
            if not piece or len(seen) > _NOISE:
                raise self._lost("did not start")
            seen += piece
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """End the agent there, and the ssh to it."""
        self._ended.set()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def call(self, operation: str, data: Optional[Iterable[wire.Buffer]] = None, **arguments: Any) -> Any:
        """Run one operation there, bulk data after its request, and return its result.

        Raises :class:`AgentError` for what it refuses or cannot do, and where the connection ends.
        """
        self._send(wire.encode({"op": operation, "args": arguments}))
        if data is not None:
            for piece in data:
                self._send(wire.HEADER.pack(wire.DATA, len(piece)) + bytes(piece))
            self._send(wire.HEADER.pack(wire.END, 0))
        while True:
            kind, body = self._frame()
            message: Dict[str, Any] = json.loads(body) if kind == wire.MESSAGE else {}
            if "result" in message:
                return message["result"]
            if "error" in message:
                told = message["error"]
                raise AgentError(told["message"], hint=told["hint"], outcome=told["outcome"])

    def _frame(self) -> Tuple[bytes, bytes]:
        kind, length = wire.HEADER.unpack(self._read(wire.HEADER.size))
        return kind, self._read(length)

    def _read(self, count: int) -> bytes:
        pieces = []
        while count:
            ready, _, _ = select.select([self._source], [], [], wire.SILENCE)
            if not ready:
                raise AgentError(f"the agent over there has not answered for {wire.SILENCE:.0f} s")
            piece = os.read(self._source, min(count, wire.PIECE))
            if not piece:
                raise self._lost("ended")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    @property
    def _source(self) -> int:
        return self._process.stdout.fileno() if self._process.stdout else -1

    def _send(self, frame: wire.Buffer) -> None:
        with self._sending:
            self._write(frame)

    def _write(self, data: wire.Buffer) -> None:
        view = memoryview(data)
        try:
            while view and self._process.stdin:
                view = view[os.write(self._process.stdin.fileno(), view) :]
        except OSError:
            raise self._lost("ended") from None

    def _beat(self) -> None:
        with contextlib.suppress(AgentError, OSError, ValueError):
            while not self._ended.wait(_BEAT):
                self._send(wire.HEADER.pack(wire.HEARTBEAT, 0))

    def _lost(self, what: str) -> AgentError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        size = os.fstat(self._errors.fileno()).st_size
        told = os.pread(self._errors.fileno(), 2048, max(0, size - 2048)).decode(errors="replace").strip()
        return AgentError(f"the agent over there {what}: {told or 'nothing on standard error'}")


@contextlib.contextmanager
def agent_behind(argv: Sequence[str]) -> Iterator[Client]:
    """Run an agent behind ``argv`` for the length of a ``with`` block."""
    client = Client(argv)
    try:
        client.start()
        yield client
    finally:
        client.close()


def _own_code() -> bytes:
    """Return the archive that this agent was imported from: the bootstrap put it first on the path."""
    with open(sys.path[0], "rb") as file:
        file.seek(0)
        return file.read()
