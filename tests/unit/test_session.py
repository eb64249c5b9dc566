"""One session over many hosts: how many at a time, when no more are started, and whose fault is whose."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import BugError, HostError
from hostenv.report.live import Live
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.events import HostResult
from hostenv.workflows.locking import Locker
from hostenv.workflows.request import Request
from hostenv.workflows.session import Session

if TYPE_CHECKING:
    import pathlib

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
