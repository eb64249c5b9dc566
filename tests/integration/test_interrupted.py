"""Ctrl-C: a session ends at once, leaves nothing running, and the next one goes on."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.wheelhouse import Wheelhouse
from hostenv.errors import SupplyError, UnreachableError
from hostenv.index.fetch import fetch
from hostenv.index.source import Source
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from kit.registry import Fault

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Repository

PAUSE = 90.0
"""Seconds that the index keeps a wheel's bytes back: far more than a session may take to end."""

SOON = 20.0
"""Seconds in which an end has come, on a slow machine that has other work, too: far fewer than a pause."""


def wait_for_downloads(root: pathlib.Path) -> None:
    """Wait until the partial files of a wheelhouse are there."""
    until = time.monotonic() + 60
    while not any(root.glob("wheelhouse/.partial/*")):
        assert time.monotonic() < until, "nothing was fetched"
        time.sleep(0.02)


@pytest.mark.parametrize("session", ["fetch", "build_env"])
def test_ctrl_c_ends_a_download_and_the_next_run_finishes(repository: Repository, session: str) -> None:
    many = [f"part{index}" for index in range(12)]  # more than are fetched side by side
    for name in many:
        repository.wheel(name, "1.0", {f"{name}.py": f"# {name}\n" * 50})
    repository.spec("demo==1.0", *many)
    assert repository.run("lock").failure is None
    slow = [path.name for path in repository.registry.folder.glob("part*.whl")]
    repository.registry.lasting.update({name: Fault(pause=PAUSE) for name in slow})
    started = repository.nox(session)
    with started:
        wait_for_downloads(repository.root)
        began = time.monotonic()
        started.send_signal(signal.SIGINT)
        said, _ = started.communicate(timeout=PAUSE)
    assert time.monotonic() - began < SOON, said
    assert started.returncode != 0
    assert "Traceback" not in said
    repository.registry.lasting.clear()
    done = repository.run("build_env")
    assert done.failure is None, done.message


@pytest.mark.parametrize("silent", [False, True])
def test_a_fetch_ends_when_another_thread_says_so(
    repository: Repository, tmp_path: pathlib.Path, *, silent: bool
) -> None:
    """Also where the index has accepted the connection and says nothing at all."""
    wheel = repository.wheel("slow", "1.0", {"slow.py": "ONE = 1\n"})
    repository.registry.lasting[wheel.path.name] = Fault(pause=PAUSE)
    source = Source(
        sha256=wheel.sha256,
        filename=wheel.path.name,
        size=wheel.path.stat().st_size,
        url=repository.registry.file_url(wheel.path.name),
    )
    with contextlib.ExitStack() as stack:
        if silent:
            deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            source = replace(source, url=f"http://127.0.0.1:{deaf.getsockname()[1]}/{wheel.filename}")
        end_soon(source, tmp_path / "house")


def end_soon(source: Source, folder: pathlib.Path) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with pytest.raises(SupplyError, match="ended before every wheel was there"):
        fetch([source], Wheelhouse(str(folder)), logins={}, stop=stop)
    assert time.monotonic() - began < SOON


def test_giving_a_local_host_up_ends_its_agent(tmp_path: pathlib.Path) -> None:
    transport = LocalTransport("here")
    with (
        (tmp_path / "lock").open("w") as lock,
        agent_on(transport, python=sys.executable) as agent,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.3, transport.close).start()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="ended in the middle of"):
            agent.call("writer.take", root=str(tmp_path), who={}, patience=PAUSE)
        assert time.monotonic() - began < SOON
