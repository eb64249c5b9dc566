"""One environment on a host as ``match`` reads it, told in as little as is needed.

Nothing is written on the host. A look is answered from, in this order: what the controller remembers of the
very same stats (one walk, no file is opened), the stat cache that a build keeps, the one that the controller
sends, the bytes. What a look has found stays in memory for the questions that follow it.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat as modes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

from hostenv.agent import pyvenv, record, statcache, tree, walk
from hostenv.agent.folders import Folders
from hostenv.agent.layout import OWN, Layout, machine_id, read_json
from hostenv.agent.statcache import StatCache
from hostenv.agent.wire import PIECE, AgentError, Wire

if TYPE_CHECKING:
    from hostenv.agent.distinfo import Distribution
    from hostenv.agent.tree import Tree


@dataclass
class _Held:
    """What a look left for later questions."""

    looked: Tree
    fresh: StatCache


_held: Dict[str, _Held] = {}


def look(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire,
    *,
    root: str,
    path: Optional[str] = None,
    seen: Optional[str] = None,
    rehash: bool = False,
    cached: bool = False,
) -> Dict[str, Any]:
    """Return where an environment lies, what it keeps of its making, and its summary.

    ``path`` is a folder, or the id of a build under ``root``; without it the current build is meant. ``seen``
    is the ``stat`` of an earlier answer: where it holds still there is no ``summary``. ``cached`` says that
    a packed stat cache follows as bulk data; an answer with ``wanted`` asks for it, and has no summary.
    ``stat`` is ``None`` where it must not be trusted later, ``rehash`` reads every byte.
    """
    known = StatCache.unpack(b"".join(wire.data())) if cached else StatCache()
    real, build = locate(root, path)
    moment = time.time_ns()
    with tree.without_collector():
        walked = walk.walk(os.fsencode(real))
        told: Dict[str, Any] = {
            "path": real,
            "build": build,
            "machine_id": machine_id(),
            "interpreter": pyvenv.describe(real),
            "stat": stat_digest(real, walked, moment),
            "site": next(iter(pyvenv.site_packages(real)), None),
            "kept": _kept(real) if build else None,
            "wanted": False,
            "summary": None,
        }
        if rehash:
            known = StatCache()
        elif seen and seen == told["stat"]:
            return told
        else:
            known.learn(StatCache.load(os.path.join(real, OWN, "stat")))
            if seen and not cached and not known.digests:
                return {**told, "wanted": True}
        looked, fresh = tree.examine(real, walked, known, moment, _progress(wire))
        _held[real] = _Held(looked, fresh)
        return {**told, "summary": looked.summary(looked.canonical())}


def find(wire: Wire, *, root: str, path: Optional[str] = None) -> Dict[str, Any]:
    """Return where the environment lies that :func:`look` would look at, and the machine's id."""
    del wire
    real, build = locate(root, path)
    return {"path": real, "build": build, "machine_id": machine_id()}


def _progress(wire: Wire) -> Any:
    return lambda done: wire.event(phase="manifest", bytes=done)


def locate(root: str, path: Optional[str]) -> Tuple[str, Optional[str]]:
    """Return the real folder of an environment and the build's id where it is one of ``root``'s.

    Raises :class:`AgentError` where there is none: a mistyped path must not have a whole disk read.
    """
    layout = Layout(os.path.expanduser(root))
    hint: Optional[str] = None
    if path is None:
        wanted = os.path.join(layout.current, "env")
        missing = f"nothing is current under {layout.root}"
        astray = layout.astray()
        if astray:
            raise AgentError(astray, hint="nox -s build_env -- HOST mends it", outcome="refused")
    else:
        wanted = os.path.expanduser(path) if path[:1] in {"/", "~"} else layout.build(path)
        hint, missing = "name the folder that holds bin/ and lib/", f"{wanted} is not a virtual environment"
    real = os.path.realpath(wanted)
    if not os.path.exists(os.path.join(real, "pyvenv.cfg")) and not pyvenv.site_packages(real):
        raise AgentError(missing, hint=hint, outcome="refused")
    name = os.path.basename(real)
    is_build = os.path.dirname(real) == os.path.realpath(layout.builds) and name in layout.finished_builds()
    return real, name if is_build else None


def stat_digest(real: str, walked: walk.Walked, moment: int) -> Optional[str]:
    """Return one digest of everything that a walk saw: stats of all files, targets of all links.

    Equal digests mean that no file changed in between, by the stat cache's argument. ``None`` where some
    file is too young for it, or could not be looked at.
    """
    if walked.problems:
        return None
    if not statcache.long_settled(walked.newest, moment):
        keys = [*walked.beside, *(file.key for file in walked.files.values())]
        if not all(statcache.settled(key, moment) for key in keys):
            return None
    content = hashlib.sha256(b"hostenv stat 2\0%s\0%s\0" % ((machine_id() or "").encode(), os.fsencode(real)))
    for folder in sorted(walked.digests):
        content.update(b"d%b\0%b" % (folder, walked.digests[folder]))
    for path in sorted(walked.links):
        content.update(b"l%b\0%b\0" % (path, walked.links[path]))
    return content.hexdigest()


