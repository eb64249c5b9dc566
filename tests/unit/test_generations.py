"""Switching: one pointer moves, once, and whatever is killed the environment is the old or the new one."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import hostenv
from hostenv.errors import RefusedError
from hostenv.machine.agent import Agent, agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, NEW = "0" * 16, "1" * 16
WHO = {"by": "a test", "session": "switch"}

KILLED_SWITCH = f"""\
import json, os, signal, sys
sys.path.insert(0, {str(pathlib.Path(hostenv.__file__).parents[1])!r})
from hostenv.agent import generations
from hostenv.agent.wire import Wire

CHANGES = {{"os.mkdir", "os.symlink", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate"}}
left = int(sys.argv[2])

def count(event, args):
    global left
    if event in CHANGES or event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

asked = json.loads(sys.argv[1])
wire = Wire(-1, -1)
sys.addaudithook(count)
generations.activate(wire, **asked)
"""
"""Switches, and is killed at a change to a file: the number of those that it may make comes second."""


@pytest.fixture
def agent() -> Iterator[Agent]:
    with agent_on(LocalTransport("here"), python=sys.executable) as running:
        yield running


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A root with two finished builds."""
    for name in (OLD, NEW):
        programs = tmp_path / "root/builds" / name / "bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(sys.executable)
        (programs.parent / "which").write_text(name)
    return tmp_path / "root"


def activate(agent: Agent, root: pathlib.Path, build: str, **more: Any) -> dict[str, Any]:
    state = agent.call("root.state", root=str(root))
    seen = {"generation": state["generation"], "hold": (state["hold"] or {}).get("since")}
    asked: dict[str, Any] = {"root": str(root), "build": build, "receipt": {}, "who": WHO, "seen": seen}
    answer: dict[str, Any] = agent.call("generation.activate", **{**asked, **more})
    return answer


def current(root: pathlib.Path) -> str:
    return (root / "current/env/which").read_text()


def test_the_first_activation_makes_generation_1_with_its_receipt(agent: Agent, root: pathlib.Path) -> None:
    assert activate(agent, root, OLD)["generation"] == 1
    assert current(root) == OLD
    receipt = agent.call("root.state", root=str(root))["receipt"]
    assert (receipt["generation"], receipt["build"], receipt["previous"]) == (1, OLD, None)


def test_going_back_is_a_new_generation_of_the_old_build(agent: Agent, root: pathlib.Path) -> None:
    for build in (OLD, NEW):
        activate(agent, root, build)
    again = activate(agent, root, OLD, hold={"by": "a test", "why": "NEW crashes"})
    assert (again["generation"], again["previous"]) == (3, 2)
    assert current(root) == OLD
    assert agent.call("root.state", root=str(root))["hold"]["why"] == "NEW crashes"


def test_the_link_is_created_once_and_follows(agent: Agent, root: pathlib.Path) -> None:
    link = root.parent / "venv"
    activate(agent, root, OLD, link=str(link))
    inode = os.lstat(link).st_ino
    activate(agent, root, NEW, link=str(link))
    assert (link / "which").read_text() == NEW
    assert os.lstat(link).st_ino == inode


def test_a_directory_at_the_link_is_refused_then_adopted(agent: Agent, root: pathlib.Path) -> None:
    link = root.parent / "venv"
    link.mkdir()
    (link / "by-hand").write_text("precious")
    with pytest.raises(RefusedError, match="is not hostenv's link"):
        activate(agent, root, OLD, link=str(link))
    assert not (root / "current").exists()
    aside = activate(agent, root, OLD, link=str(link), adopt_link=True)["adopted"]
    assert (pathlib.Path(aside) / "by-hand").read_text() == "precious"
    assert (link / "which").read_text() == OLD


@pytest.mark.parametrize(
    "spelled", ["generations/1", "generations/1/", "./generations/1", "{root}/generations/1"]
)
def test_a_current_that_was_made_by_hand_loses_no_generation(
    agent: Agent, root: pathlib.Path, spelled: str
) -> None:
    """README's way back at night, as a shell's completion may spell it."""
    for build in (OLD, NEW, OLD):
        activate(agent, root, build)
    subprocess.run(["ln", "-sfn", spelled.format(root=root), ".next"], cwd=root, check=True)
    subprocess.run(["mv", "-T", ".next", "current"], cwd=root, check=True)
    assert current(root) == OLD
    assert activate(agent, root, NEW)["generation"] == 4
    state = agent.call("root.state", root=str(root))
    assert (state["generations"], state["receipt"]["previous"]) == ([1, 2, 3, 4], 1)


@pytest.mark.parametrize("target", ["builds/" + OLD, "generations/9", "..", "generations"])
def test_a_current_that_leads_elsewhere_is_refused(agent: Agent, root: pathlib.Path, target: str) -> None:
    activate(agent, root, OLD)
    (root / "current").unlink()
    (root / "current").symlink_to(target)
    with pytest.raises(RefusedError, match="which is no generation"):
        activate(agent, root, NEW)
    assert [path.name for path in (root / "generations").iterdir()] == ["1"]


def test_a_hold_or_switch_that_came_meanwhile_is_not_undone(agent: Agent, root: pathlib.Path) -> None:
    activate(agent, root, OLD)
    planned = {"generation": 1, "hold": None}
    activate(agent, root, NEW)
    activate(agent, root, OLD, hold={"by": "kim", "why": "NEW crashes"})
    with pytest.raises(RefusedError, match="another session switched"):
        activate(agent, root, NEW, seen=planned)
    assert current(root) == OLD
    assert agent.call("root.state", root=str(root))["hold"]["why"] == "NEW crashes"


def test_a_receipt_says_who_made_the_build_and_who_activated_it(agent: Agent, root: pathlib.Path) -> None:
    activate(agent, root, OLD, receipt={"by": "kim", "session": "build_env"})
    receipt = agent.call("root.state", root=str(root))["receipt"]
    assert (receipt["by"], receipt["activated"]) == ("kim", WHO)


def test_a_build_that_is_not_finished_cannot_be_current(agent: Agent, root: pathlib.Path) -> None:
    with pytest.raises(RefusedError, match="no finished build"):
        activate(agent, root, "2" * 16)


def test_a_process_that_runs_through_the_link_stops_the_switch(agent: Agent, root: pathlib.Path) -> None:
    link = root.parent / "venv"
    activate(agent, root, OLD, link=str(link))
    server = subprocess.Popen([f"{link}/bin/python", "-c", "import time; time.sleep(60)"])
    try:
        wait_for_exec(server.pid, str(link))
        with pytest.raises(RefusedError, match=f"(?s)pid {server.pid} .*--despite-running"):
            activate(agent, root, NEW, link=str(link))
        assert current(root) == OLD
        running = activate(agent, root, NEW, link=str(link), despite_running=True)["running"]
        assert [each["pid"] for each in running] == [server.pid]
    finally:
        server.kill()
        server.wait()


def wait_for_exec(pid: int, word: str) -> None:
    deadline = time.monotonic() + 60
    while word.encode() not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_writer_hears_who_holds_the_lock(agent: Agent, root: pathlib.Path) -> None:
    note = "{'by': 'kim@desk', 'session': 'build_env', 'pid': os.getpid(), 'since': time.time()}"
    hold = (
        "import fcntl, os, time, json\n"
        f"with open({str(root / 'lock')!r}, 'w') as f:\n"
        "    fcntl.flock(f, fcntl.LOCK_EX)\n"
        f"    json.dump({note}, f)\n"
        "    f.flush()\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    try:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(RefusedError, match=f"build_env by kim@desk, pid {holder.pid}"):
            activate(agent, root, OLD)
    finally:
        holder.kill()
        holder.communicate()


def test_killed_before_any_change_to_a_file_the_environment_is_whole(
    agent: Agent, root: pathlib.Path
) -> None:
    """SIGKILL a switch as it is about to change a file, each time one change later, until it ends by itself.

    Python tells of each; ``test_killed_calls.py`` does the same with the kernel's calls, where strace is.
    """
    activate(agent, root, OLD)
    before = root.with_name("before")
    shutil.copytree(root, before, symlinks=True)
    found = []
    for killed in range(100):
        shutil.rmtree(root)
        shutil.copytree(before, root, symlinks=True)
        seen = {"generation": 1, "hold": None}
        asked = {"root": str(root), "build": NEW, "receipt": {}, "who": WHO, "seen": seen}
        argv = (sys.executable, "-I", "-S", "-B", "-c", KILLED_SWITCH, json.dumps(asked), str(killed))
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        found.append(current(root))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert json.loads((root / "current/receipt.json").read_text())["build"] == found[-1]
        activate(agent, root, NEW)
        state = agent.call("root.state", root=str(root))
        assert state["generations"][-1] == state["generation"]
        assert not [*root.glob(".tmp-*"), *root.glob("generations/.tmp-*")]
    assert found == sorted(found), "it went back"
    assert set(found) == {OLD, NEW}
    assert len(found) > len(("the generation's folder", "its env", "its receipt", "its name", "current"))
