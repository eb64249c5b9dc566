"""Reading files once, in several processes, for their digests.

Processes and not threads: for many small files the interpreter's lock costs more than the second core
brings. Forked and not spawned: the agent has no file to start again from.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Union

from hostenv.agent import bytecode, statcache
from hostenv.agent.child import fork, orphaned
from hostenv.agent.wire import AgentError

WORKERS = 2
_BUFFER = 1 << 20
_LARGE = 4 << 20
"""Bytes from which a file is placed by itself; smaller ones stay in the order of their folders."""
_PER_FILE = 40_000
"""Bytes that could be hashed in the time that opening a file takes (20 µs)."""
_PROGRESS = 256 << 20
_WORTH_A_FORK = 64
"""Files from which a second process is started."""
_SLOT = struct.Struct("B32s")
_COUNTER = struct.Struct("Q")
_ERRNO = struct.Struct("I")

UNREACHED, HASHED, REPEATS, CHANGED, FAILED = range(5)

Progress = Callable[[int], None]


@dataclass
class Job:
    """A file to be read: its full path, size and stat key; for bytecode also the source it may repeat."""

    path: str
    size: int
    key: bytes
    source: Optional[str] = None


@dataclass
class Result:
    """What became of a job.

    ``HASHED`` with a digest, ``REPEATS`` for bytecode that repeats its source, ``CHANGED`` while it was read,
    or ``FAILED`` with a reason.
    """

    state: int
    digest: bytes = b""
    reason: str = ""


def examine(
    jobs: Sequence[Job], *, workers: int = WORKERS, progress: Optional[Progress] = None
) -> List[Result]:
    """Read every file once and return a result for each job, in order.

    ``progress`` is called with all bytes done so far, about every 256 MiB. The memory used is one buffer
    of 1 MiB and 33 bytes a job, whatever the files' sizes.
    """
    if not jobs:
        return []
    shares = share_out([job.size for job in jobs], workers if len(jobs) >= _WORTH_A_FORK else 1)
    try:
        board = _Board(len(jobs), len(shares))
    except OSError:  # no memory to share: all is done here
        shares = share_out([job.size for job in jobs], 1)
        board = _Board(len(jobs), 1)
    children, left = [], [0]
    for number in range(1, len(shares)):
        try:
            children.append(_fork(jobs, shares[number], board, number))
        except OSError:  # no more processes, or no memory for one: that share is done here, too
            left.append(number)
    for number in left:
        _work(jobs, shares[number], board, number, progress)
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise AgentError(f"a hashing process ended early (wait status {status})")
    return [board.result(number) for number in range(len(jobs))]


def share_out(sizes: Sequence[int], workers: int) -> List[List[int]]:
    """Split the jobs so that every worker has about the same bytes; returns a list of indices a worker.

    Large files go to whoever has least, the largest first; small ones fill up in their given order, so that
    each worker stays in its own folders.
    """
    loads = [0] * workers
    shares: List[List[int]] = [[] for _ in range(workers)]
    large = sorted((n for n, size in enumerate(sizes) if size >= _LARGE), key=lambda n: -sizes[n])
    for number in large:
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += sizes[number] + _PER_FILE
    target = (sum(sizes) + len(sizes) * _PER_FILE) / workers
    worker = 0
    for number, size in enumerate(sizes):
        if size >= _LARGE:
            continue
        while worker < workers - 1 and loads[worker] >= target:
            worker += 1
        shares[worker].append(number)
        loads[worker] += size + _PER_FILE
    return [share for share in shares if share] or [[]]


class _Board:
    """Shared memory in which every process writes the results of its own jobs."""

    def __init__(self, jobs: int, workers: int) -> None:
        self._slots = workers * _COUNTER.size
        self._workers = workers
        size = self._slots + max(1, jobs) * _SLOT.size
        self._memory: Union[bytearray, mmap.mmap] = bytearray(size) if workers == 1 else mmap.mmap(-1, size)

    def write(self, number: int, state: int, payload: bytes = b"") -> None:
        _SLOT.pack_into(self._memory, self._slots + number * _SLOT.size, state, payload)

    def result(self, number: int) -> Result:
        state, payload = _SLOT.unpack_from(self._memory, self._slots + number * _SLOT.size)
        if state == FAILED:
            return Result(FAILED, reason=os.strerror(_ERRNO.unpack_from(payload)[0]))
        return Result(state, payload)

    def count(self, worker: int, done: int) -> None:
        _COUNTER.pack_into(self._memory, worker * _COUNTER.size, done)

    def total(self) -> int:
        return sum(_COUNTER.unpack_from(self._memory, n * _COUNTER.size)[0] for n in range(self._workers))


def _fork(jobs: Sequence[Job], share: Sequence[int], board: _Board, number: int) -> int:
    """Start a child that works off its share and ends: it returns from here in the parent only."""
    parent = os.getpid()
    child = fork()
    if child:
        return child
    status = 70  # EX_SOFTWARE, until the work is done
    try:
        _work(jobs, share, board, number, parent=parent)
        status = 0
    finally:
        os._exit(status)


def _work(  # noqa: PLR0913  the same work in parent and child
    jobs: Sequence[Job],
    share: Sequence[int],
    board: _Board,
    worker: int,
    progress: Optional[Progress] = None,
    *,
    parent: Optional[int] = None,
) -> None:
    buffer = memoryview(bytearray(_BUFFER))
    done = told = 0
    for number in share:
        if parent is not None and orphaned(parent):
            return
        job = jobs[number]
        try:
            _examine(job, board, number, buffer)
        except OSError as error:
            board.write(number, FAILED, _ERRNO.pack(error.errno or 0))
        done += job.size
        if done - told >= _PROGRESS:
            told = done
            board.count(worker, done)
            if progress:
                progress(board.total())
    board.count(worker, done)


def _examine(job: Job, board: _Board, number: int, buffer: memoryview) -> None:
    if job.source is not None and bytecode.repeats(job.path, job.source):
        board.write(number, REPEATS)
        return
    digest = digest_of(job.path, job.key, buffer)
    board.write(number, HASHED if digest else CHANGED, digest or b"")


def digest_of(path: str, key: bytes, buffer: memoryview) -> Optional[bytes]:
    """Return the sha256 of a file's content, ``None`` if it is not, or no longer, the file of that key.

    The key is compared after the last byte was read: whatever wrote meanwhile has changed it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = statcache.size_of(key)
        content = hashlib.sha256()
        while size > 0:
            count = os.readv(descriptor, [buffer])
            if not count:
                break
            content.update(buffer[:count])
            size -= count
        if size or statcache.key(os.fstat(descriptor)) != key:
            return None
        return content.digest()
    finally:
        os.close(descriptor)
