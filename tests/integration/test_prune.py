"""Builds that nothing uses go; whatever is used stays, however it is used; killed, the next run finishes."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv import commands
from hostenv.agent import prune as agent_prune
from hostenv.agent import users
from hostenv.agent.layout import Layout
from hostenv.agent.wire import AgentError, Wire
from kit.repository import PROJECT, listing, repository_in
from kit.schema import violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kit.repository import Ran, Repository

SCHEMA = json.loads((PROJECT / "docs/schema/builds.schema.json").read_text())

ALLOWED = "--despite-unknown"
"""Whoever runs the tests may not be allowed to look into all processes of the machine."""

OLD = tuple(f"{number:016x}" for number in range(1, 6))
"""Builds beside the current one, the oldest first."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Return a root with one real build, current."""
    with repository_in(tmp_path_factory.mktemp("made")) as repository, pytest.MonkeyPatch.context() as patch:
        for name, value in repository.environment.items():
            patch.setenv(name, value)
        repository.build()
        yield repository.root


@pytest.fixture
def host(repository: Repository, made: pathlib.Path) -> Repository:
    """Return a host whose current build is real, and older copies of it under other names."""
    shutil.copytree(made, repository.root, symlinks=True)
    for days, name in zip(range(len(OLD), 0, -1), OLD, strict=True):
        copied = repository.root / "builds" / name
        shutil.copytree(repository.current, copied, symlinks=True)
        moment = time.time() - days * 86_400
        os.utime(copied / ".hostenv/facts.json", (moment, moment))
    return repository


def builds(host: Repository) -> set[str]:
    return {path.name for path in (host.root / "builds").iterdir()} - {host.current.name}


def prune(host: Repository, *words: str) -> Ran:
    return host.run("prune", ALLOWED, *words)


def listed(host: Repository) -> dict[str, Any]:
    written = host.folder / "builds.json"
    assert commands.run("builds", ["local", "--json", str(written)], host.path) is None
    document = json.loads(written.read_text())
    assert violations(document, SCHEMA) == []
    (only,) = document["hosts"]
    return {each["build"]: each for each in only["builds"]}


def test_the_newest_stay_and_the_rest_goes(host: Repository) -> None:
    ran = prune(host)
    assert ran.failure is None
    assert ran.host["changed"] is True
    assert builds(host) == set(OLD[-2:]), "three in all"
    assert host.python("import demo; print(demo.VERSION)") == "1.0"
    assert prune(host).host["headline"] == "nothing to remove"


def test_a_dry_run_changes_nothing(host: Repository) -> None:
    before = listing(host.root)
    assert prune(host, "--dry-run", "--wheels").host["headline"] == "dry run: nothing was changed"
    assert listing(host.root) == before


def test_current_previous_and_staged_stay(host: Repository) -> None:
    layout = Layout(str(host.root))
    current = host.current.name
    generation = pathlib.Path(layout.generation(2))
    for number, build, previous in ((2, OLD[0], 1), (3, current, 2)):
        generation = pathlib.Path(layout.generation(number))
        generation.mkdir()
        (generation / "env").symlink_to(f"../../builds/{build}")
        receipt = {"build": build, "previous": previous, "generation": number, "made": 1.0}
        (generation / "receipt.json").write_text(json.dumps(receipt))
    (host.root / "current").unlink()
    (host.root / "current").symlink_to("generations/3")
    staged = {"build": OLD[1], "receipt": {}, "staged": 1.0, "by": "x", "session": "x"}
    (host.root / "staged.json").write_text(json.dumps(staged))
    found = listed(host)
    assert (found[current]["roles"], found[OLD[0]]["roles"], found[OLD[1]]["roles"]) == (
        ["current"],
        ["previous"],
        ["staged"],
    )
    prune(host)
    assert builds(host) == {OLD[0], OLD[1]}


def test_a_build_that_a_process_runs_from_stays(host: Repository) -> None:
    python = str(host.root / "builds" / OLD[0] / "bin/python")
    with running([python, "-c", "import time; time.sleep(60)"]) as server:
        assert [each["pid"] for each in listed(host)[OLD[0]]["processes"]] == [server.pid]
        prune(host)
        assert builds(host) == {OLD[0], OLD[-1]}
    prune(host)
    assert builds(host) == {OLD[0], OLD[-1]}, "three builds are kept"


@pytest.mark.parametrize("way", ["mapped elsewhere", "cwd", "environment", "open file", "command line"])
def test_a_build_that_is_used_in_any_way_stays(host: Repository, way: str) -> None:
    build = host.root / "builds" / OLD[0]
    (build / "data.bin").write_bytes(bytes(mmap.PAGESIZE))
    sleep = "import time; time.sleep(60)"
    mapped = "f = open('data.bin', 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); f.close()"
    ways: dict[str, tuple[list[str], str, dict[str, str]]] = {
        "mapped elsewhere": (
            ["-c", f"import mmap; {mapped}; {sleep}"],
            str(shown_elsewhere(host, build)),
            {},
        ),
        "cwd": (["-c", sleep], str(build / "lib"), {}),
        "environment": (["-c", sleep], "/", {"PYTHONPATH": f"/elsewhere/builds/{OLD[0]}/lib"}),
        "open file": (["-c", f"f = open({str(build / 'data.bin')!r}); {sleep}"], "/", {}),
        "command line": (["-c", sleep, f"{build}/bin/demo"], "/", {}),
    }
    words, where, environment = ways[way]
    with running([sys.executable, *words], cwd=where, env=environment):
        assert listed(host)[OLD[0]]["processes"]
        ran = prune(host)
    assert ran.failure is None, ran.message
    assert OLD[0] in builds(host)
    assert OLD[1] not in builds(host)


