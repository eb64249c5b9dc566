"""Where glibc's loader looks for a name: search paths, their tokens, and the order in which they count.

The rules are those of ``_dl_map_object``, ``fillin_rpath`` and ``_dl_dst_substitute`` in glibc's
``elf/dl-load.c``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Iterator, List, Optional, Sequence, Tuple

from hostenv.agent.elfmodel import DF_1_NODEFLIB

if TYPE_CHECKING:
    from hostenv.agent.loadermodel import Files, Map, System

_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Z_]))")


class Search:
    """The search of one process. ``main`` is set when the program is mapped."""

    def __init__(self, system: System, files: Files) -> None:
        self.main: Optional[Map] = None
        self._system = system
        self._files = files
        self._folders = tuple(_with_slash(folder) for folder in system.folders)
        self._library_path: Tuple[str, ...] = ()

    def begin(self, main: Map) -> None:
        """Take the program, in whose terms LD_LIBRARY_PATH is read."""
        self.main = main
        if self._system.library_path:
            self._library_path = self._split(self._system.library_path, main, ":;")

    def absolute(self, path: str) -> str:
        """Return ``path``, a relative one from the process's working folder."""
        return path if path.startswith("/") else f"{self._system.cwd.rstrip('/')}/{path}"

    def candidates(self, name: str, loader: Optional[Map]) -> Iterator[str]:
        """Yield the paths where ``name`` exists, in the order in which the loader tries them."""
        asking = loader or self.main
        if loader is None or loader.elf.runpath is None:
            seen_main = False
            item = loader
            while item is not None:
                yield from self._below(self._paths(item, "rpath"), name)
                seen_main = seen_main or item.main
                item = item.loader
            if not seen_main and self.main is not None:
                yield from self._below(self._paths(self.main, "rpath"), name)
        yield from self._below(self._library_path, name)
        if loader is not None:
            yield from self._below(self._paths(loader, "runpath"), name)
        defaults = asking is None or not asking.elf.flags_1 & DF_1_NODEFLIB
        cached = self._system.cache.get(name)
        if cached is not None and (defaults or not cached.startswith(self._folders)):
            yield cached
        if defaults:
            yield from self._below(self._folders, name)

    def has_folders(self, loader: Optional[Map]) -> bool:
        """Say whether a search on behalf of ``loader`` tries any folder at all."""
        asking = loader or self.main
        chain: List[Map] = []
        while loader is not None:
            chain.append(loader)
            loader = loader.loader
        return bool(
            asking is None
            or not asking.elf.flags_1 & DF_1_NODEFLIB
            or self._library_path
            or self._paths(asking, "runpath")
            or any(self._paths(item, "rpath") for item in chain)
        )

    def _below(self, folders: Sequence[str], name: str) -> Iterator[str]:
        for folder in folders:
            for sub in self._system.subfolders:
                place = folder + sub
                if self._files.has(self.absolute(place) if place else self._system.cwd, name):
                    yield place + name

    def _paths(self, item: Map, kind: str) -> Tuple[str, ...]:
        """Return the folders of an object's RPATH or RUNPATH, each with its slash."""
        if kind not in item.searches:
            value = item.elf.rpath if kind == "rpath" else item.elf.runpath
            item.searches[kind] = self._split(value, item, ":") if value else ()
        return item.searches[kind]

    def _split(self, value: str, item: Map, separators: str) -> Tuple[str, ...]:
        """Return the folders of a path list (``fillin_rpath``). An empty element is the working folder."""
        found: List[str] = []
        for element in re.split(f"[{separators}]", value):
            folder: Optional[str] = ""
            if element:
                folder = self.expand(element, item)
                if not folder:
                    continue
                folder = _with_slash(folder)
            if folder not in found:
                found.append(folder or "")
        return tuple(found)

    def expand(self, value: str, item: Optional[Map]) -> Optional[str]:
        """Replace ``$ORIGIN``, ``$LIB`` and ``$PLATFORM``; ``None`` where a value is not known."""
        if "$" not in value:
            return value
        values = {"ORIGIN": item.origin if item else "", "LIB": self._system.lib}
        values["PLATFORM"] = self._system.platform
        names = [match.group(1) or match.group(2) for match in _TOKEN.finditer(value)]
        if not all(values[name] for name in names):
            return None
        return _TOKEN.sub(lambda match: values[match.group(1) or match.group(2)], value)


def _with_slash(folder: str) -> str:
    return folder.rstrip("/") + "/"
