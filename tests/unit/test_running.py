"""Who runs through the link, and from which build: however a process was started, whatever it says now."""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import running
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BUILD = "a" * 16
READY = "import sys; print('ready', flush=True); sys.stdin.read()"
MAPS = (
    f"import mmap, sys; file = open(sys.stdin.readline()[:-1], 'rb'); m = mmap.mmap(file.fileno(), 0, "
    f"access=mmap.ACCESS_READ); file.close(); {READY}"
)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A root whose build is current, reached by ``venv`` beside it; its python is a link, as a venv's is."""
    root = tmp_path / "hostenv"
    build = root / "builds" / BUILD
    (build / "bin").mkdir(parents=True)
    base = pathlib.Path(sys.executable).resolve()
    (build / "bin/python").symlink_to(base)
    (build / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (build / "lib").mkdir()
    (build / "lib/extension.so").write_bytes(b"\x7fELF" * mmap.PAGESIZE)
    (root / "generations/1").mkdir(parents=True)
    (root / "generations/1/env").symlink_to(build)
    (root / "generations/1/receipt.json").write_text(f'{{"build": "{BUILD}"}}')
    (root / "current").symlink_to("generations/1")
    (tmp_path / "venv").symlink_to(root / "current/env")
    return root


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    cwd: pathlib.Path,
    given: str = "",
    env: Mapping[str, str] | None = None,
    name: str = "",
) -> Iterator[int]:
    """Run a python that waits; ``name`` is an argv[0] that says nothing, as a title does."""
    words = [name or argv[0], *argv[1:]]
    with subprocess.Popen(
        words,
        executable=argv[0] if name else None,
        cwd=cwd,
        env=dict(env or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(given)
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()


def through(root: pathlib.Path) -> list[int]:
    return [each["pid"] for each in running.through(str(root.parent / "venv"), str(root / "current"))]


def asked(root: pathlib.Path, operation: str) -> Any:
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        return agent.call(operation, root=str(root))


@pytest.mark.parametrize("start", ["venv/bin/python", "./venv/bin/python", "hostenv/../venv/bin/python"])
def test_a_relative_path_through_the_link_is_named(root: pathlib.Path, start: str) -> None:
    with started([start, "-c", READY], root.parent) as pid:
        assert through(root) == [pid]


def test_a_relative_path_is_still_known_where_the_process_changed_its_directory(root: pathlib.Path) -> None:
    code = f"import os; os.chdir('/'); {READY}"
    shell = f"cd {shlex.quote(str(root.parent))} && exec venv/bin/python -c {shlex.quote(code)}"
    with started(["/bin/sh", "-c", shell], pathlib.Path("/")) as pid:
        assert through(root) == [pid]


def test_a_link_below_a_link_is_known_by_either_path(root: pathlib.Path) -> None:
    (root.parent / "srv").symlink_to(root.parent)
    link, current = root.parent / "srv/venv", root / "current"
    with started([str(root.parent / "venv/bin/python"), "-c", READY], pathlib.Path("/")) as pid:
        assert [each["pid"] for each in running.through(str(link), str(current))] == [pid]


@pytest.mark.parametrize("start", ["hostenv/builds/{0}/bin/python", "{1}/builds/{0}/bin/python"])
def test_what_runs_by_the_builds_own_path_is_not(root: pathlib.Path, start: str) -> None:
    path = start.format(BUILD, root)
    with started([path, "-c", MAPS], root.parent, f"{root}/builds/{BUILD}/lib/extension.so\n"):
        assert through(root) == []


def test_a_process_that_writes_its_own_title_is_known_by_what_it_maps(root: pathlib.Path) -> None:
    extension = f"{root}/builds/{BUILD}/lib/extension.so\n"
    with started([sys.executable, "-c", MAPS], pathlib.Path("/"), extension, name="sglang::scheduler") as pid:
        (found,) = running.through(str(root.parent / "venv"), str(root / "current"))
        assert found["pid"] == pid
        assert "extension.so, and does not name the build" in found["how"]


def test_a_child_with_a_title_of_its_own_is_judged_by_who_started_it(root: pathlib.Path) -> None:
    child = f"import subprocess, sys; subprocess.run(['scheduler', '-c', {MAPS!r}], executable=sys.argv[1])"
    python = root / "builds" / BUILD / "bin/python"
    argv = [str(python), "-c", child, sys.executable]
    with started(argv, pathlib.Path("/"), f"{root}/builds/{BUILD}/lib/extension.so\n"):
        assert through(root) == []


def test_status_and_builds_name_the_same_processes(root: pathlib.Path) -> None:
    build = root / "builds" / BUILD
    shutil.copy(shutil.which("sleep") or "/bin/sleep", build / "bin/sleep")
    with (
        started([f"hostenv/builds/{BUILD}/bin/python", "-c", READY], root.parent) as one,
        started([str(build / "bin/python"), "-c", READY], pathlib.Path("/")) as two,
        started(["../bin/python", "-c", READY], build / "lib", env={"PWD": str(build / "lib")}) as three,
        started([sys.executable, "-c", READY], pathlib.Path("/"), env={"PYTHONPATH": f"{build}/lib"}) as four,
    ):
        wanted = sorted([one, two, three, four])
        users = asked(root, "probe.status")["users"][BUILD]
        (built,) = asked(root, "builds.list")["builds"]
        assert sorted(each["pid"] for each in users) == wanted
        assert users == built["processes"]


def test_the_own_process_is_nobody(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (root / "builds" / BUILD / "lib/extension.so").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        monkeypatch.chdir(root)
        assert os.getpid() not in through(root)
        mapped.close()
