"""Looking for interpreters where none can be started: that none is there is not known then."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
PROGRAM = """
import os, resource, sys
from hostenv.agent import interpreters
from hostenv.agent.wire import AgentError

version = "%d.%d" % sys.version_info[:2]
assert interpreters.find(None, version), "there is one"
free = os.open(os.devnull, os.O_RDONLY)
os.close(free)
limit = free + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    print(interpreters.find(None, version))
except AgentError as error:
    print(error.message, error.hint)
"""


@pytest.mark.parametrize("left", [0, 1, 3])
def test_too_many_open_files_is_not_told_as_no_interpreter(left: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(left)],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "could not be started: Too many open files" in done.stdout, done.stderr
    assert "ulimit -n" in done.stdout
