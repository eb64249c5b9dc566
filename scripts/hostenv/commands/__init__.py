"""The commands: words become a request, a workflow carries it out, its results are shown.

Each module here has ``run(request, repository, out)``: it shows what was done on ``out``, and returns how it
ended; and ``error_document(error)``, what ``--json`` writes of an error that stops it before any host, where
``run`` does not write that itself.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import pathlib
import sys
from typing import TYPE_CHECKING, TextIO

from hostenv import arguments
from hostenv.errors import BugError, HostenvError
from hostenv.machine.here import refused_here
from hostenv.report.findings import check_json, console, printable, to_output, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from rich.console import Console

    from hostenv.commands.ended import Ended
    from hostenv.workflows.request import Request

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

    Raises :class:`~hostenv.errors.HostenvError` for what stops the session before any host, and the bug that
    a host met, once the results of all the others are shown.
    """
    try:
        request = arguments.parse(name, words)
    except arguments.HelpRequested as text:
        console().print(str(text), markup=False, soft_wrap=True)
        return None
    if request.json:
        check_json(request.json)
    out = console(sys.stderr if to_output(request.json) else None)
    module = importlib.import_module(f"hostenv.commands.{_MODULES[name]}")
    try:
        ended = _run(module, request, repository, out)
        out.file.flush()
        sys.stdout.flush()
    except BugError as error:
        raise error.bug from None
    except OSError as error:
        if error.filename is not None or error.errno not in {errno.ENOSPC, errno.EPIPE, errno.EIO}:
            told = refused_here(error)
            if told is None:
                raise
            _write_error(module, request, told)
            raise told from error
        _write_no_more(sys.stdout)
        raise HostenvError(
            f"the output cannot be written: {error.strerror}",
            hint="what the session did is done, and stands in --json where that was asked for",
        ) from error
    for each in ended.errors:
        if isinstance(each, BugError):
            raise each.bug
    return ended.failure


def _run(module: ModuleType, request: Request, repository: pathlib.Path, out: Console) -> Ended:
    """Carry a session out; what stops it before any host becomes its document, too."""
    try:
        ended: Ended = module.run(request, repository, out)
    except HostenvError as error:
        _write_error(module, request, error)
        raise
    return ended


def _write_error(module: ModuleType, request: Request, error: HostenvError) -> None:
    """Write the error where ``--json`` asks for it: an old document there would pass for this session's."""
    made = getattr(module, "error_document", None)
    if request.json and made and not isinstance(error, BugError):
        with contextlib.suppress(HostenvError):  # where it cannot be written: that is the error
            write_json(made(error), request.json)


def shown(words: str) -> str:
    """Return an error's lines as a terminal may have them: names and messages come from hosts and files."""
    return "\n".join(printable(line) for line in words.split("\n"))


def _write_no_more(stream: TextIO) -> None:
    """Keep what could not be written from being tried again, and told with a traceback, when Python ends.

    (https://docs.python.org/3/library/signal.html#note-on-sigpipe)
    """
    with contextlib.suppress(OSError, ValueError), pathlib.Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())
