"""What all tests stand on."""

from __future__ import annotations

import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let more sessions be killed, or one again (test_sync_killed.py), and other numbers of hosts built."""
    parser.addoption("--kills", type=int, default=5, metavar="N", help="kill sessions at N random moments")
    parser.addoption("--kills-seed", type=int, default=1, metavar="N", help="the first of these moments")
    parser.addoption("--hosts", type=int, default=32, metavar="N", help="build on N hosts at once")


@pytest.fixture(scope="session")
def hosts_at_once(pytestconfig: pytest.Config) -> int:
    """On how many hosts is built at once (test_many_hosts.py)."""
    count: int = pytestconfig.getoption("--hosts")
    return count


@pytest.fixture(scope="session")
def kills(pytestconfig: pytest.Config) -> range:
    """The numbers of the random moments at which sessions are killed."""
    first: int = pytestconfig.getoption("--kills-seed")
    return range(first, first + pytestconfig.getoption("--kills"))


def pytest_configure() -> None:
    """Take back signals that whoever started us has ignored: the tests send them to what they start.

    A shell's background job ignores SIGINT, nohup ignores SIGHUP, and children inherit it.
    """
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)