def shown_elsewhere(host: Repository, build: pathlib.Path) -> pathlib.Path:
    """Return a folder that shows the build's file under another path, as a container's mount does."""
    folder = host.folder / "mounted"
    folder.mkdir()
    os.link(build / "data.bin", folder / "data.bin")
    return folder


def test_a_process_that_cannot_be_looked_into_stops_it(
    host: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(str(host.root))

    def denied(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(users, "_note", denied)
    arguments: dict[str, Any] = {"root": str(host.root), "who": {}, "builds": [OLD[0]], "wheels": []}
    with pytest.raises(AgentError, match="may not be looked into"):
        agent_prune.prune(Silent(), **arguments)
    assert OLD[0] in layout.finished_builds()
    agent_prune.prune(Silent(), **arguments, despite_unknown=True)
    assert OLD[0] not in layout.finished_builds()


def test_builds_from_the_future_make_no_process_older_than_them(
    host: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was set back since: what cannot be looked into may have started after all of them."""
    layout = Layout(str(host.root))
    monkeypatch.setattr(users, "_note", lambda *_, **__: False)
    assert users.look(layout, list(OLD), time.time() + 3600).unknown
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert users.look(layout, list(OLD), boot + 1).unknown


class Silent(Wire):
    """A wire that nobody listens to."""

    def __init__(self) -> None:
        super().__init__(-1, -1)

    def event(self, **fields: object) -> None:
        pass


PRUNE = """
import sys
from hostenv.agent import prune

class Told(prune.Wire):
    def event(self, **fields):
        print("remove", flush=True)

prune.prune(Told(-1, -1), root=sys.argv[1], who={}, builds=sys.argv[2:], wheels=[], despite_unknown=True)
"""
"""Says so before each removal."""


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03])
def test_killed_in_the_middle_the_next_run_finishes(host: Repository, delay: float) -> None:
    for number in range(2000):
        (host.root / "builds" / OLD[0] / f"file{number}").touch()
    argv = [sys.executable, "-c", PRUNE, str(host.root), OLD[0], OLD[1]]
    scripts = str(PROJECT / "scripts")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={"PYTHONPATH": scripts}) as process:
        assert process.stdout
        assert process.stdout.readline() == b"remove\n"
        time.sleep(delay)
        process.kill()
    assert OLD[0] not in builds(host), "renamed before a file of it is removed"
    assert host.python("import demo; print(demo.VERSION)") == "1.0"
    prune(host)
    assert builds(host) == set(OLD[-2:])


def test_what_a_killed_build_left_goes(host: Repository) -> None:
    half = host.root / "builds" / ".tmp-0000000000000009"
    (half / "lib").mkdir(parents=True)
    (half / "lib/half.so").write_bytes(bytes(100_000))
    (half / "lib").chmod(0o500)
    prune(host)
    assert not half.exists()


def test_receipts_and_caches_of_gone_builds_go(host: Repository) -> None:
    for name in (OLD[0], OLD[-1]):
        (host.root / "jit" / name).mkdir(parents=True)
    current = int((host.root / "current").readlink().name)
    old = host.root / "generations" / "99"
    old.mkdir()
    (old / "env").symlink_to(f"../../builds/{OLD[0]}")
    (old / "receipt.json").write_text(json.dumps({"build": OLD[0], "generation": 99, "made": 1.0}))
    for name in OLD[:-2]:  # as a run leaves it that was killed after the builds
        shutil.rmtree(host.root / "builds" / name)
    assert prune(host).host["changed"] is True
    assert prune(host).host["headline"] == "nothing to remove"
    assert builds(host) == set(OLD[-2:])
    assert [path.name for path in (host.root / "jit").iterdir()] == [OLD[-1]]
    assert [path.name for path in (host.root / "generations").iterdir()] == [str(current)]


def test_wheels_go_that_no_build_and_no_lock_names(host: Repository) -> None:
    house = host.root / "wheelhouse"
    host.build()  # writes the lock
    before = {path.name for path in house.iterdir() if len(path.name) == 64}
    assert before
    stray = house / ("a" * 64)
    stray.mkdir()
    (stray / "stray-1.0-py3-none-any.whl").write_bytes(b"x")
    prune(host)
    assert stray.exists()
    prune(host, "--wheels")
    assert {path.name for path in house.iterdir() if len(path.name) == 64} == before


def test_sizes_are_those_of_du_and_bytes_freed_are_told(host: Repository) -> None:
    build = host.root / "builds" / OLD[0]
    os.link(build / "pyvenv.cfg", build / "again")  # one inode, counted once
    os.link(build / "pyvenv.cfg", host.folder / "outside")  # not freed
    told = subprocess.run(["du", "-s", "-B1", build], capture_output=True, text=True, check=True).stdout
    found = listed(host)[OLD[0]]
    assert found["size"] == int(told.split()[0])
    assert found["freed"] == found["size"] - (build / "pyvenv.cfg").stat().st_blocks * 512


def test_a_host_that_is_only_observed_is_refused(host: Repository) -> None:
    host.spec("demo==1.0", host='mode = "observe"')
    assert prune(host).document["outcome"] == "refused"
    assert len(builds(host)) == len(OLD)


@contextlib.contextmanager
def running(
    argv: Sequence[str], *, cwd: str = "/", env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process while a ``with`` block runs, from when it sleeps."""
    with subprocess.Popen(argv, cwd=cwd, env=env or {}) as process:
        deadline = time.monotonic() + 60
        while not is_asleep(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()


def is_asleep(pid: int) -> bool:
    """Tell whether a process waits in clock_nanosleep(2), as time.sleep does."""
    call = pathlib.Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()[0]
    return call in {"230", "115"}  # x86_64, aarch64
