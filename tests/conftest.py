"""What all tests stand on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take back signals that whoever started us has ignored: the tests send them to what they start.

    A shell's background job ignores SIGINT, nohup ignores SIGHUP, and children inherit it.
    """
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)
