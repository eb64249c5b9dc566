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
import stat
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from hostenv.agent.probe.fact import fact, unknown

SECONDS = 10.0
"""Seconds that a question usually has: a disk that works needs less, however busy it is."""
_PIECE = 1 << 16
_END = 0.5
"""Seconds for a killed child to end; one that does not, waits in the kernel."""


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
    limits = {number: question.seconds for number, question in enumerate(questions)}
    try:
        for number, message in _messages(source, limits):
            if "bug" in message:
                raise RuntimeError(message["bug"])
            reason = message.get("reason")
            answers[number] = questions[number].otherwise(reason) if reason else message["value"]
    finally:
        os.close(source)
        _end(child)
    for number, question in enumerate(questions):
        if number not in answers:
            reason = f"no answer in {question.seconds:g} s: a disk, a mount or a server behind it hangs"
            answers[number] = question.otherwise(reason)
    return [answers[number] for number in range(len(questions))]


def _messages(source: int, limits: Dict[int, float]) -> Iterator[Tuple[int, Any]]:
    """Yield number and message of each answer, until all are there or out of time."""
    began = time.monotonic()
    waiting = dict(limits)
    pieces: List[bytes] = []
    while waiting:
        left = began + max(waiting.values()) - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            return
        piece = os.read(source, _PIECE)
        if not piece:
            return
        pieces.append(piece)
        if b"\n" not in piece:
            continue
        *lines, rest = b"".join(pieces).split(b"\n")
        pieces = [rest]
        for line in lines:
            message = json.loads(line)
            waiting.pop(message["number"], None)
            yield message["number"], message


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    until = time.monotonic() + _END
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.002)


def _fork(questions: Sequence[Question], sink: int) -> int:
    """Start the child; returns its id in the parent, and never in the child."""
    with warnings.catch_warnings():
        # 3.12 warns of threads. The child takes no lock of theirs: it reads files and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            _answer(questions, sink)
        finally:
            os._exit(70)
    return child


def _answer(questions: Sequence[Question], sink: int) -> NoReturn:
    _let_go(sink)
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
        if thread.ident is not None:
            thread.join()
    os._exit(0)


def _let_go(kept: int) -> None:
    """Close what others wait for the end of: a child that is left behind would hold the SSH channel open.

    The agent's code lies in a file of memory that stays open: modules are still imported from it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor != kept:  # noqa: PLR2004  the standard streams
            with contextlib.suppress(OSError):
                mode = os.fstat(descriptor).st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                    os.close(descriptor)
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  until the child ends
