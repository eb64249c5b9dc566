"""Files by hash on a host: in the root's wheelhouse, or in a filled folder that is only ever read.

A filled folder (``supply.wheelhouse``) holds its files flat, ``FOLDER/NAME``, or by hash,
``FOLDER/SHA256/NAME``. What of it was seen to have the right bytes is remembered under the root.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from hostenv.agent import hashing, statcache
from hostenv.agent.layout import Layout
from hostenv.agent.wheelhouse import ABSENT, PRESENT, WRONG, Wheel, Wheelhouse
from hostenv.agent.wire import AgentError, Wire

_DIGITS = 64
"""Characters of a sha256 in hex."""


class _Candidate(NamedTuple):
    path: str
    key: bytes


def find(
    wire: Wire,
    *,
    root: str,
    wheels: Sequence[Sequence[Any]],
    given: Optional[str] = None,
    remember: bool = True,
) -> List[Dict[str, Optional[str]]]:
    """Say of each file (sha256, name, size) whether it is ``present`` and at which ``path``.

    Else it is ``absent``, or lies in the root's wheelhouse with ``wrong`` bytes. A file in ``given`` with
    other bytes is no use and no harm: it counts as absent. Nothing is written there; without ``remember``,
    nowhere. Raises :class:`AgentError` where ``given`` is no folder.
    """
    del wire
    layout = Layout(root)
    wanted = [Wheel(*wheel) for wheel in wheels]
    house = Wheelhouse(layout.wheelhouse)
    states = house.survey(wanted, remember=remember)
    missing = [wheel for wheel, state in zip(wanted, states) if state != PRESENT]
    elsewhere = (
        _given(layout, os.path.expanduser(given), missing, remember=remember) if given and missing else {}
    )
    return [_told(house, wheel, state, elsewhere) for wheel, state in zip(wanted, states)]


def names(wire: Wire, *, root: str, given: Optional[str] = None) -> List[str]:
    """Return the names of the wheels in the root's wheelhouse and in ``given``, whatever their bytes are."""
    del wire
    folders = [Layout(root).wheelhouse, *([os.path.expanduser(given)] if given else [])]
    found = {name for folder in folders for name in _listed(folder)}
    for folder in folders:
        for below in _listed(folder):
            if len(below) == _DIGITS:
                found.update(_listed(os.path.join(folder, below)))
    return sorted(name for name in found if name.endswith(".whl"))


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def adopt(wire: Wire, *, root: str, wheels: Sequence[Sequence[Any]]) -> None:
    """Note files that landed in the root's wheelhouse, their bytes hashed as they came."""
    del wire
    Wheelhouse(Layout(root).wheelhouse).remember([Wheel(*wheel) for wheel in wheels])


def digest(wire: Wire, *, path: str) -> Optional[str]:
    """Return the sha256 of a regular file in hex, ``None`` where there is none."""
    del wire
    content = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                content.update(piece)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    return content.hexdigest()


def _told(house: Wheelhouse, wheel: Wheel, state: str, elsewhere: Dict[str, str]) -> Dict[str, Optional[str]]:
    if state != PRESENT and wheel.sha256 in elsewhere:
        return {"state": PRESENT, "path": elsewhere[wheel.sha256]}
    if state == PRESENT:
        return {"state": PRESENT, "path": house.path(wheel)}
    return {"state": WRONG if state == WRONG else ABSENT, "path": None}


def _given(layout: Layout, folder: str, wanted: Sequence[Wheel], *, remember: bool) -> Dict[str, str]:
    """Return sha256 → path of the wanted files that the filled folder holds."""
    if not os.path.isdir(folder):
        message = f"{folder} (supply.wheelhouse) is no folder on this host"
        raise AgentError(message, hint="mount it, or take supply.wheelhouse out of the spec")
    name = f".given-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    memory = os.path.join(layout.wheelhouse, name)
    found = {wheel.sha256: _candidates(folder, wheel) for wheel in wanted}
    known = _digests([each for group in found.values() for each in group], memory, remember=remember)
    right: Dict[str, str] = {}
    for sha256, group in found.items():
        for candidate in group:
            if known.get(candidate.key) == bytes.fromhex(sha256):
                right.setdefault(sha256, candidate.path)
    return right


def _candidates(folder: str, wheel: Wheel) -> List[_Candidate]:
    """Return the files that may be the wheel: of its name and, where that is known, its size."""
    found = []
    for path in (os.path.join(folder, wheel.sha256, wheel.filename), os.path.join(folder, wheel.filename)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            key = statcache.key(os.stat(path))
            if wheel.size in (0, statcache.size_of(key)):
                found.append(_Candidate(_resolved(path), key))
    return found


def _resolved(path: str) -> str:
    """Return where a link leads, unless the file there has another name: a wheel's name says what it is."""
    real = os.path.realpath(path)
    return real if os.path.basename(real) == os.path.basename(path) else path


def _digests(candidates: Sequence[_Candidate], memory: str, *, remember: bool) -> Dict[bytes, bytes]:
    """Return key → digest, from what is remembered where it is; the rest is read."""
    moment = time.time_ns()
    cache = statcache.StatCache.load(memory)
    unknown = [each for each in candidates if each.key not in cache.digests]
    jobs = [
        hashing.Job(os.path.realpath(each.path), statcache.size_of(each.key), each.key) for each in unknown
    ]
    fresh = {}
    for job, result in zip(jobs, hashing.examine(jobs)):
        if result.state == hashing.HASHED:
            fresh[job.key] = result.digest
    known = {**cache.digests, **fresh}
    cache.digests.update({key: value for key, value in fresh.items() if statcache.settled(key, moment)})
    if remember and fresh:
        with contextlib.suppress(OSError):
            cache.save(memory)
    return known
