"""Work in a second process: a function of its own, or a share of what this process does, too.

Forked and not spawned: the agent has no file to start again from.
"""

from __future__ import annotations

import contextlib
import marshal  # between this process and its own child
import os
import stat
import sys
import warnings
from typing import Any, Callable, Dict, Generic, List, Optional, Sequence, TypeVar

Group = TypeVar("Group")

GROUPS = 256
"""Groups that work is dealt into at most: one byte numbers them."""
_PIECE = 1 << 20


def fork(*kept: int) -> int:
    """Fork this process: zero in the child, which must end by ``os._exit`` whatever happens.

    Of the pipes and sockets that are open, the child has only ``kept``. It would else hold the far ends of
    its own pipes, so that no write would ever tell it that its parent has died; and the agent's connection,
    whose end the controller would wait for. Raises :class:`OSError` where no process can be started.
    """
    with warnings.catch_warnings():
        # 3.12 warns of threads. The child takes no lock of theirs: it works for itself, and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            _let_go(kept)
        except BaseException:  # noqa: BLE001  a child must not run its parent's code
            os._exit(70)  # EX_SOFTWARE
    return child


def orphaned(parent: int) -> bool:
    """Say whether this is a child of ``parent`` that outlives it: nobody waits for its work."""
    return os.getpid() != parent and os.getppid() != parent


class Child:
    """A process that runs ``work`` and answers with what it returns, which marshal must take.

    ``kept``: the pipes that the work needs; see :func:`fork`.
    """

    def __init__(self, work: Callable[[], Any], *kept: int) -> None:
        self._answer, answering = os.pipe()
        try:
            self._process = fork(answering, *kept)
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
        self._owner = os.getpid()
        self._turns, handing = os.pipe()
        os.write(handing, bytes(range(len(groups))))  # a read of one byte is one turn, whoever reads
        os.close(handing)
        self._child = Child(self._take_turns, self._turns) if len(os.sched_getaffinity(0)) > 1 else None

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
        while not orphaned(self._owner):
            turn = os.read(self._turns, 1)
            if not turn:
                break
            done[turn[0]] = self._work(self._groups[turn[0]])
        return done


def dealt(items: Sequence[Group]) -> List[Sequence[Group]]:
    """Deal items into groups for :class:`Shared`."""
    return [items[number::GROUPS] for number in range(min(GROUPS, len(items)))]


def _send(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _let_go(kept: Sequence[int]) -> None:
    """Close the pipes and sockets that somebody may wait for the end of, but ``kept``.

    Files stay: the agent's code lies in one, in memory, and modules are still imported from it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept:  # noqa: PLR2004  the standard streams
            with contextlib.suppress(OSError):
                mode = os.fstat(descriptor).st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                    os.close(descriptor)
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  until the child ends
