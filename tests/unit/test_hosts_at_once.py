"""Many hosts at once: bounded, each for itself, given up after a time-out."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import BugError, HostError, UnreachableError
from hostenv.machine import fleet
from hostenv.machine.fleet import run_on_hosts

if TYPE_CHECKING:
    from hostenv.machine.fleet import Result, Turn


def test_each_host_has_its_result_in_the_order_given() -> None:
    def work(host: int, turn: Turn) -> str:
        time.sleep(0.01 * (3 - host))
        return f"{turn.name} {host}"

    ended: list[str] = []
    results = run_on_hosts(
        {"a": 1, "b": 2, "c": 3}, work, jobs=3, on_result=lambda result: ended.append(result.name)
    )
    assert [(result.name, result.value) for result in results.values()] == [
        ("a", "a 1"),
        ("b", "b 2"),
        ("c", "c 3"),
    ]
    assert sorted(ended) == ["a", "b", "c"]


@pytest.mark.parametrize("jobs", [1, 3, 0])
def test_no_more_than_jobs_run_at_once(jobs: int) -> None:
    running, most, lock = 0, 0, threading.Lock()
    all_run = threading.Barrier(max(1, jobs))

    def work(host: int, turn: Turn) -> None:
        del host, turn
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_run.wait(60)
        with lock:
            running -= 1

    run_on_hosts({str(index): index for index in range(9)}, work, jobs=jobs)
    assert most == max(1, jobs)


def test_a_failure_and_a_bug_stop_nobody_else() -> None:
    def work(host: str, turn: Turn) -> str:
        del turn
        if host == "fails":
            raise HostError("no room")
        if host == "bug":
            raise KeyError("x")
        return "done"

    results = run_on_hosts({name: name for name in ("fails", "bug", "works")}, work, jobs=1)
    assert isinstance(results["fails"].error, HostError)
    assert results["works"].value == "done"
    assert results["works"].error is None
    error = results["bug"].error
    assert isinstance(error, BugError)
    assert str(error).startswith("bug: hostenv has a bug: KeyError: 'x'")
    assert isinstance(error.bug, KeyError)
    assert error.bug.__notes__ == ["while working on bug"]


def test_a_host_that_hangs_is_given_up_and_the_next_one_starts() -> None:
    ended = threading.Event()

    def work(host: str, turn: Turn) -> str:
        if host == "hangs":
            turn.ends_with(ended.set)
            ended.wait(90)
            raise UnreachableError("closed")
        return "done"

    begun = time.monotonic()
    told: list[Result[str]] = []
    results = run_on_hosts({"hangs": "hangs", "next": "next"}, work, jobs=1, timeout=2, on_result=told.append)
    assert time.monotonic() - begun < 30
    assert str(results["hangs"].error).startswith("hangs: given up after 2 s")
    assert results["next"].value == "done"
    assert ended.wait(30)
    assert [result.name for result in told] == ["hangs", "next"]


def test_an_end_that_is_named_late_is_called_at_once() -> None:
    named, called = threading.Event(), threading.Event()

    def work(host: str, turn: Turn) -> None:
        del host
        turn.given_up.wait(30)
        turn.ends_with(called.set)
        named.set()

    run_on_hosts({"a": "a"}, work, jobs=1, timeout=0.05)
    assert named.wait(30)
    assert called.is_set()


def test_no_hosts_are_no_results() -> None:
    assert run_on_hosts({}, lambda host, turn: (host, turn), jobs=4) == {}


def test_once_it_is_enough_no_further_host_is_started() -> None:
    worked: list[str] = []

    def work(host: str, turn: Turn) -> str:
        del turn
        worked.append(host)
        return host

    results = run_on_hosts(
        {name: name for name in "abcd"}, work, jobs=1, enough=lambda result: result.value == "b"
    )
    assert list(results) == worked == ["a", "b"]


def test_after_an_interrupt_the_work_has_a_moment_to_leave_things_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "_GRACE", 30.0)  # for a slow machine; the work takes a tenth of a second
    ended = threading.Event()

    def work(host: str, turn: Turn) -> None:
        if host == "interrupts":
            raise HostError("first")
        turn.given_up.wait(30)
        time.sleep(0.1)
        ended.set()

    def interrupt(result: Result[None]) -> None:
        raise KeyboardInterrupt(result.name)

    hosts = {name: name for name in ("waits", "interrupts")}
    with pytest.raises(KeyboardInterrupt):
        run_on_hosts(hosts, work, jobs=2, on_result=interrupt)
    assert ended.is_set()


def test_where_no_thread_can_be_started_that_is_raised_and_the_work_that_runs_is_put_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stack larger than any address space is what the system cannot give."""
    monkeypatch.setattr(fleet, "_GRACE", 30.0)
    before = threading.stack_size()
    ended = threading.Event()

    def work(host: str, turn: Turn) -> None:
        if host == "waits":
            turn.given_up.wait(60)
            time.sleep(0.1)
            ended.set()

    def ask_for_too_much(result: Result[None]) -> None:
        assert result.name == "ends"
        monkeypatch.setattr(fleet, "_STACK", 1 << 50)

    hosts = {name: name for name in ("waits", "ends", "cannot start")}
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_on_hosts(hosts, work, jobs=2, on_result=ask_for_too_much)
    assert ended.is_set()
    assert threading.stack_size() == before


def test_an_end_is_called_where_no_thread_can_be_started_for_it() -> None:
    called = threading.Event()
    turn = fleet.Turn("a")
    turn.ends_with(called.set)
    before = threading.stack_size(1 << 50)
    try:
        turn.give_up()
    finally:
        threading.stack_size(before)
    assert called.is_set()
