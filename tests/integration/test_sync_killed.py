"""``sync_patches`` ended at any moment: the target is whole, nothing runs on, the next run finishes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from kit.killing import all_gone, ours, start
from kit.repository import DEMO_PATCH
from kit.trio import Trio, digests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.repository import Repository

ROUNDS = 30
OVERLAY = '[[overlays]]\nname = "ours"\n'
REFERENCE = '[reference]\nhost = "ref"\nequal = ["patches", "overlays"]\n'
ENV = 'patches = ["demo-1.0"]'


@pytest.fixture
def trio(repository: Repository) -> Iterator[Trio]:
    """A reference with a series and an overlay of 600 files; what a failed test leaves running is ended."""
    made = Trio(repository=repository)
    files = {f"kernel/m{number}.py": f"N = {number}\n" * 20 for number in range(600)}
    repository.wheel("kernel", "1.0", {**files, "kernel/__init__.py": "WHOSE = 'index'\n"})
    for number in range(ROUNDS + 2):
        repository.wheel("stamp", str(number), {"stamp.py": f"STAMP = {number}\n"})
    made.spec("ref", "demo==1.0", "kernel==1.0", "stamp==0")
    made.done("build_env", "ref")
    (made.site("ref") / "kernel/__init__.py").write_text("WHOSE = 'ours'\n")
    (made.site("ref") / "kernel/ops.bin").write_bytes(os.urandom(8 << 20))
    made.done("overlay", "ref", "ours", "kernel")
    repository.series("demo-1.0", DEMO_PATCH)
    made.spec("ref", "demo==1.0", "kernel==1.0", "stamp==0", env=ENV, more=OVERLAY)
    made.done("build_env", "ref")
    yield made
    for pid in ours(repository):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wanted(trio: Trio, stamp: int) -> None:
    """Let the target want another build than before, with the same series and overlay."""
    trio.spec("one", "demo==1.0", "kernel==1.0", f"stamp=={stamp}", env=ENV, more=OVERLAY + REFERENCE)


def stamp_of(trio: Trio) -> int:
    """Return which build is current on the target, every byte of series and overlay checked."""
    site, reference = trio.site("one"), trio.site("ref")
    for name in ("kernel", "demo"):
        assert digests(site / name) == digests(reference / name)
    program = "import demo, kernel, stamp; print(demo.VERSION, kernel.WHOSE, stamp.STAMP)"
    version, whose, stamp = trio.repository.python(program, trio.current("one")).rsplit(" ", 2)
    assert (version, whose) == ("1.0, patched", "ours")
    return int(stamp)


def test_killed_at_any_moment_the_target_is_whole_and_the_next_run_finishes(trio: Trio) -> None:
    wanted(trio, 0)
    begun = time.monotonic()
    first = start(trio.repository, "sync_patches", "ref", "one")
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    whole = time.monotonic() - begun
    moments = [whole * (number + 0.5) / ROUNDS for number in range(ROUNDS)]
    random.Random(20261202).shuffle(moments)  # noqa: S311  an order, no secret
    stamp, ends = 0, set()

    for number, moment in enumerate(moments, 1):
        wanted(trio, number)
        shutil.rmtree(trio.root("one") / "store")
        session = start(trio.repository, "sync_patches", "ref", "one")
        time.sleep(moment)
        session.kill()
        session.communicate()
        assert all_gone(trio.repository), moment
        found = stamp_of(trio)
        assert found in {stamp, number}, moment
        ends.add(found == number)
        stamp = found
        (trio.root("one") / "store").mkdir(exist_ok=True)

    wanted(trio, ROUNDS + 1)
    trio.done("sync_patches", "ref", "one")
    assert stamp_of(trio) == ROUNDS + 1
    assert trio.done("sync_patches", "ref", "one").host["headline"] == "nothing to do"
    left = [*trio.root("one").glob("*/.tmp-*"), *trio.root("one").glob("store/.incoming-*")]
    assert left == []
    assert False in ends, "no round was cut short: the moments are all too late"
