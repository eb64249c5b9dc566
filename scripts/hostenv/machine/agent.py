"""Starting the agent on a host, and calling its operations."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pathlib
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from hostenv.agent import wire
from hostenv.errors import HostenvError, HostError, Outcome, RefusedError, UnreachableError
from hostenv.machine.frames import FrameReader
from hostenv.machine.silence import PATIENCE, Silence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from hostenv.machine.channel import Channel, Transport

HEARTBEAT_INTERVAL = 10.0
"""Seconds between two signs of life; the agent ends its group after :data:`hostenv.agent.wire.SILENCE`."""

NOISE = 64 << 10
"""Bytes that a login's rc files may print before the agent speaks."""

_STEP = 64 << 10
"""Bytes of a request that are sent at a time."""

_NOT_FOUND = 127
"""POSIX: the exit status of a shell that found no such command."""

_ERRORS: Mapping[str, type[HostenvError]] = {
    Outcome.REFUSED: RefusedError,
    Outcome.FAILED: HostError,
}

_START_HINTS: Mapping[str, str] = {
    "no os.memfd_create": (
        "another python3 must come first on the host's PATH: built on Linux, against glibc 2.27 or later"
    ),
    "cannot be kept in memory": (
        "memfd_create(2) must work there: a kernel of 3.17 or later, no seccomp filter or security module "
        "against it, no limit of file sizes (ulimit -f), and room in memory"
    ),
    "no thread can be started": (
        "raise the limit of processes (ulimit -u, or the cgroup's pids.max) or of memory (ulimit -v) for "
        "this user on the host"
    ),
}
"""What helps where the agent says why it does not start."""

# Reads the length-prefixed archive into a memory file and imports the agent from there: no file is left.
_BOOTSTRAP = (
    "import os,sys\n"
    "if sys.version_info<(3,8):sys.exit('python3 here is '+sys.version.split()[0]+', too old')\n"
    "try:\n"
    " n=int(os.read(0,20));f=os.memfd_create('hostenv')\n"
    " while n:\n"
    "  b=os.read(0,min(n,65536));n-=len(b)\n"
    "  if not b:sys.exit(1)\n"
    "  while b:b=b[os.write(f,b):]\n"
    "except AttributeError:sys.exit('python3 here has no os.memfd_create: %s'%sys.version.split()[0])\n"
    "except OSError as e:sys.exit('its code cannot be kept in memory: %s'%(e.strerror or e))\n"
    "sys.path.insert(0,'/proc/self/fd/%d'%f)\n"
    "from hostenv.agent.main import main\n"
    "main()\n"
)


