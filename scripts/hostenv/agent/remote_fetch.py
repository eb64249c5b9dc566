"""Fetching on the host itself: the controller's index code, run from memory by an interpreter of the host.

The code comes with the request and never touches the disk. Logins travel on standard input, so that no
command line and no environment shows them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from typing import Any, Dict, List, Sequence

from hostenv.agent.layout import Layout
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer

_BOOT = "import sys;sys.path.insert(0,'/proc/self/fd/%d');from hostenv.index.remote import main;main()"


def reach(wire: Wire, *, places: Sequence[Sequence[Any]], seconds: float = 3.0) -> List[str]:
    """Return why this host does not reach each of ``places`` (name, port); nothing where it does.

    Only a connection is opened. A proxy is not asked: a host behind one counts as unreaching.
    """
    del wire
    faults = []
    for name, port in places:
        try:
            socket.create_connection((name, port), seconds).close()
        except OSError as error:
            faults.append(f"{name}: {error.strerror or error}")
    return faults


def fetch(wire: Wire, *, root: str, who: Dict[str, Any], python: str, request: Dict[str, Any]) -> None:
    """Bring files into the root's wheelhouse with the code that follows the request (a zip file).

    ``request`` is what :mod:`hostenv.index.remote` reads. Its progress becomes events. Raises
    :class:`AgentError` with the cause where a file cannot be had; what has arrived stays.
    """
    code = b"".join(wire.data())
    layout = Layout(root)
    with sole_writer(layout, who) as descriptors:
        memory = os.memfd_create("hostenv-index")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(code)
            argv = (python, "-I", "-S", "-B", "-c", _BOOT % memory)
            _run(wire, argv, {**request, "folder": layout.wheelhouse}, (memory, *descriptors))
        finally:
            os.close(memory)


def _run(wire: Wire, argv: Sequence[str], request: Dict[str, Any], kept: Sequence[int]) -> None:
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=tuple(kept)
    )
    with process:
        if process.stdin is None or process.stdout is None:
            raise AgentError("a process was started without its pipes")
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        ended: Dict[str, Any] = {}
        said: List[str] = []
        for line in process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                said.append(line.decode(errors="replace").rstrip())
                continue
            if "bytes" in told:
                wire.event(**told)
            else:
                ended = told
    if ended.get("error"):
        raise AgentError(ended["error"], hint=ended.get("hint"))
    if not ended:
        raise AgentError("the fetch on the host ended early: " + ("\n".join(said[-8:]) or "nothing said"))
