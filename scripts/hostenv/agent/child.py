"""Work in a second process: a function of its own, or a share of what this process does, too.

Forked and not spawned: the agent has no file to start again from.
"""

from __future__ import annotations

import contextlib
import marshal  # between this process and its own child
import os
import warnings
from typing import Any, Callable, Dict, Generic, List, Optional, Sequence, TypeVar

Group = TypeVar("Group")

GROUPS = 256
"""Groups that work is dealt into at most: one byte numbers them."""
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


class Shared(Generic[Group]):
    """Groups of work that a second process begins with; this one joins when it asks for the results.

    Each takes the next group when it is free. ``work`` returns what marshal takes. Where there is one
    processor, or no second process, all is done here. To be closed.
    """

    def __init__(self, groups: Sequence[Group], work: Callable[[Group], Any]) -> None:
        self._groups = groups
        self._work = work
        self._turns, handing = os.pipe()
        os.write(handing, bytes(range(len(groups))))  # a read of one byte is one turn, whoever reads
        os.close(handing)
        self._child = Child(self._take_turns) if len(os.sched_getaffinity(0)) > 1 else None

    def close(self) -> None:
        """Leave no process behind: one that still works ends after its group."""
        os.read(self._turns, GROUPS)
        os.close(self._turns)
        if self._child is not None:
            self._child.result()

    def results(self) -> List[Any]:
        """Do what is left and return all results, in the groups' order."""
        done = self._take_turns()
        if self._child is not None:
            done.update(self._child.result() or {})
            self._child = None
        return [
            done[number] if number in done else self._work(group) for number, group in enumerate(self._groups)
        ]

    def _take_turns(self) -> Dict[int, Any]:
        done: Dict[int, Any] = {}
        while True:
            turn = os.read(self._turns, 1)
            if not turn:
                return done
            done[turn[0]] = self._work(self._groups[turn[0]])


def dealt(items: Sequence[Group]) -> List[Sequence[Group]]:
    """Deal items into groups for :class:`Shared`."""
    return [items[number::GROUPS] for number in range(min(GROUPS, len(items)))]


def _send(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
