"""Reading whole distributions of an environment, so that an overlay can be made of them. Reads only."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from hostenv.agent import binaries, bytecode, distinfo, pyvenv, record, tree, walk
from hostenv.agent.statcache import StatCache
from hostenv.agent.tree import text
from hostenv.agent.wire import AgentError, Wire

if TYPE_CHECKING:
    from hostenv.agent.distinfo import Distribution

NOBODY = "-"
_OF_ITS_FILES = re.compile(r"(has no )?(RECORD|METADATA)\b")
"""The problems of a distribution with which it cannot be told whole."""
_SHOWN = 5
_MADE_ANEW = frozenset({"console_scripts", "gui_scripts"})
_NOTES = frozenset({b"INSTALLER", b"REQUESTED", b"direct_url.json", b"uv_cache.json", b"uv_build.json"})
"""Files of a ``.dist-info`` that tell of one installation and not of the distribution."""


def take(
    wire: Wire, *, root: str, names: Sequence[str], paths: Sequence[str] = (), cache: Optional[str] = None
) -> Dict[str, Any]:
    """Describe the distributions that match ``names`` (patterns) and loose files at ``paths``.

    A path is relative to the environment, or to site-packages after ``./``; with a ``/`` at its end it means
    all files below it that no distribution owns.

    Returns ``root`` (its real path), ``python`` and ``arch``, ``distributions`` (name, version), ``files``
    (path relative to the environment, owner, mode, size, sha256), ``links`` (path, owner, target) and
    ``binaries``. A distribution's files are those of its RECORD that are there, and what lies in a folder
    that is its alone. Left out: bytecode under ``__pycache__``, scripts that entry points make, notes of the
    installation. Raises :class:`AgentError` for a name that matches nothing, an editable or a legacy
    installation, a RECORD or METADATA that is missing or wrong, and a file that cannot be read or is of
    another kind.
    """
    real = os.path.realpath(root)
    sites = pyvenv.site_packages(real)
    if len(sites) != 1:
        raise AgentError(f"{root} has {len(sites)} site-packages folders, not one", outcome="input")
    installed = record.installed(real)
    chosen = _chosen(installed, names)
    moment = time.time_ns()
    seen = walk.walk(os.fsencode(real))
    owners = _owners(installed, chosen, seen, os.fsencode(sites[0]))
    _check_described(chosen, owners)
    owners.update(_loose(paths, installed, seen, sites[0]))
    _check_problems(seen, owners)
    seen.files = {path: file for path, file in seen.files.items() if path in owners}
    looked, _ = tree.examine(real, seen, StatCache.load(cache), moment, lambda n: wire.event(bytes=n))
    _check_problems(seen, owners)
    described = pyvenv.describe(real)
    return {
        "root": real,
        "site": sites[0],
        "python": described["python"],
        "arch": described["machine"],
        "distributions": [
            {"name": distinfo.normalised(each.name), "version": each.version, "info": text(each.info)}
            for each in chosen
        ],
        "files": [
            [text(path), owners[path], entry.mode, seen.files[path].size, entry.found.hex()]
            for path, entry in sorted(looked.entries.items())
        ],
        "links": [
            [text(path), owners[path], text(target)]
            for path, target in sorted(seen.links.items())
            if path in owners
        ],
        "binaries": binaries.describe(real, [text(path) for path in sorted(looked.entries)]),
    }


def _chosen(installed: Sequence[Distribution], names: Sequence[str]) -> List[Distribution]:
    """Return the distributions that the patterns match; each must match one, and none may be editable."""
    known = [distinfo.normalised(each.name) for each in installed]
    found: Set[str] = set()
    for pattern in names:
        matched = fnmatch.filter(known, _normalised_pattern(pattern))
        if not matched:
            hint = f"installed: {', '.join(known)}"
            raise AgentError(f"no distribution matches {pattern!r}", hint=hint, outcome="input")
        found.update(matched)
    chosen = [each for each in installed if distinfo.normalised(each.name) in found]
    for each in chosen:
        if each.editable:
            message = f"{each.name} {each.version} is an editable installation: its code lies elsewhere"
            raise AgentError(
                message, hint="install it as a wheel there, or make it a series", outcome="refused"
            )
        if each.info.endswith(b".egg-info"):
            message = f"{each.name} {each.version} is installed the legacy way, without RECORD"
            raise AgentError(message, hint="install it as a wheel there", outcome="refused")
        wrong = [problem for problem in each.problems if _OF_ITS_FILES.match(problem)]
        if wrong:
            raise _incomplete(each, wrong)
    return chosen


def _check_described(chosen: Sequence[Distribution], owners: Mapping[bytes, str]) -> None:
    """Refuse a distribution whose RECORD does not lead to the files that describe it."""
    for each in chosen:
        named = (each.info + b"/METADATA", each.info + b"/RECORD")
        absent = [f"RECORD does not name {text(path)}" for path in named if path not in owners]
        if absent:
            raise _incomplete(each, absent)


def _incomplete(each: Distribution, wrong: Sequence[str]) -> AgentError:
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    lines = "\n".join(f"{text(each.info)}: {line}" for line in (*wrong[:_SHOWN], *more))
    message = f"{each.name} {each.version} does not say which files are its own:\n{lines}"
    return AgentError(message, hint="install it anew there", outcome="refused")


def _normalised_pattern(pattern: str) -> str:
    return pattern.lower().replace("_", "-").replace(".", "-")


def _owners(
    installed: Sequence[Distribution], chosen: Sequence[Distribution], seen: walk.Walked, site: bytes
) -> Dict[bytes, str]:
    """Return path → distribution for every file and link that belongs to a chosen one."""
    there = seen.files.keys() | seen.links.keys()
    recorded = {path for each in installed for path in each.rows}
    folders = _folders(installed, site)
    wanted = {each.key for each in chosen}
    owners: Dict[bytes, str] = {}
    for each in chosen:
        made = _scripts(each)
        name = distinfo.normalised(each.name)
        for path in each.rows.keys() & there:
            if path not in made and not _is_left_out(path):
                owners[path] = name
    for path in there - recorded:
        owner = _alone(path, folders)
        if owner in wanted and not _is_left_out(path):
            owners[path] = owner.partition("==")[0] if owner else NOBODY
    return owners


def _loose(
    paths: Sequence[str], installed: Sequence[Distribution], seen: walk.Walked, site: str
) -> Dict[bytes, str]:
    """Return the files that ``paths`` mean; each must mean one, and none may be a distribution's."""
    recorded = {path: each.key for each in installed for path in each.rows}
    there = seen.files.keys() | seen.links.keys()
    found: Dict[bytes, str] = {}
    for path in paths:
        plain = (f"{site}/{path[2:]}" if path.startswith("./") else path).encode("utf-8", "surrogateescape")
        if plain in recorded:
            message = f"{path} is a file of {recorded[plain]}: take that as a whole"
            raise AgentError(message, outcome="input")
        if plain.endswith(b"/"):
            meant = [
                each for each in there - recorded.keys() if each.startswith(plain) and not _is_left_out(each)
            ]
        else:
            meant = [plain] if plain in there else []
        if not meant:
            raise AgentError(f"{path}: no file there that nobody owns", outcome="input")
        found.update((each, NOBODY) for each in meant)
    return found


