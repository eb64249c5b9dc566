"""The agent's protocol, over a real child process."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import HostError, UnreachableError
from hostenv.machine.agent import agent_on, argv
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_call_returns_what_the_operation_returned() -> None:
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        assert agent.call("echo", value=[1, "é", None]) == [1, "é", None]


def test_an_unknown_operation_is_an_error_with_the_hosts_name() -> None:
    with (
        agent_on(LocalTransport("here"), python=sys.executable) as agent,
        pytest.raises(HostError, match="here: the agent knows no operation 'nonsense'"),
    ):
        agent.call("nonsense")


def test_no_python_is_unreachable_and_says_so() -> None:
    with (
        pytest.raises(UnreachableError, match="cannot start"),
        agent_on(LocalTransport("here"), python="/nowhere"),
    ):
        pass


def test_a_login_that_prints_before_the_agent_speaks_is_read_past(tmp_path: pathlib.Path) -> None:
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho "Welcome to this host"\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    with agent_on(LocalTransport("here"), python=str(noisy)) as agent:
        assert agent.call("echo", value=1) == 1


def test_a_module_in_the_working_directory_is_not_imported(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "struct.py").write_text("raise SystemExit('hijacked')\n")
    monkeypatch.chdir(tmp_path)
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        assert agent.call("echo", value=1) == 1


def test_the_agent_ends_with_its_controller() -> None:
    """The end of input is a dead controller, however it died."""
    process = subprocess.Popen(argv(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.close()
    assert process.wait(60) != 0
    if process.stdout:
        process.stdout.close()


def test_killing_the_controller_kills_the_agent(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "controller.py"
    script.write_text(
        f"import sys, time; sys.path[:0] = {sys.path!r}\n"
        "from hostenv.machine.agent import agent_on\n"
        "from hostenv.machine.local import LocalTransport\n"
        "with agent_on(LocalTransport('here'), python=sys.executable) as agent:\n"
        "    print(agent._channel._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    controller = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert controller.stdout
    pid = int(controller.stdout.readline())
    os.kill(pid, 0)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdout.close()
    deadline = time.monotonic() + 60
    while pathlib.Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        if "Z" in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
            break
        time.sleep(0.02)
    else:
        assert not pathlib.Path(f"/proc/{pid}").exists()


def writes_its_pid(folder: pathlib.Path) -> pathlib.Path:
    """Return a Python that leaves its process's number in the file ``pid`` beside it."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\necho $$ > {folder}/pid\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def test_a_stopped_agent_is_given_up(tmp_path: pathlib.Path) -> None:
    python = str(writes_its_pid(tmp_path))
    with agent_on(LocalTransport("here"), python=python, patience=3.0) as agent:
        agent.call("echo", value=1)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGSTOP)
        with pytest.raises(UnreachableError, match="here: it has not answered for 3 s, while echo") as raised:
            agent.call("echo", value=1)
    assert "processes" in str(raised.value.hint)


def test_an_agent_that_stops_while_data_is_sent_is_given_up(tmp_path: pathlib.Path) -> None:
    def data() -> Iterator[bytes]:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGSTOP)
        while True:  # more than any pipe holds
            yield bytes(1 << 20)

    with agent_on(LocalTransport("here"), python=str(writes_its_pid(tmp_path)), patience=3.0) as agent:
        root = str(tmp_path / "root")
        agent.call("place.begin", root=root, label="t")
        with pytest.raises(UnreachableError, match=r"it has not answered for 3 s, while place\.put"):
            agent.call("place.put", root=root, label="t", data=data())


def test_an_agent_that_works_without_a_word_shows_that_it_lives(tmp_path: pathlib.Path) -> None:
    """Its operation waits for data, longer than the controller's patience."""

    def data() -> Iterator[bytes]:
        time.sleep(9.0)
        yield b""

    with agent_on(LocalTransport("here"), python=sys.executable, patience=5.0) as agent:
        root = str(tmp_path / "root")
        agent.call("place.begin", root=root, label="t")
        begun = time.monotonic()
        agent.call("place.put", root=root, label="t", data=data())
        assert time.monotonic() - begun > 8.0, "it did wait"


NO_THREADS = """\
import _thread

def none(*_, **__):
    raise RuntimeError

_thread.start_new_thread = _thread.start_joinable_thread = none
"""


@pytest.mark.parametrize(
    ("first", "said", "helps"),
    [
        ("import os; del os.memfd_create", "python3 here has no os.memfd_create", "glibc"),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))",
            "its code cannot be kept in memory: File too large",
            "ulimit -f",
        ),
        (
            NO_THREADS,
            "no thread can be started",
            "ulimit -u",
        ),
    ],
)
def test_an_agent_that_cannot_start_says_why_in_a_line(
    tmp_path: pathlib.Path, first: str, said: str, helps: str
) -> None:
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\n*options, code = sys.argv[1:]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *options, {first!r} + '\\n' + code])\n"
    )
    program.chmod(0o755)
    with (
        pytest.raises(UnreachableError) as raised,
        agent_on(LocalTransport("here"), python=str(program)),
    ):
        pass
    assert f"here: the agent did not start (exit 1): {said}" in raised.value.message
    assert "\n" not in raised.value.message
    assert helps in str(raised.value.hint)
