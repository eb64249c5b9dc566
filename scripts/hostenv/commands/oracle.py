"""``oracle``: hold the simulated loader against the real one, for developers. Runs the environments' code."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.commands.ended import Ended
from hostenv.errors import InputError
from hostenv.workflows.oracle import compare

if TYPE_CHECKING:
    from rich.console import Console

    from hostenv.workflows.request import Request


def run(request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Compare every environment that the request names, on this machine."""
    del repository
    wrong = 0
    for word in request.hosts:
        venv = pathlib.Path(word).absolute()
        if not (venv / "bin" / "python").exists():
            raise InputError(f"{venv} is no virtual environment: it has no bin/python")
        found = compare(str(venv))
        failing = ", ".join(f"{count} fail {mode}" for mode, count in found.failing.items())
        out.print(
            f"{venv}: {counted(found.objects, 'shared object')}, {failing}: "
            f"{counted(len(found.disagreements), 'disagreement')}"
        )
        for each in found.disagreements:
            out.print(str(each), markup=False, soft_wrap=True)
        wrong += bool(found.disagreements)
    judged = counted(len(request.hosts), "environment")
    failure = f"{wrong} of {judged}: the simulation is wrong" if wrong else None
    return Ended(failure=failure)
