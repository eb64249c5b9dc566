"""Second processes of the agent: they do their share, end with their parent, and hold nothing of its."""

from __future__ import annotations

import hashlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import pytest

import hostenv

LONG = 60.0
START = f"""\
import os, resource, sys, time
sys.path.insert(0, {str(pathlib.Path(hostenv.__file__).parents[1])!r})
from hostenv.agent import child, elfsymbols, hashing, reading, statcache
from hostenv.agent.binding import Universe
from hostenv.agent.hostfiles import HostFiles
from hostenv.agent.probe import intime
"""
FOREVER = f"""
time.sleep({LONG})
"""
ANSWERS = """
more_than_a_pipe = b"x" * (2 << 20)
first = child.Child(lambda: more_than_a_pipe)
second = child.Child(lambda: more_than_a_pipe)  # it must not hold the far end of the first one's pipe
"""
SHARES = """
def work(number):
    time.sleep(0.01)
    return b"x" * (1 << 20)
shared = child.Shared(range(200), work)
"""
READS = """
libraries = sys.argv[1:]
helper = reading._started(HostFiles(), libraries * 20)
"""
HASHES = """
job = hashing.Job(sys.argv[1], os.stat(sys.argv[1]).st_size, statcache.key(os.stat(sys.argv[1])))
hashing.examine([job] * 200_000)
"""
ASKS = """
intime.ask({"": [intime.Question(lambda: time.sleep(3600), str, 3600.0)]})
"""
LIBRARIES = [str(path) for path in pathlib.Path("/lib").glob(f"{os.uname().machine}-linux-gnu/lib[cm].so.6")]


def descendants(parent: int) -> set[int]:
    """Return the processes that have ``parent``, whichever of its threads started them."""
    found = set()
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            after = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after[1]) == parent:
            found.add(int(status.parent.name))
    return found


def alive(process: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="with one processor, there is one process")
@pytest.mark.parametrize("work", [ANSWERS, SHARES, READS, HASHES, ASKS])
def test_a_child_ends_with_its_parent_and_does_not_hold_its_streams(work: str) -> None:
    argv = [sys.executable, "-I", "-S", "-c", START + work + FOREVER, *(LIBRARIES or [sys.executable])]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as parent:
        assert parent.stdout
        assert parent.stderr
        while len(children := descendants(parent.pid)) < work.count("child.Child(") or not children:
            assert parent.poll() is None, parent.stderr.read()
            time.sleep(0.01)
        parent.send_signal(signal.SIGKILL)
        parent.wait(LONG)
        for stream in (parent.stdout, parent.stderr):  # the end comes at once, whoever still works
            assert select.select([stream], [], [], LONG)[0], "a child holds a stream of its dead parent"
            assert stream.read() == b""
    until = time.monotonic() + LONG
    while time.monotonic() < until and any(alive(each) for each in children):
        time.sleep(0.02)
    left = [each for each in children if alive(each)]
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left


NO_MORE = """
if os.getuid() == 0:  # whom no limit holds
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    os._exit(3 if os.fork() else 0)
except BlockingIOError:
    pass
"""
ALONE = """
paths = sys.argv[1:]
jobs = [hashing.Job(path, os.stat(path).st_size, statcache.key(os.stat(path))) for path in paths]
told = hashing.examine(jobs)
shared = child.Shared(range(50), lambda number: number * number)
assert shared.results() == [number * number for number in range(50)]
shared.close()
assert child.Child(lambda: 1).result() is None
before = len(os.listdir("/proc/self/fd"))
assert reading._started(HostFiles(), paths) is None
assert len(os.listdir("/proc/self/fd")) == before
print(*(each.digest.hex() for each in told))
"""


def test_where_no_process_can_be_started_the_work_is_done_all_the_same(tmp_path: pathlib.Path) -> None:
    paths = [tmp_path / str(number) for number in range(100)]
    for path in paths:
        path.write_text(path.name)
    for folder in (tmp_path, *tmp_path.parents):  # pytest's folders are its user's alone
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    script = START + NO_MORE + ALONE
    argv = [sys.executable, "-I", "-S", "-c", script, *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LONG)
    if done.returncode == 3:
        pytest.skip("no limit on processes holds here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [hashlib.sha256(path.name.encode()).hexdigest() for path in paths]
