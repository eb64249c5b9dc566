"""A wheel before it is installed: whether it holds what it says, and how much room it takes.

uv leaves out members that would land outside the environment and writes RECORD anew from what it installed,
so that afterwards nothing shows that a wheel was not installed whole.
"""

from __future__ import annotations

import os
import posixpath
import re
import zipfile
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set

from hostenv.agent import recordfile
from hostenv.agent.wire import AgentError, Wire

_OBJECT = re.compile(r"[^/]\.so(\.[^/]+)?\Z")
_SIGNATURES = (".jws", ".p7s")
"""RECORD may name its own signatures, which nobody ships (PEP 427)."""


class Contents(NamedTuple):
    """What was read of a wheel: bytes of its files, and the files that RECORD names and it does not hold."""

    size: int
    absent: List[str]


def read(path: str) -> Contents:
    """Read a wheel's directory and RECORD.

    Raises :class:`AgentError` for what is no wheel, and for members that lead out of the environment.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = {member.filename for member in members}
            outside = sorted(name for name in names if _leads_out(name))
            absent = [] if outside else sorted(set(_absent(archive, names)))
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError) as error:
        message = f"{path}: not a readable wheel: {error}"
        raise AgentError(message, hint="remove it; it is fetched again") from error
    if outside:
        message = f"{posixpath.basename(path)} holds {outside[0]!r}, which leads out of the environment"
        raise AgentError(message, hint="uv would leave it out and say nothing: take another release")
    return Contents(sum(member.file_size for member in members), absent)


def libraries(wire: Wire, *, wheels: Sequence[str], folders: Sequence[str] = ()) -> Dict[str, Any]:
    """Return the ``names`` of all files in ``wheels`` (paths) that look like shared objects.

    ``unread`` are the wheels that are not there, or not readable, by their file names; ``folders`` says the
    same of folders: path → names, none for one that is not there.
    """
    del wire
    names: Set[str] = set()
    unread = []
    for path in wheels:
        try:
            with zipfile.ZipFile(path) as archive:
                names.update(posixpath.basename(name) for name in archive.namelist() if _OBJECT.search(name))
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
            unread.append(posixpath.basename(path))
    listed = {folder: sorted(name for name in _listed(folder) if _OBJECT.search(name)) for folder in folders}
    return {"names": sorted(names), "unread": sorted(unread), "folders": listed}


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/")


def _absent(archive: zipfile.ZipFile, names: Set[str]) -> Iterator[str]:
    for record in names:
        if record.endswith(".dist-info/RECORD") and record.count("/") == 1:
            text = archive.read(record).decode("utf-8", "replace")
            rows, problems = recordfile.fields(text)
            if problems:
                raise ValueError(f"RECORD {problems[0]}")
            yield from (row[0] for row in rows if row[0] not in names and not row[0].endswith(_SIGNATURES))
