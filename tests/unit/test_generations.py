"""Switching: one pointer moves, once, and whatever is killed the environment is the old or the new one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.errors import RefusedError, UnreachableError
from hostenv.machine.agent import Agent, agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, NEW = "0" * 16, "1" * 16
WHO = {"by": "a test", "session": "switch"}


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


def test_killed_at_any_moment_the_environment_is_whole(root: pathlib.Path) -> None:
    """SIGKILL the agent at 25 moments spread over two switches; then the next switch must go through."""
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        activate(agent, root, NEW)
        begun = time.monotonic()
        activate(agent, root, OLD)
        one = time.monotonic() - begun
    seen = set()
    for moment in range(25):
        with agent_on(LocalTransport("here"), python=sys.executable) as agent:
            agent.call("echo")
            killer = threading.Timer(2 * one * moment / 25, os.kill, (pid(agent), signal.SIGKILL))
            killer.start()
            with contextlib.suppress(UnreachableError):
                while True:
                    activate(agent, root, NEW if current(root) == OLD else OLD)
            killer.join()
        seen.add(current(root))
        assert current(root) in {OLD, NEW}
    assert seen == {OLD, NEW}
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        activate(agent, root, NEW)
        state = agent.call("root.state", root=str(root))
    assert state["generations"][-1] == state["generation"]
    assert not list((root / "generations").glob(".tmp-*"))


def pid(agent: Agent) -> int:
    process: subprocess.Popen[bytes] = agent._channel._process  # type: ignore[attr-defined]
    return process.pid
