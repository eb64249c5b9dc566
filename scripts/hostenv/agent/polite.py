"""Standing back: this process and its children take processor and disk when nobody else wants them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""The number of ioprio_set(2), which the C library does not wrap: asm/unistd_64.h, asm-generic/unistd.h."""

_WHO_PROCESS = 1
_IDLE = 3 << 13
"""IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0), linux/ioprio.h."""

_NICEST = 19


def stand_back() -> None:
    """Give this thread, and all that it starts from here on, the lowest priority; there is no way back.

    ``nice`` 19 and the idle I/O class (ioprio_set(2)). Where a container forbids the class, niceness is what
    remains; a kernel without an I/O scheduler for the disk ignores the class, too.
    """
    os.nice(_NICEST)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        with contextlib.suppress(AttributeError):  # no syscall() in this C library
            ctypes.CDLL(None, use_errno=True).syscall(number, _WHO_PROCESS, 0, _IDLE)
