"""A function at work in a second process.

Forked and not spawned: the agent has no file to start again from.
"""

from __future__ import annotations

import contextlib
import marshal  # between this process and its own child
import os
import warnings
from typing import Any, Callable, Optional

_PIECE = 1 << 20


def fork() -> int:
    """Fork this process: zero in the child, which must end by ``os._exit`` whatever happens."""
    with warnings.catch_warnings():
        # 3.12 warns of threads. The child takes no lock of theirs: it works for itself, and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class Child:
    """A process that runs ``work`` and answers with what it returns, which marshal must take."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._answer, answering = os.pipe()
        try:
            self._process = fork()
        except OSError:  # no more processes, or no memory for one
            self._process = -1
        if self._process == 0:
            status = 70  # EX_SOFTWARE, until the answer is sent
            with contextlib.suppress(BaseException):  # a child must not run its parent's code
                _send(answering, marshal.dumps(work()))
                status = 0
            os._exit(status)
        os.close(answering)

    def result(self) -> Optional[Any]:
        """Wait for the answer; ``None`` where there is none: the work is then to be done here."""
        pieces = []
        with contextlib.closing(os.fdopen(self._answer, "rb", buffering=0)) as answer:
            while True:
                piece = answer.read(_PIECE)
                if not piece:
                    break
                pieces.append(piece)
        if self._process < 0:
            return None
        _, status = os.waitpid(self._process, 0)
        return marshal.loads(b"".join(pieces)) if status == 0 else None  # noqa: S302  from its own child


def _send(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
