"""Distributions that might be laid over another environment: of an environment that works, or of wheels.

Told is what a judge needs of them, as if they lay there: METADATA, objects, GPU code, operators. Nothing is
written: of a wheel one member at a time is unpacked, in memory.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from hostenv.agent import distinfo, opschemas, pysource, regular, siteparts
from hostenv.agent.amounts import megabytes
from hostenv.agent.excerpts import Excerpts
from hostenv.agent.objects import environment_at
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.wire import Wire

_LARGEST_TEXT = 1 << 16
_PIECE = 1 << 20
_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(.+)")
_AVAILABLE = re.compile(rb"^MemAvailable:\s*(\d+) kB", re.MULTILINE)


class UnreadError(Exception):
    """A wheel that cannot be looked into here; ``str()`` says why."""


def excerpts(wire: Wire, *, venv: str, paths: Sequence[str], package: str = "torch") -> Dict[str, Any]:
    """Send excerpts of objects of an environment; ``paths`` are relative to its ``site-packages``.

    Returns ``excerpts`` (path, size in bytes, ``parts`` as offset and size, ``gpu`` as ``abi.gpu_code``
    tells), their bytes before it as bulk data; with objects of ``package`` its ``version.py``, too.
    """
    place = environment_at(venv)
    found = Excerpts()
    for path in paths:
        descriptor = os.open(os.path.join(place.site, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found.add(descriptor, path)
        finally:
            os.close(descriptor)
    if any(path.startswith(f"{package}/") for path in paths):
        version = f"{package}/version.py"  # says to the simulation what its import opens
        with contextlib.suppress(OSError):
            found.add_text(version, regular.read(os.path.join(place.site, version), _LARGEST_TEXT))
    found.send(wire)
    return {"excerpts": found.described}


def wheels(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire,
    *,
    paths: Sequence[str],
    namespaces: Mapping[str, Sequence[str]],
    kernels: Sequence[str],
    called: Sequence[str],
    makers: Sequence[str],
) -> Dict[str, Any]:
    """Send excerpts of the objects of wheels, and tell what else the wheels hold; see :func:`read_wheels`."""
    found = Excerpts()
    told = read_wheels(paths, found, namespaces=namespaces, kernels=kernels, called=called, makers=makers)
    found.send(wire)
    return told


def read_wheels(  # noqa: PLR0913  what the two sides of an operator's call are read from
    paths: Sequence[str],
    found: Excerpts,
    *,
    namespaces: Mapping[str, Sequence[str]],
    kernels: Sequence[str],
    called: Sequence[str],
    makers: Sequence[str],
) -> Dict[str, Any]:
    """Return ``wheels``, one entry a path, and the ``excerpts`` of their objects; the bytes are in ``found``.

    A wheel's own excerpts are those from the first to before the second of its ``excerpts``. ``namespaces``,
    ``kernels``: as ``site.look`` takes them; ``called``: operators that sources call; ``makers``:
    distributions that register some, whose sources and users' sources are read. A wheel that cannot be
    looked into has ``unread`` instead of its parts.
    """
    told: List[Dict[str, Any]] = []
    for path in paths:
        first = len(found.described)
        try:
            with zipfile.ZipFile(path) as archive:
                wheel = _Wheel(archive).tell(found, namespaces, kernels, called, makers)
                told.append({**wheel, "excerpts": [first, len(found.described)]})
        except (UnreadError, AgentError) as error:
            told.append({"unread": str(error)})
        except (OSError, zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError) as error:
            told.append({"unread": f"not a readable wheel: {error}"})
    return {"wheels": told, "excerpts": found.described}


class _Wheel:
    """An open wheel: its members by their place in ``site-packages``."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members: Dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            if not member.is_dir():
                moved = _DATA.fullmatch(member.filename)
                self._members[moved.group(1) if moved else member.filename] = member
        folders = {
            path.partition("/")[0]
            for path in self._members
            if path.count("/") == 1 and path.endswith(".dist-info/METADATA")
        }
        if len(folders) != 1:
            message = f"it has {len(folders)} .dist-info folders, not one"
            raise UnreadError(message)
        self._info = folders.pop()
        self._metadata = distinfo.headers(self._text("METADATA"))

    def tell(
        self,
        found: Excerpts,
        namespaces: Mapping[str, Sequence[str]],
        kernels: Sequence[str],
        called: Sequence[str],
        makers: Sequence[str],
    ) -> Dict[str, Any]:
        """Return the distribution, its objects, and both sides of its operators."""
        objects: List[Dict[str, Any]] = []
        registered: Dict[str, Dict[str, Any]] = {}
        for path in sorted(self._members):
            if not (".so" in path and siteparts.OBJECT_NAME.search(path.encode())):
                continue
            objects.append({"path": path, "size": self._members[path].file_size})
            with self._in_memory(path) as descriptor:
                found.add(descriptor, path)
                for name in _spaces(path, namespaces):
                    said = opschemas.read(f"/proc/self/fd/{descriptor}", called)
                    entry = {"schemas": said.schemas, "bare": said.bare, "unread": None}
                    registered.setdefault(name, {})[path] = entry
        version = "torch/version.py"
        if version in self._members:
            with self._archive.open(self._members[version]) as file:
                found.add_text(version, file.read(_LARGEST_TEXT))
        distribution = self._distribution()
        name = distinfo.normalised(distribution["name"])
        of_kernels = bool(registered) or name in makers or bool(self._required() & {*makers})
        return {
            "distribution": distribution,
            "objects": objects,
            "operators": {
                "makers": [name] if registered else [],
                "registered": registered,
                **self._sources(f"{name}=={distribution['version']}", namespaces, kernels, wanted=of_kernels),
            },
        }

    def _distribution(self) -> Dict[str, Any]:
        wheel = distinfo.headers(self._text("WHEEL"))
        stem = self._info[: -len(".dist-info")].partition("-")
        return {
            "name": self._metadata.get("Name", [stem[0]])[0],
            "version": self._metadata.get("Version", [stem[2]])[0],
            "info": self._info,
            "requires": list(dict.fromkeys(self._metadata.get("Requires-Dist", []))),
            "requires_python": self._metadata.get("Requires-Python", [None])[0],
            "extras": self._metadata.get("Provides-Extra", []),
            "tags": wheel.get("Tag", []),
            "entry_points": distinfo.entry_points(self._text("entry_points.txt")),
            "files": len(self._members),
        }

    def _required(self) -> Set[str]:
        names = (re.match(r"\s*([A-Za-z0-9._-]+)", line) for line in self._metadata.get("Requires-Dist", []))
        return {distinfo.normalised(name.group(1)) for name in names if name}

    def _sources(
        self, owner: str, namespaces: Mapping[str, Sequence[str]], kernels: Sequence[str], *, wanted: bool
    ) -> Dict[str, Any]:
        """Return what sources call and bind, where somebody has to do with operators."""
        sources: Dict[str, Any] = {}
        unread: Dict[str, str] = {}
        exports: Dict[str, Optional[List[str]]] = {}
        modules = [path for path in sorted(self._members) if path.endswith(".py")] if wanted else []
        for path in modules:
            with self._in_memory(path) as descriptor:
                place = f"/proc/self/fd/{descriptor}"
                said = pysource.read(place, namespaces, kernels)
                if path in {f"{name}/__init__.py" for name in kernels}:
                    exports[posixpath.dirname(path)] = pysource.exports(place)
            if isinstance(said, str):
                unread[path] = said
            elif said:
                sources[path] = {**said, "owner": owner}
        return {
            "sources": sources,
            "unread": unread,
            "exports": exports,
            "modules": [path for path in modules if path.partition("/")[0] in kernels],
        }

    def _text(self, name: str) -> str:
        member = self._members.get(f"{self._info}/{name}")
        if member is None:
            return ""
        with self._archive.open(member) as file:
            return file.read(4 << 20).decode("utf-8", "surrogateescape")

    @contextlib.contextmanager
    def _in_memory(self, path: str) -> Iterator[int]:
        """Have one member as an open file in memory. Raises :class:`UnreadError` where it is too large."""
        member = self._members[path]
        room = _available() // 2
        if member.file_size > room:
            message = f"{path} has {megabytes(member.file_size)}: too much for this machine's memory"
            raise UnreadError(message)
        descriptor = os.memfd_create("hostenv-member")
        try:
            with self._archive.open(member) as source:
                while True:
                    piece = memoryview(source.read(_PIECE))
                    if not piece:
                        break
                    while piece:
                        piece = piece[os.write(descriptor, piece) :]
            yield descriptor
        finally:
            os.close(descriptor)


def _spaces(path: str, namespaces: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, patterns in namespaces.items():
        if any(re.fullmatch(each, path) for each in patterns):
            yield name


def _available() -> int:
    """Return the bytes of memory that the kernel says can be had; all where it does not say."""
    try:
        found = _AVAILABLE.search(regular.read("/proc/meminfo", _LARGEST_TEXT))
    except OSError:
        found = None
    return int(found.group(1)) * 1024 if found else 1 << 62