def _folders(installed: Iterable[Distribution], site: bytes) -> Mapping[bytes, Set[str]]:
    """Return for each folder below site-packages the distributions that have files in or below it."""
    found: Dict[bytes, Set[str]] = {}
    for each in installed:
        for path in each.rows:
            folder = posixpath.dirname(path)
            while folder.startswith(site + b"/") and each.key not in found.setdefault(folder, set()):
                found[folder].add(each.key)
                folder = posixpath.dirname(folder)
    return found


def _alone(path: bytes, folders: Mapping[bytes, Set[str]]) -> Optional[str]:
    """Return whose the nearest known folder above ``path`` is, if it is one distribution's alone."""
    folder = posixpath.dirname(path)
    while folder and folder not in folders:
        folder = posixpath.dirname(folder)
    owners = folders.get(folder, set())
    return next(iter(owners)) if len(owners) == 1 else None


def _scripts(each: Distribution) -> FrozenSet[bytes]:
    """Return the paths of the scripts that an installer makes of the entry points."""
    return frozenset(
        b"bin/" + line.partition("=")[0].strip().encode("utf-8", "surrogateescape")
        for group in _MADE_ANEW
        for line in each.entry_points.get(group, ())
    )


def _is_left_out(path: bytes) -> bool:
    folder, _, name = path.rpartition(b"/")
    return bytecode.source_of(path) is not None or (name in _NOTES and folder.endswith(b".dist-info"))


def _check_problems(seen: walk.Walked, owners: Mapping[bytes, str]) -> None:
    """Refuse where a file that is to be taken cannot be: a device, a link out of the tree, no permission."""
    folders = {posixpath.dirname(path) for path in owners}
    problems: List[Tuple[bytes, str]] = [
        (path, reason)
        for path, reason in seen.problems
        if path in owners or posixpath.dirname(path) in folders
    ]
    if problems:
        lines = "\n".join(f"{text(path)} {reason}" for path, reason in sorted(problems))
        raise AgentError(f"what cannot be taken:\n{lines}", outcome="refused")
