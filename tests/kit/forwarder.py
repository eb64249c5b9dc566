"""A TCP forwarder that delays, freezes and cuts: a long or broken link without a kernel's netem.

As a program (``forwarder.py HOST PORT DELAY``) it prints its own port: a benchmark must not share the
interpreter's lock with what it measures.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 256 << 10
_RESET = struct.pack("ii", 1, 0)


class Forwarder:
    """Forwards connections to ``target``, an address or what connects.

    Bytes arrive ``delay`` seconds after they were sent.

    ``freeze`` stops all bytes and keeps the connections, as a host does that lost its power behind a switch;
    ``cut`` resets them. ``cut_after`` and ``freeze_after``: once that many bytes have gone to the target. It
    listens on a free port of loopback, or where ``listener`` does.
    """

    def __init__(
        self,
        target: tuple[str, int] | Callable[[], socket.socket],
        delay: float = 0.0,
        listener: socket.socket | None = None,
    ) -> None:
        self._connect = target if callable(target) else lambda: socket.create_connection(target)
        self.delay = delay
        self.cut_after: int | None = None
        self.freeze_after: int | None = None
        self.forwarded = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="forwarder", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        ends = tuple(self._ends)
        self.cut()
        self._flowing.set()
        for thread in self._threads:
            thread.join(5)
        for end in ends:
            end.close()

    def freeze(self) -> None:
        self._flowing.clear()

    def thaw(self) -> None:
        self.freeze_after = None
        self._flowing.set()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = self._connect()
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for source, sink, counted in ((near, far, True), (far, near, False)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._join(source, sink, counted=counted)

    def _join(self, source: socket.socket, sink: socket.socket, *, counted: bool) -> None:
        way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        for work, arguments in ((self._take, (source, way, counted)), (self._give, (sink, way))):
            thread = threading.Thread(target=work, args=arguments, name="forwarder", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _take(
        self,
        source: socket.socket,
        way: queue.SimpleQueue[tuple[float, bytes]],
        counted: bool,  # noqa: FBT001  a thread's argument
    ) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            self._flowing.wait()
            if counted:
                self.forwarded += len(data)
                if self.cut_after is not None and self.forwarded > self.cut_after:
                    self.cut()
                if self.freeze_after is not None and self.forwarded > self.freeze_after:
                    self.freeze()
            way.put((time.monotonic() + self.delay, data))

    def _give(self, sink: socket.socket, way: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    host, port, delay = sys.argv[1:]
    print(Forwarder((host, int(port)), float(delay)).port, flush=True)  # noqa: T201  its one answer
    threading.Event().wait()
