"""Opens objects with the real loader, one forked child each. A script for the environment's own Python.

``python dlopen_child.py [PACKAGE]``, paths on standard input, zero-terminated. Writes one JSON object: path →
the loader's message, ``""`` where the object loads, ``"signal N"`` where it kills the child; or, where
``import PACKAGE`` fails, ``{"": message}``. RTLD_NOW, as CPython's import does. Python >= 3.8.
"""

import ctypes
import importlib
import json
import os
import signal
import sys

LONGEST = 60
"""Seconds that one object may take."""


def opened(path: str) -> str:
    """Return what ``dlopen`` says of ``path`` in a child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.alarm(LONGEST)
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            message = ""
        except OSError as error:
            message = str(error)
        os.write(writing, b"." + os.fsencode(message)[:60000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said:
        return os.fsdecode(said[1:])
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def main() -> None:
    """Open all paths of standard input."""
    paths = [os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0") if path]
    answer = sys.stdout.buffer
    try:
        for package in sys.argv[1:]:
            importlib.import_module(package)
    except Exception as error:  # noqa: BLE001  whatever the import raises is the answer
        answer.write(json.dumps({"": f"{type(error).__name__}: {error}"}).encode())
        return
    answer.write(json.dumps({path: opened(path) for path in paths}).encode())


if __name__ == "__main__":
    main()
