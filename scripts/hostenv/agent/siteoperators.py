"""What Python sources of an environment call in native code, and what its objects register."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Sequence, Set

from hostenv.agent import distinfo, opschemas, pysource
from hostenv.agent.child import Shared, dealt
from hostenv.agent.tree import text

if TYPE_CHECKING:
    from hostenv.agent.distinfo import Distribution

_REQUIRED = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_PLUGINS = "sglang.srt.plugins"


class Operators:
    """Both sides of calls into the namespaces asked for.

    Parsing sources takes longer than all else that is read of an environment: a second process begins with
    it at once, and :meth:`facts` does the rest. To be closed.
    """

    def __init__(  # noqa: PLR0913  what was walked, read and asked for
        self,
        root: bytes,
        site: bytes,
        *,
        files: Iterable[bytes],
        installed: List[Distribution],
        namespaces: Mapping[str, Sequence[str]],
        kernels: Sequence[str],
    ) -> None:
        self._prefix = site + b"/"
        self._base = os.fsdecode(root + b"/" + self._prefix)
        self._kernels = kernels
        self._within = [text(path[len(self._prefix) :]) for path in files if path.startswith(self._prefix)]
        self._objects = self._found(namespaces)
        objects = [os.fsencode(path) for paths in self._objects.values() for path in paths]
        self._makers = _makers(installed, [self._prefix + path for path in objects])
        self._sources = _sources(installed, self._makers, self._prefix) if self._objects else {}
        self._groups = dealt(sorted(self._sources))
        self._reading = Shared(self._groups, self._read)

    def close(self) -> None:
        """Leave no process behind."""
        self._reading.close()

    def facts(self) -> Dict[str, Any]:
        """Return what :class:`hostenv.facts.operators.Operators` reads."""
        sources: Dict[str, Any] = {}
        unread: Dict[str, str] = {}
        for said in self._reading.results():
            for path, each in said.items():
                if isinstance(each, str):
                    unread[path] = each
                else:
                    sources[path] = each
        called = {call[1] for said in sources.values() for call in said["calls"]}
        there = set(self._within)
        return {
            "makers": sorted(self._makers),
            "sources": {path: sources[path] for path in sorted(sources)},
            "unread": {path: unread[path] for path in sorted(unread)},
            "registered": {
                name: {path: _registered(self._base + path, called) for path in paths}
                for name, paths in self._objects.items()
            },
            "exports": {
                name: pysource.exports(os.path.join(self._base, name, "__init__.py"))
                for name in self._kernels
                if f"{name}/__init__.py" in there
            },
            "modules": sorted(
                path
                for path in self._within
                if path.endswith(".py") and path.partition("/")[0] in self._kernels
            ),
        }

    def _found(self, namespaces: Mapping[str, Sequence[str]]) -> Dict[str, List[str]]:
        """Return the objects of each namespace, where it has any."""
        found = {}
        for name, patterns in namespaces.items():
            wanted = re.compile("|".join(f"(?:{each})" for each in patterns) or r"(?!)")
            paths = [path for path in self._within if wanted.fullmatch(path)]
            if paths:
                found[name] = sorted(paths)
        return found

    def _read(self, paths: Sequence[bytes]) -> Dict[str, Any]:
        """Return what each of some sources says, or why it cannot be read."""
        found: Dict[str, Any] = {}
        for path in paths:
            name = text(path[len(self._prefix) :])
            said = pysource.read(self._base + name, self._objects, self._kernels)
            if said is not None:
                found[name] = said if isinstance(said, str) else {**said, "owner": self._sources[path]}
        return found


def _registered(path: str, called: Set[str]) -> Dict[str, Any]:
    try:
        found = opschemas.read(path, called)
    except OSError as error:
        return {"schemas": [], "bare": [], "unread": f"cannot be read: {error.strerror}"}
    return {"schemas": found.schemas, "bare": found.bare, "unread": None}


def _makers(installed: List[Distribution], objects: Iterable[bytes]) -> Set[str]:
    wanted = set(objects)
    return {distinfo.normalised(each.name) for each in installed if wanted & each.rows.keys()}


def _sources(installed: List[Distribution], makers: Set[str], prefix: bytes) -> Dict[bytes, str]:
    """Return the sources of kernels, of those that require one, and of SGLang's plugins: path → owner."""
    paths: Dict[bytes, str] = {}
    for each in installed:
        needs = {_required(line) for line in each.metadata.get("Requires-Dist", [])}
        if distinfo.normalised(each.name) in makers or needs & makers or _PLUGINS in each.entry_points:
            rows = [path for path in each.rows if path.endswith(b".py") and path.startswith(prefix)]
            paths.update(dict.fromkeys(rows, each.key))
    return paths


def _required(line: str) -> str:
    found = _REQUIRED.match(line)
    return distinfo.normalised(found.group(1)) if found else ""
