"""The protocol between the controller and the agent: frames over the agent's standard streams.

A frame is a kind byte, a length (64-bit big endian) and that many bytes. Kinds: ``J`` a JSON message,
``D`` a piece of bulk data, ``E`` the end of bulk data, ``H`` a heartbeat.

The controller sends one request (``{"op": NAME, "args": {...}}``), with bulk data after it where the
operation takes some. The agent answers with any number of ``{"event": {...}}`` and pieces of bulk data,
then exactly one ``{"result": ...}`` or ``{"error": {"outcome", "message", "hint"}}``. Each side sends a
heartbeat every few seconds, the agent while an operation runs, and gives the other one up that sends none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import select
import signal
import struct
import sys
import threading
import time
from typing import Any, Dict, Iterator, NoReturn, Optional, Tuple, Union

MARKER = b"\0hostenv agent 1\n"
HEADER = struct.Struct(">cQ")
MESSAGE, DATA, END, HEARTBEAT = b"J", b"D", b"E", b"H"
PIECE = 1 << 20
"""Bytes of bulk data a frame carries at most."""
LARGEST_MESSAGE = 1 << 30
BEAT = 2.0
"""Seconds between two heartbeats of the agent."""
SILENCE = 90.0
"""Seconds without a frame after which the agent takes the controller for dead."""

Buffer = Union[bytes, bytearray, memoryview]

_SET_PIPE_SIZE = 1031
"""Linux's F_SETPIPE_SZ, which Python names from 3.10."""


class AgentError(Exception):
    """An operation that cannot be done, told to the controller as ``outcome``, message and hint.

    ``outcome`` is one of hostenv.errors.Outcome's values, which the agent cannot import.
    """

    def __init__(self, message: str, hint: Optional[str] = None, outcome: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.outcome = outcome


def encode(message: Any) -> bytes:
    """Return ``message`` as one JSON frame. Undecodable file names travel as surrogate escapes."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return HEADER.pack(MESSAGE, len(body)) + body


class Wire:
    """The agent's end. One thread reads: it sees the end of input even while an operation works.

    Another one sends heartbeats, every ``beat`` seconds while an operation works.
    """

    def __init__(self, source: int, sink: int, silence: float = SILENCE, beat: float = BEAT) -> None:
        self._source = source
        self._sink = sink
        self._silence = silence
        self._beat = beat
        self._working = False
        self._writing = threading.Lock()
        self._frames: queue.Queue[Tuple[bytes, bytes]] = queue.Queue(maxsize=8)

    def start(self) -> None:
        """Read frames in the background until the controller goes away, and say hello.

        Both pipes are made to hold a whole piece: of 64 KiB, waking up costs as much as a third of the work.
        """
        for pipe in (self._source, self._sink):
            with contextlib.suppress(OSError):  # a socket, or a user who has all the pipes allowed
                fcntl.fcntl(pipe, _SET_PIPE_SIZE, PIECE)
        try:
            threading.Thread(target=self._read_frames, name="wire", daemon=True).start()
            threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        except RuntimeError:
            sys.exit("no thread can be started")
        _write_all(self._sink, MARKER)

    def requests(self) -> Iterator[Dict[str, Any]]:
        """Yield the controller's requests, one at a time."""
        while True:
            kind, body = self._frames.get()
            if kind == MESSAGE:
                self._working = True
                yield json.loads(body)

    def data(self) -> Iterator[bytes]:
        """Yield the pieces of the bulk data that follows a request."""
        while True:
            kind, body = self._frames.get()
            if kind == END:
                return
            if kind != DATA:
                message = f"protocol error: bulk data expected, got frame {kind!r}"
                raise AgentError(message)
            yield body

    def event(self, **fields: Any) -> None:
        """Tell the controller about progress."""
        self._send(encode({"event": fields}))

    def reply(self, message: Dict[str, Any]) -> None:
        """Send the one message that ends a request."""
        self._working = False
        self._send(encode(message))

    def send_data(self, piece: Buffer) -> None:
        """Send one piece of bulk data, at most :data:`PIECE` bytes."""
        with self._writing:
            _write_all(self._sink, HEADER.pack(DATA, len(piece)))
            _write_all(self._sink, piece)

    def end_data(self) -> None:
        """Say that the bulk data is complete."""
        self._send(HEADER.pack(END, 0))

    def _send(self, frame: bytes) -> None:
        with self._writing:
            _write_all(self._sink, frame)

    def _pulse(self) -> None:
        """Show that this process runs, whatever its operation waits for."""
        while True:
            time.sleep(self._beat)
            if self._working:
                self._send(HEADER.pack(HEARTBEAT, 0))

    def _read_frames(self) -> None:
        while True:
            kind, length = HEADER.unpack(self._read_exactly(HEADER.size))
            if length > LARGEST_MESSAGE:
                end_group()
            body = self._read_exactly(length)
            if kind != HEARTBEAT:
                self._frames.put((kind, body))

    def _read_exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            ready, _, _ = select.select([self._source], [], [], self._silence)
            piece = os.read(self._source, min(count, PIECE)) if ready else b""
            if not piece:
                end_group()
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


def end_group() -> NoReturn:
    """End this process and all that it started: the agent is the leader of its process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _write_all(descriptor: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            end_group()
