"""Running a program of the host that only reads, with a time limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Mapping, Optional, Sequence

from hostenv.agent.probe.fact import UnknownError
from hostenv.agent.probe.tree import SilentError, Tree

MOST_OUTPUT = 16 << 20
"""Bytes of output that are understood at most."""


class Command:
    """A started program. Many are started at once and collected later: the slowest decides, not the sum.

    Output goes to memory files, so nobody has to read for the program to go on.
    """

    def __init__(self, argv: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> None:
        self.argv = tuple(argv)
        self.shown = " ".join(argv)
        self._started = time.monotonic()
        self._output = os.memfd_create("output")
        self._errors = os.memfd_create("errors")
        try:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                env=dict(os.environ if environment is None else environment, LC_ALL="C"),
                cwd="/",
            )
        except (OSError, ValueError) as error:
            self._close()
            reason = getattr(error, "strerror", None) or str(error)
            raise UnknownError(f"{argv[0]}: cannot be started: {reason}", self.shown) from error

    def result(self, timeout: float) -> str:
        """Return standard output; the limit counts from the start, in seconds.

        A program that hangs is killed and, if it sits in the kernel, left to the end of the agent's group.
        """
        try:
            status = self._process.wait(max(0.05, self._started + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
            self._close()
            raise UnknownError(f"no answer in {timeout:g} s", self.shown) from None
        output, errors = self._text(self._output), self._text(self._errors)
        self._close()
        if status != 0:
            told = (errors.strip() or output.strip() or "no message").splitlines()[0][:300]
            raise UnknownError(f"exit {status}: {told}", self.shown)
        return output

    def _text(self, descriptor: int) -> str:
        if os.fstat(descriptor).st_size > MOST_OUTPUT:
            self._close()
            raise UnknownError(f"printed more than {MOST_OUTPUT >> 20} MiB", self.shown)
        return os.pread(descriptor, MOST_OUTPUT, 0).decode("utf-8", "backslashreplace")

    def _close(self) -> None:
        for descriptor in (self._output, self._errors):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def find(name: str, path: str, tree: Tree) -> Optional[str]:
    """Return the first executable file ``name`` in the folders of ``path``, as execvp would choose it.

    Relative and empty elements are skipped: what they mean depends on a folder that nobody named. So are
    those on a mount that does not answer.
    """
    for folder in path.split(":"):
        candidate = os.path.join(folder, name)
        with contextlib.suppress(SilentError):
            if folder.startswith("/") and tree.is_executable(candidate):
                return candidate
    return None