@functools.cache
def archive() -> bytes:
    """Return the agent's modules as a zip file, the same bytes every time."""
    package = pathlib.Path(wire.__file__).parent
    sources = {"hostenv/__init__.py": b""}
    sources |= {
        f"hostenv/agent/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*.py"))
    }
    sources |= {
        f"hostenv/agent/data/{path.name}": path.read_bytes() for path in sorted(package.glob("data/*"))
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        for name, source in sources.items():
            packed.writestr(zipfile.ZipInfo(name), source, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def argv(python: str, prefix: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command that starts the agent with the interpreter ``python``.

    ``-I``: a ``struct.py`` in the login folder must not run; ``-S``: nor a site's ``.pth``; ``-B``: no
    bytecode is left. ``prefix`` is a command that runs another with more rights (``sudo -n --``).
    """
    return (*prefix, python, "-I", "-S", "-B", "-c", _BOOTSTRAP)


class Agent:
    """A running agent. Not thread safe: one request at a time, as the agent works.

    One that sends no frame for ``patience`` seconds while it is waited for is given up, and raises
    :class:`UnreachableError`: a stopped process, or one that hangs in the kernel.
    """

    def __init__(self, channel: Channel, host: str, patience: float = PATIENCE) -> None:
        self._channel = channel
        self._host = host
        self._patience = patience
        self._silence = Silence(patience, channel.end, host)
        self._frames = FrameReader(channel, self._silence)
        self._sending = threading.Lock()
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"heartbeat {host}", daemon=True)

    @property
    def host(self) -> str:
        """The name of the host that the agent runs on."""
        return self._host

    def start(self) -> None:
        """Send the agent's code and wait for its greeting.

        Raises :class:`UnreachableError` when the far side ends or prints something else instead.
        """
        code = archive()
        self._silence.start()
        try:
            self._send_watched(b"%020d" % len(code) + code)
        except UnreachableError:
            self._check_silence("its agent started")
            status = self._channel.wait(5.0)
            if status is None:
                raise
            raise self._not_started(status) from None  # it ended before it took all, and said why
        if not self._frames.skip_past(wire.MARKER, NOISE):
            self._check_silence("its agent started")
            raise self._not_started(self._channel.wait(5.0))
        self._heart.start()

    def call(
        self,
        operation: str,
        /,
        *,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        on_data: Callable[[bytes], None] | None = None,
        data: Iterable[bytes | bytearray | memoryview] | None = None,
        **arguments: object,
    ) -> Any:
        """Run one operation and return its result.

        ``data`` follows the request as bulk data, sent while answers are read, so that a refusal ends it at
        once; what producing it raises is raised here, and ends the agent. ``on_data`` receives the bulk
        data of the answer. What the operation cannot do is raised as the matching error, with the host's
        name in front.
        """
        try:
            return self._call(operation, on_event, on_data, data, arguments)
        except UnreachableError:
            self._check_silence(operation)
            raise

    def _call(
        self,
        operation: str,
        on_event: Callable[[Mapping[str, Any]], None] | None,
        on_data: Callable[[bytes], None] | None,
        data: Iterable[bytes | bytearray | memoryview] | None,
        arguments: Mapping[str, object],
    ) -> Any:
        with self._sending:
            self._send_watched(wire.encode({"op": operation, "args": arguments}))
        if data is None:
            return self._answer(operation, on_event, on_data)
        with self._sender(data) as sending:
            try:
                return self._answer(operation, on_event, on_data)
            except UnreachableError:
                if sending.done() and (error := sending.exception()):
                    raise error from None  # it ended the agent
                raise

    def _answer(
        self,
        operation: str,
        on_event: Callable[[Mapping[str, Any]], None] | None,
        on_data: Callable[[bytes], None] | None,
    ) -> Any:
        while head := self._frames.head():
            kind, length = head
            if kind == wire.DATA:
                for piece in self._frames.pieces(length):
                    if on_data:
                        on_data(piece)
                continue
            body = self._frames.body(length)
            if kind != wire.MESSAGE or not body:
                continue
            message = json.loads(body)
            if "event" in message:
                if on_event:
                    on_event(message["event"])
            elif "error" in message:
                raise self._error(operation, message["error"])
            else:
                return message["result"]
        raise UnreachableError(
            f"{self._host}: the agent ended in the middle of {operation}: "
            f"{self._channel.stderr_tail().strip() or 'nothing on standard error'}",
            hint="run the session again: it continues with what is missing",
        )

    def close(self) -> None:
        """End the agent and, with it, everything that it started."""
        self._closing.set()
        self._silence.stop()
        with contextlib.suppress(UnreachableError, OSError):
            self._channel.close_input()
        with contextlib.suppress(UnreachableError, OSError):
            self._channel.wait(0.0 if self._silence.fell else 5.0)
        self._channel.close()

    def _not_started(self, status: int | None) -> UnreachableError:
        told = self._channel.stderr_tail().strip() or "nothing on standard error"
        hint = None
        if status == _NOT_FOUND or "too old" in told:
            hint = "a python3 of version 3.8 or later must be on the host's PATH"
        for words, helps in _START_HINTS.items():
            if words in told:
                hint = helps
        if told.startswith("sudo:"):
            hint = "sudo is never asked for a password: allow this user NOPASSWD, or log in as root"
        return UnreachableError(f"{self._host}: the agent did not start (exit {status}): {told}", hint=hint)

    def _error(self, operation: str, told: Mapping[str, Any]) -> Exception:
        if told["outcome"] == "bug":
            return RuntimeError(f"{self._host}: {operation}:\n{told['message']}")
        kind = _ERRORS.get(told["outcome"], HostError)
        hint = told["hint"] and told["hint"].replace("-- HOST", f"-- {self._host}")  # no agent knows its name
        return kind(f"{self._host}: {told['message']}", hint=hint)

    def _send(self, frame: bytes) -> None:
        with self._sending:
            self._channel.send(frame)

    def _send_watched(self, data: bytes) -> None:
        """Send ``data`` while nothing is read: it must get on, however slowly."""
        view = memoryview(data)
        while view:
            with self._silence.waiting():
                self._channel.send(view[:_STEP])
            view = view[_STEP:]

    def _check_silence(self, during: str) -> None:
        if self._silence.fell:
            raise UnreachableError(
                f"{self._host}: it has not answered for {self._patience:.0f} s, while {during}: its agent is "
                "stopped, or hangs in the kernel",
                hint="look at its processes and mounts there, then run the session again: it continues with "
                "what is missing",
            ) from None

    @contextlib.contextmanager
    def _sender(self, data: Iterable[bytes | bytearray | memoryview]) -> Iterator[Future[None]]:
        """Send ``data`` in the background for as long as its answer is awaited."""
        answered = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="data") as pool:
            sending = pool.submit(self._send_data, data, answered)
            sending.add_done_callback(self._end_without_data)
            try:
                yield sending
            finally:
                answered.set()

    def _end_without_data(self, sending: Future[None]) -> None:
        if sending.exception():
            with contextlib.suppress(UnreachableError, OSError):
                self._channel.close_input()

    def _send_data(self, data: Iterable[bytes | bytearray | memoryview], answered: threading.Event) -> None:
        for piece in data:
            if answered.is_set():
                break  # an answer before the end is a refusal
            with self._sending:
                self._channel.send(wire.HEADER.pack(wire.DATA, len(piece)))
                self._channel.send(piece)
        self._send(wire.HEADER.pack(wire.END, 0))

    def _beat(self) -> None:
        beat = wire.HEADER.pack(wire.HEARTBEAT, 0)
        while not self._closing.wait(HEARTBEAT_INTERVAL):
            try:
                self._send(beat)
            except (UnreachableError, OSError):
                return


@contextlib.contextmanager
def agent_on(
    transport: Transport, *, python: str = "python3", prefix: Sequence[str] = (), patience: float = PATIENCE
) -> Iterator[Agent]:
    """Start an agent over ``transport`` for the length of a ``with`` block."""
    agent = Agent(transport.open(argv(python, prefix)), transport.name, patience)
    try:
        agent.start()
        yield agent
    finally:
        agent.close()
