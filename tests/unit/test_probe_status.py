"""A host's status: which build running processes really use."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv.checks.free_gpus import gpu_uses
from hostenv.facts.host_status import HostStatus
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, NEW = "a" * 16, "b" * 16


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a root with two builds, of which the newer one is current."""
    root = tmp_path / "root"
    for build in (OLD, NEW):
        (root / "builds" / build / "bin").mkdir(parents=True)
        shutil.copy(shutil.which("sleep") or "/bin/sleep", root / "builds" / build / "bin" / "python")
    for number, build in ((1, OLD), (2, NEW)):
        (root / "generations" / str(number)).mkdir(parents=True)
        (root / "generations" / str(number) / "env").symlink_to(f"../../builds/{build}")
        (root / "generations" / str(number) / "receipt.json").write_text(f'{{"build": "{build}"}}')
    (root / "current").symlink_to("generations/1")
    return root


@pytest.fixture
def running(root: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that was started through ``current`` while the older build was current."""
    with subprocess.Popen([root / "current" / "env" / "bin" / "python", "60"]) as child:
        while pathlib.Path(f"/proc/{child.pid}/exe").readlink().name != "python":
            pass
        yield child
        child.kill()


def status(root: pathlib.Path) -> HostStatus:
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        return HostStatus.from_answer(agent.call("probe.status", root=str(root)), "here")


def test_a_process_that_runs_from_an_older_build(
    root: pathlib.Path, running: subprocess.Popen[bytes]
) -> None:
    (root / "current").unlink()
    (root / "current").symlink_to("generations/2")
    told = status(root)
    assert told.state.current_build == NEW
    assert [user.pid for user in told.outdated_users[OLD]] == [running.pid]
    assert [user.pid for user in told.through_link] == [running.pid]
    assert NEW not in told.users


def test_a_root_that_nothing_uses(root: pathlib.Path) -> None:
    told = status(root)
    assert (dict(told.users), told.through_link) == ({}, ())


def test_a_host_without_a_root(tmp_path: pathlib.Path) -> None:
    told = status(tmp_path / "nothing")
    assert told.state.generation is None
    assert not (tmp_path / "nothing").exists()


def test_the_gpus_of_a_status_are_judged_as_a_probes(root: pathlib.Path) -> None:
    told = status(root)
    uses = gpu_uses(told)
    assert uses.is_known == told.gpus.is_known
