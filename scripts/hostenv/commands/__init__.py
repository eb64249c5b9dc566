"""The commands: words become a request, a workflow carries it out, its results are shown.

Each module here has ``run(request, repository, out)``: it shows what was done on ``out`` and returns the line
to fail with where something was not.
"""

from __future__ import annotations

import errno
import importlib
from typing import TYPE_CHECKING

from hostenv import arguments
from hostenv.errors import HostenvError
from hostenv.report.findings import check_json, console

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

_MODULES: Mapping[str, str] = {
    "build_env": "hosts",
    "builds": "builds",
    "capture": "overlay",
    "fetch": "hosts",
    "lock": "hosts",
    "match": "match",
    "oracle": "oracle",
    "overlay": "overlay",
    "probe": "probe",
    "prune": "hosts",
    "rollback": "hosts",
    "status": "status",
    "switch": "hosts",
    "sync_patches": "overlay",
    "verify_abi": "verify_abi",
}
"""Session → module, imported when it is asked for: a run that has nothing to do stays quick."""


def run(name: str, words: Sequence[str], repository: pathlib.Path) -> str | None:
    """Carry out a session; return the line to fail with where some host did not get there.

    Raises :class:`~hostenv.errors.HostenvError` for what stops the session before any host.
    """
    out = console()
    try:
        request = arguments.parse(name, words)
    except arguments.HelpRequested as text:
        out.print(str(text), markup=False, soft_wrap=True)
        return None
    if request.json:
        check_json(request.json)
    module = importlib.import_module(f"hostenv.commands.{_MODULES[name]}")
    try:
        failure: str | None = module.run(request, repository, out)
        out.file.flush()
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EPIPE, errno.EIO}:
            raise
        raise HostenvError(
            f"the output cannot be written: {error.strerror}",
            hint="what the session did is done, and stands in --json where that was asked for",
        ) from error
    return failure
