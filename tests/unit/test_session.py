"""One session over many hosts: how many at a time, when no more are started, and whose fault is whose."""

from __future__ import annotations

import os
import pathlib
import threading
from typing import TYPE_CHECKING

import pytest

from hostenv import commands
from hostenv.errors import BugError, HostError
from hostenv.report.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.events import HostResult
from hostenv.workflows.locking import Locker
from hostenv.workflows.request import Request
from hostenv.workflows.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostenv.machine.fleet import Turn
    from hostenv.spec.spec import Spec


def session_of(
    folder: pathlib.Path, count: int, *, serial: int | None = None, max_fail: int | None = None
) -> Session:
    """Return a session over hosts ``a``, ``b``, …, none of which is reached."""
    specs = folder / "envspecs"
    specs.mkdir()
    for name in "abcdef"[:count]:
        text = f'[host]\naddress = "{name}.example"\nroot = "/srv/{name}"\n[env]\nrequires = ["demo"]\n'
        (specs / f"{name}.toml").write_text(text)
    fleet = load_fleet(specs)
    request = Request(session="switch", hosts=("@all",), serial=serial, max_fail=max_fail)
    locker = Locker(fleet, upgrade=None, relock=False)
    return Session(fleet=fleet, request=request, locker=locker, listener=Live())


@pytest.mark.parametrize(("max_fail", "worked"), [(0, "ab"), (1, "abcd"), (None, "abcde")])
def test_no_host_is_started_after_too_many_failed(
    tmp_path: pathlib.Path, max_fail: int | None, worked: str
) -> None:
    begun: list[str] = []

    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        del session, turn
        begun.append(spec.name)
        if spec.name in "bd":
            raise HostError(f"{spec.name}: no room")
        return HostResult(host=spec.name, headline="done")

    results = session_of(tmp_path, 5, serial=1, max_fail=max_fail).run(work)
    assert "".join(begun) == worked
    assert [result.host for result in results] == list("abcde")
    refused = [result for result in results if result.error and result.error.outcome == "refused"]
    assert "".join(result.host for result in refused) == "abcde".removeprefix(worked)
    for result in refused:
        assert "not started" in str(result.error)


def test_a_result_with_an_error_counts_as_failed(tmp_path: pathlib.Path) -> None:
    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        del session, turn
        return HostResult(host=spec.name, headline="checks failed", error=HostError("bad"))

    first, second = session_of(tmp_path, 2, serial=1, max_fail=0).run(work)
    assert str(first.error) == "bad"
    assert "not started: 1 host failed before (a)" in str(second.error)


@pytest.mark.parametrize("serial", [1, 2])
def test_serial_says_how_many_hosts_at_a_time(tmp_path: pathlib.Path, serial: int) -> None:
    running, most, lock = 0, 0, threading.Lock()
    all_run = threading.Barrier(serial)

    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        nonlocal running, most
        del session, turn
        with lock:
            running += 1
            most = max(most, running)
        all_run.wait(60)
        with lock:
            running -= 1
        return HostResult(host=spec.name, headline="done")

    session_of(tmp_path, 4, serial=serial).run(work)
    assert most == serial


def make_below_a_file(folder: pathlib.Path) -> None:
    (folder / "file").write_text("")
    (folder / "file/below").mkdir()


def fill_the_disk(folder: pathlib.Path) -> None:
    del folder
    pathlib.Path("/dev/full").write_bytes(b"x")


def remove_a_full_folder(folder: pathlib.Path) -> None:
    (folder / "full/of").mkdir(parents=True)
    (folder / "full").rmdir()


@pytest.mark.parametrize(
    ("work_here", "told"),
    [
        (make_below_a_file, "a: here, {folder}/file/below: Not a directory\n  → something else stands where"),
        (fill_the_disk, "a: here, No space left on device\n  → make room where the repository"),
        (remove_a_full_folder, "a: here, {folder}/full: Directory not empty\n  → something else"),
        (
            lambda folder: (folder / "gone").read_bytes(),
            "a: here, {folder}/gone: No such file or directory\n",
        ),
    ],
)
def test_what_the_system_refuses_here_is_the_hosts_error_in_a_line_with_a_hint(
    tmp_path: pathlib.Path, work_here: Callable[[pathlib.Path], object], told: str
) -> None:
    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        del session, turn
        if spec.name == "a":
            work_here(tmp_path)
        return HostResult(host=spec.name, headline="done")

    one, two = session_of(tmp_path, 2).run(work)
    assert type(one.error) is HostError
    assert str(one.error).startswith(told.format(folder=tmp_path))
    assert isinstance(one.error.__cause__, OSError)
    assert two.error is None


def test_what_names_no_path_and_no_state_of_the_machine_is_a_bug(tmp_path: pathlib.Path) -> None:
    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        del session, turn, spec
        os.close(-1)
        raise AssertionError

    (only,) = session_of(tmp_path, 1).run(work)
    assert isinstance(only.error, BugError)
    assert isinstance(only.error.bug, OSError)


@pytest.mark.parametrize("session", ["build_env", "sync_patches", "match", "verify_abi", "status", "probe"])
def test_what_the_system_refuses_before_any_host_is_told_in_a_line(
    tmp_path: pathlib.Path, session: str
) -> None:
    """A name that is longer than a file system's may be: that stands in the way of root, too."""
    (tmp_path / "envspecs").symlink_to("x" * 300)
    written = tmp_path / "result.json"
    with pytest.raises(HostError, match=f"^{tmp_path}/envspecs: File name too long"):
        commands.run(session, ["a", "b", "--json", str(written)], tmp_path)
    if session not in {"status", "probe"}:
        assert "File name too long" in written.read_text()


def test_a_bug_on_one_host_is_its_result_and_costs_no_other_host_its_own(tmp_path: pathlib.Path) -> None:
    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        del session, turn
        if spec.name == "a":
            raise KeyError("x")
        return HostResult(host=spec.name, headline="was switched", changed=True)

    one, two = session_of(tmp_path, 2).run(work)
    assert isinstance(one.error, BugError)
    assert isinstance(one.error.bug, KeyError)
    assert two.headline == "was switched"
    assert two.error is None
