"""Ended at any moment: the current environment is whole, nothing of ours runs on, the next run finishes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from kit.killing import all_gone, end, ours

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from kit.repository import Repository

ROUNDS = 24
TRIES = 5
PATIENCE = 30.0
"""Seconds in which everything that a dead session had started must be gone."""


@pytest.fixture(autouse=True)
def _nothing_stays(repository: Repository) -> Iterator[None]:
    """End what a failed test left running."""
    yield
    end(ours(repository))


def releases(repository: Repository, count: int) -> None:
    """Put ``demo`` 1 to ``count`` on the index, of some size, so that every phase takes a while."""
    for number in range(1, count + 1):
        release(repository, number)


def release(repository: Repository, number: int) -> None:
    files = {f"demo/module_{each}.py": f"N = {each}\n" * 50 for each in range(400)}
    repository.wheel("demo", str(number), {**files, "demo/__init__.py": f"VERSION = {number}\n"})


def current_version(repository: Repository) -> int:
    """Return what the current environment says it is, every one of its modules imported."""
    program = (
        "import demo, importlib, pkgutil\n"
        "names = [each.name for each in pkgutil.iter_modules(demo.__path__)]\n"
        "assert sum(importlib.import_module(f'demo.{name}').N for name in names) == 79800\n"
        "print(demo.VERSION)"
    )
    return int(repository.python(program))


def left_over(repository: Repository) -> list[pathlib.Path]:
    """Return what is no finished thing in all that hostenv keeps, uv's own cache aside."""
    root = repository.root
    return [
        *root.glob(".*"),
        *(root / "builds").glob(".*"),
        *(root / "generations").glob(".*"),
        *(root / "cache").glob("hostenv-*"),
        *(root / "wheelhouse/.partial").iterdir(),
        *(repository.path / "envspecs/locks").glob(".*"),
    ]


def test_killed_at_any_moment_the_environment_is_whole(repository: Repository) -> None:
    releases(repository, ROUNDS + 2)
    repository.spec("demo==1")
    begun = time.monotonic()
    first = repository.nox("build_env")
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    whole = time.monotonic() - begun
    moments = [whole * (number + 0.5) / ROUNDS for number in range(ROUNDS)]
    random.Random(20261201).shuffle(moments)  # noqa: S311  an order, no secret
    version, seen = 1, set()

    for number, moment in enumerate(moments, 2):
        repository.spec(f"demo=={number}")
        session = repository.nox("build_env")
        time.sleep(moment)
        session.kill()
        session.communicate()
        assert all_gone(repository), (moment, ours(repository))
        found = current_version(repository)
        assert found in {version, number}, moment
        seen.add(found == number)
        version = found

    repository.spec(f"demo=={ROUNDS + 2}")
    repository.build()
    assert current_version(repository) == ROUNDS + 2
    assert left_over(repository) == []
    numbers = sorted(int(path.name) for path in (repository.root / "generations").iterdir())
    assert numbers == list(range(1, numbers[-1] + 1))
    assert False in seen, "no round was cut short: the moments are all too late"


def test_a_build_cut_short_is_finished_by_the_same_command(repository: Repository) -> None:
    releases(repository, 1)
    repository.spec("demo==1")
    session = repository.nox("build_env")
    unfinished = repository.root / "builds"
    until(lambda: any(unfinished.glob(".tmp-*/lib/*/site-packages/demo/module_1*.py")))
    session.kill()
    session.communicate()
    assert all_gone(repository)
    assert not (repository.root / "current").exists()
    assert any(unfinished.glob(".tmp-*")), "cut in the middle of the install"

    assert repository.build().host["headline"] == "built, checked and current"
    assert current_version(repository) == 1
    assert left_over(repository) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("words", ["pip compile", "pip sync"])
def test_ended_by_a_signal_nothing_runs_on(
    repository: Repository, number: signal.Signals, words: str
) -> None:
    """Uv is stopped before, on the controller and on the host, so that it cannot end by itself."""
    releases(repository, 1)
    repository.spec("demo==1")
    repository.build()
    session, wanted = caught(repository, words)

    session.send_signal(number)

    said, _ = session.communicate(timeout=120)
    assert session.returncode != 0
    assert "is current" not in said
    assert all_gone(repository), ours(repository)
    assert current_version(repository) == wanted - 1
    repository.build()
    assert current_version(repository) == wanted
    assert left_over(repository) == []


def caught(repository: Repository, words: str) -> tuple[subprocess.Popen[str], int]:
    """Start building the next release and stop its uv; return the session and the release.

    On a loaded machine uv may have come and gone between two looks: then another release is built.
    """
    for number in range(2, 2 + TRIES):
        release(repository, number)
        repository.spec(f"demo=={number}")
        session = repository.nox("build_env")
        while session.poll() is None:
            if frozen(repository, words):
                return session, number
            time.sleep(0.002)
        said, _ = session.communicate(timeout=120)
        assert session.returncode == 0, said
    pytest.fail(f"uv {words} was never caught")


def frozen(repository: Repository, words: str) -> bool:
    """Stop the uv that was called with ``words``, if it runs; tell whether it did."""
    uv = re.compile(rf"\S*/uv {words} ")
    pids = [pid for pid, command in ours(repository).items() if uv.match(command)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return bool(pids)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_outlives_a_session_would_be_seen(repository: Repository) -> None:
    """The check above can fail."""
    with subprocess.Popen(["sleep", "60"], cwd=repository.folder) as stray:
        assert stray.pid in ours(repository)
        stray.kill()
