"""A root that cannot be written, that has no room, or that another session writes: told before any work."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv.steps import fetch
from kit.repository import Repository, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNPRIVILEGED = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all")
"""Takes from root what lets it pass over modes; another user is held to them anyway."""

needs_modes = pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root needs setpriv to be held to modes"
)


@pytest.fixture(params=[0o500, 0o000], ids=["read-only", "closed"])
def barred(repository: Repository, request: pytest.FixtureRequest) -> Iterator[Repository]:
    """Return a repository, locked, whose root would lie in a folder that may not be written, or entered."""
    folder = repository.folder / "barred"
    folder.mkdir()
    barred = Repository(
        folder=repository.folder,
        registry=repository.registry,
        root=folder / "deep/root",
        environment=repository.environment,
    )
    barred.spec("demo==1.0")
    assert barred.run("lock").failure is None
    folder.chmod(request.param)
    yield barred
    folder.chmod(0o700)


def held_to_modes(repository: Repository, session: str) -> tuple[int, str]:
    """Run the real nox without the rights that lie beyond modes."""
    prefix = _UNPRIVILEGED if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*prefix, *repository.command(session)],
        cwd=repository.path,
        env=repository.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@needs_modes
@pytest.mark.parametrize("session", ["build_env", "fetch"])
def test_a_root_that_cannot_be_written_is_refused_in_a_line(barred: Repository, session: str) -> None:
    barred.registry.requests.clear()
    status, said = held_to_modes(barred, session)
    assert status == 1
    assert re.search(f"{barred.root}(/current)? cannot be (written|looked at)", said), said
    assert "Traceback" not in said
    assert barred.registry.requests == []


@needs_modes
def test_the_room_of_a_folder_that_may_not_be_entered_is_its_parents(tmp_path: pathlib.Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    program = (
        "import pathlib, sys; from hostenv.steps import fetch; print(fetch.free(pathlib.Path(sys.argv[1])))"
    )
    prefix = _UNPRIVILEGED if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", program, closed / "a/b"],
        env={"PYTHONPATH": str(pathlib.Path(fetch.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().isdigit(), done.stderr


def test_a_fetch_alone_keeps_what_shall_stay_free(repository: Repository) -> None:
    assert repository.run("lock").failure is None
    repository.registry.requests.clear()
    repository.spec("demo==1.0", more='[build]\nmin-free = "900TiB"')
    ran = repository.run("fetch")
    assert ran.document["outcome"] == "refused"
    assert "GB needed (missing wheels and build.min-free)" in ran.message
    assert repository.registry.requests == []


@pytest.mark.parametrize("session", ["build_env", "fetch"])
def test_a_second_session_writes_nothing_and_hears_who_is_there(repository: Repository, session: str) -> None:
    assert repository.run("fetch").failure is None
    (wheel,) = repository.root.glob("wheelhouse/*/demo-1.0-py3-none-any.whl")
    wheel.write_bytes(b"other bytes")
    with (repository.root / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(json.dumps({"by": "kim@there", "session": "build_env", "pid": 7, "since": 0.0}))
        lock.flush()
        before = listing(repository.root)
        ran = repository.run(session)
        assert "is in use: build_env by kim@there, pid 7" in ran.message
        assert ran.document["outcome"] == "refused"
        assert listing(repository.root) == before
    assert repository.build().host["outcome"] == "done"


def test_what_lies_there_unread_is_remembered_under_the_lock_only(repository: Repository) -> None:
    assert repository.run("fetch").failure is None
    verified = repository.root / "wheelhouse/.verified"
    assert verified.exists()
    verified.unlink()
    assert repository.run("build_env", "--dry-run").failure is None
    assert not verified.exists()
    assert repository.build().host["outcome"] == "done"
    assert verified.exists()