def _kept(real: str) -> Optional[Dict[str, Any]]:
    """Return what a build keeps of its making; ``None`` for one that keeps nothing."""
    facts = read_json(os.path.join(real, OWN, "facts.json"))
    inputs = read_json(os.path.join(real, OWN, "inputs.json"))
    if facts is None or inputs is None:
        return None
    return {
        "fingerprint": facts["tree"]["fingerprint"],
        "inputs": {layer: inputs.get(layer, []) for layer in ("wheels", "series", "overlays")},
        "applied": facts.get("applied", {}),
        "overlaid": facts.get("overlaid", {}),
    }


def manifest(wire: Wire, *, path: str) -> None:
    """Send the manifest that the last look at ``path`` found, compressed by zlib."""
    tree.send(wire, _last_look(path).looked.canonical())


def cache(wire: Wire, *, path: str) -> None:
    """Send the stat cache of the last look at ``path``, for the next one."""
    _send(wire, _last_look(path).fresh.pack())


def kept_manifest(wire: Wire, *, path: str) -> None:
    """Send the manifest that was kept beside the build at ``path`` when it was made."""
    try:
        with open(os.path.join(path, OWN, "manifest.z"), "rb") as file:
            _send(wire, file.read())
    except OSError as error:
        message = f"{path} keeps no manifest: {error.strerror}"
        raise AgentError(message, hint="compare it with another host's instead") from error


def claims(wire: Wire, *, path: str, paths: List[str]) -> Dict[str, Any]:
    """Return the distributions at ``path`` (name → version), and whose each of ``paths`` is.

    ``owners``: path → ``name==version`` → sha256 as RECORD says, in hex, or ``None``. ``beside``: a path
    that nobody owns → the distribution that alone owns the nearest folder above it that anybody owns.
    """
    del wire
    installed = record.installed(path)
    wanted = {each.encode("utf-8", "surrogateescape"): each for each in paths}
    owners: Dict[str, Dict[str, Optional[str]]] = {each: {} for each in paths}
    for distribution in installed:
        for raw in wanted.keys() & distribution.rows.keys():
            digest = distribution.rows[raw].sha256
            owners[wanted[raw]][distribution.key] = digest.hex() if digest else None
    nobodys = [raw for raw, each in wanted.items() if not owners[each]]
    return {
        "versions": {each.key.partition("==")[0]: each.version for each in installed},
        "editable": [each.key.partition("==")[0] for each in installed if each.editable],
        "owners": owners,
        "beside": {wanted[raw]: name for raw, name in _beside(installed, nobodys).items()},
    }


def _beside(installed: List[Distribution], paths: List[bytes]) -> Dict[bytes, str]:
    if not paths:
        return {}
    folders: Dict[bytes, Set[str]] = {}
    for distribution in installed:
        name = distribution.key.partition("==")[0]
        for parent in {posixpath.dirname(row) for row in distribution.rows}:
            for folder in _up_to_site(parent):
                folders.setdefault(folder, set()).add(name)
    found = {}
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in folders:
            folder = posixpath.dirname(folder)
        if len(folders.get(folder, ())) == 1:
            (found[path],) = folders[folder]
    return found


def _up_to_site(folder: bytes) -> Iterator[bytes]:
    """Yield a folder and those above it that can belong to one distribution."""
    while folder and not folder.endswith(b"/site-packages") and folder != b"bin":
        yield folder
        folder = posixpath.dirname(folder)


def texts(wire: Wire, *, path: str, paths: List[str], largest: int) -> Dict[str, Dict[str, Any]]:
    """Return the content of text files below ``path``: ``text``, or ``why`` it is not shown.

    A file above ``largest`` bytes, or with a NUL in it, is no text. No link is followed.
    """
    del wire
    folders = Folders(path)
    try:
        return {each: _text(folders, each, largest) for each in paths}
    finally:
        folders.close()


def _text(folders: Folders, path: str, largest: int) -> Dict[str, Any]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        folder, name = folders.locate(path)
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        return {"text": None, "why": f"cannot be read: {error.strerror}"}
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not modes.S_ISREG(status.st_mode):
            return {"text": None, "why": "is no file"}
        if status.st_size > largest:
            return {"text": None, "why": f"is large: {status.st_size} bytes"}
        content = file.read(largest)
    if b"\0" in content:
        return {"text": None, "why": f"is binary: {status.st_size} bytes"}
    return {"text": content.decode("utf-8", "surrogateescape"), "why": None}


def _last_look(path: str) -> _Held:
    if path not in _held:
        message = f"{path} was not looked at in this connection"
        raise AgentError(message)
    return _held[path]


def _send(wire: Wire, content: bytes) -> None:
    view = memoryview(content)
    for start in range(0, len(view), PIECE):
        wire.send_data(view[start : start + PIECE])
    wire.end_data()
