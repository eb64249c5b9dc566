"""Reading what may hang: in a child process, a thread for each question, so long and no longer.

A dead NFS server, a FUSE daemon that was stopped, a disk that fails: whoever asks such a file system for
anything waits in the kernel, and often not even a kill ends that. Only a child can be left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from hostenv.agent.child import fork, orphaned
from hostenv.agent.probe.fact import fact, unknown

SECONDS = 10.0
"""Seconds that a question usually has: a disk that works needs less, however busy it is."""
_PIECE = 1 << 16
_END = 0.5
"""Seconds for a killed child to end; one that does not, waits in the kernel."""
_LOOK = 1.0
"""Seconds after which a child looks whether anybody still waits for its answers."""
_BUG = 70
"""EX_SOFTWARE, of a child that did not come to its end."""


class Question(NamedTuple):
    """``read`` returns what JSON can hold; ``otherwise`` is given the reason where it returned nothing.

    ``seconds`` count from when all are asked.
    """

    read: Callable[[], Any]
    otherwise: Callable[[str], Any]
    seconds: float = SECONDS


def fact_question(how: str, read: Callable[..., Any], *arguments: Any) -> Question:
    """Return the question after one fact; see :func:`hostenv.agent.probe.fact.fact`."""
    return Question(lambda: fact(how, read, *arguments), lambda reason: unknown(reason, how))


def ask(groups: Mapping[str, Sequence[Question]]) -> Dict[str, List[Any]]:
    """Ask all questions side by side; return the answers in the form and the order of the questions.

    What ``read`` changes in this process's memory is lost. Raises :class:`RuntimeError` with the traceback of
    what a ``read`` raises: that is a bug.
    """
    flat = [question for questions in groups.values() for question in questions]
    answers = iter(_ask(flat))
    return {name: [next(answers) for _ in questions] for name, questions in groups.items()}


def _ask(questions: Sequence[Question]) -> List[Any]:
    if not questions:
        return []
    source, sink = os.pipe()
    try:
        child = _fork(questions, sink)
    except OSError as error:
        os.close(source)
        os.close(sink)
        return [each.otherwise(f"no process can be started: {error.strerror}") for each in questions]
    os.close(sink)
    answers: Dict[int, Any] = {}
    died = ""
    limits = {number: question.seconds for number, question in enumerate(questions)}
    try:
        for number, message in _messages(source, limits):
            if "bug" in message:
                raise RuntimeError(message["bug"])
            reason = message.get("reason")
            answers[number] = questions[number].otherwise(reason) if reason else message["value"]
    except EOFError:
        died = _death(child)
    finally:
        os.close(source)
        _end(child)
    for number, question in enumerate(questions):
        if number not in answers:
            hangs = f"no answer in {question.seconds:g} s: a disk, a mount or a server behind it hangs"
            answers[number] = question.otherwise(died or hangs)
    return [answers[number] for number in range(len(questions))]


def _messages(source: int, limits: Dict[int, float]) -> Iterator[Tuple[int, Any]]:
    """Yield number and message of each answer, until all are there or out of time.

    Raises :class:`EOFError` where the child ends before.
    """
    began = time.monotonic()
    waiting = dict(limits)
    pieces: List[bytes] = []
    while waiting:
        left = began + max(waiting.values()) - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            return
        piece = os.read(source, _PIECE)
        if not piece:
            raise EOFError
        pieces.append(piece)
        if b"\n" not in piece:
            continue
        *lines, rest = b"".join(pieces).split(b"\n")
        pieces = [rest]
        for line in lines:
            message = json.loads(line)
            waiting.pop(message["number"], None)
            yield message["number"], message


def _death(child: int) -> str:
    """Say how a child ended that has closed its answers; it stays to be waited for."""
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        if ended and ended.si_code != os.CLD_EXITED:
            return f"the process that looked was killed by signal {ended.si_status}: out of memory? See dmesg"
        if ended:
            return f"the process that looked ended before it had answered (exit {ended.si_status})"
    return "the process that looked ended before it had answered"


def _end(child: int) -> None:
    until = time.monotonic() + _END
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.002)


def _fork(questions: Sequence[Question], sink: int) -> int:
    """Start the child; returns its id in the parent, and never in the child."""
    parent = os.getpid()
    child = fork(sink)
    if not child:
        try:
            _answer(questions, sink, parent)
        finally:
            os._exit(_BUG)
    return child


def _answer(questions: Sequence[Question], sink: int, parent: int) -> NoReturn:
    writing = threading.Lock()

    def tell(**message: Any) -> None:
        line = memoryview(json.dumps(message).encode() + b"\n")
        with writing:
            while line:
                line = line[os.write(sink, line) :]

    def work(number: int, question: Question) -> None:
        try:
            tell(number=number, value=question.read())
        except Exception:  # noqa: BLE001  the far end of a bug: its traceback is shown by the parent
            import traceback  # noqa: PLC0415  hardly ever needed

            tell(number=number, bug=traceback.format_exc())

    threads = [
        threading.Thread(target=work, args=(number, question), daemon=True)
        for number, question in enumerate(questions)
    ]
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:  # a container's limit of processes
            tell(number=number, reason=str(error))
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK)
            if orphaned(parent):
                os._exit(_BUG)
    os._exit(0)
