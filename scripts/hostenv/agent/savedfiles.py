"""The files of another machine: an environment that lies here, over libraries known from saved facts.

A saved library has a name, a path, versions and, where they were saved, exports as ``nm -D`` writes them. One
without exports is present; what it defines is unknown. What it needs itself was not saved.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from hostenv.agent.elfmodel import (
    ET_DYN,
    HIDDEN_VERSION,
    Elf,
    Segment,
)
from hostenv.agent.elfsymbols import Asked, Offer, Symbols
from hostenv.agent.hostfiles import HostFiles
from hostenv.agent.loadermodel import File, Refusal, System

_ABSENT = Refusal("No such file or directory")
_FIRST_VERSION = 2


_GLIBC = re.compile(
    r"(?:lib(?:anl|BrokenLocale|c|dl|m|mvec|nsl|nss_\w+|pthread|resolv|rt|thread_db|util)\.so\.\d|ld-linux-)"
)
_GLIBC_VERSION = re.compile(r"GLIBC_(\d+)\.(\d+)")


class SavedFiles(HostFiles):
    """Below ``here`` the files of this machine; everywhere else what was saved of another."""

    def __init__(
        self,
        libraries: Mapping[str, Any],
        glibc: Sequence[int],
        machine: int,
        here: Sequence[str],
        *,
        gpu: bool,
    ) -> None:
        super().__init__(gpu=gpu)
        self._glibc = (glibc[0], glibc[1])
        self._here = tuple(folder.rstrip("/") + "/" for folder in here)
        self._saved: Dict[str, Union[File, Refusal]] = {}
        self._names: Dict[str, Dict[str, None]] = {}
        for name, path in libraries.get("present") or ():
            self._keep(path, File(("saved", path), _elf(machine, name, ())))
        for fact in libraries["read"]:
            library = fact.get("value")
            if library and library.get("path"):
                self._library(library, machine)

    def keep_loader(self, path: Optional[str]) -> None:
        """Take this machine's copy of the program's loader where the other one's was not saved.

        glibc never drops a versioned symbol, so what an older or equal one offers the other one offers.
        """
        if path is not None and path not in self._saved:
            opened = super().open(path)
            if isinstance(opened, File):
                self._keep(path, opened)

    def open(self, path: str) -> Union[File, Refusal]:
        """Return the file at ``path``."""
        return super().open(path) if path.startswith(self._here) else self._saved.get(path, _ABSENT)

    def has(self, folder: str, name: str) -> bool:
        """Say whether ``folder`` has an entry ``name``."""
        if (folder.rstrip("/") + "/").startswith(self._here):
            return super().has(folder, name)
        folder = folder.rstrip("/")
        names = self._names.get(folder, ())
        if name not in names:
            # The cache has a library's SONAME only; the file behind it (libgomp.so.1.0.0) lies beside it.
            known = next((known for known in names if name.startswith(known + ".")), None)
            if known is None:
                return False
            self._saved[f"{folder}/{name}"] = self._saved[f"{folder}/{known}"]
        return True

    def defines(self, identity: Tuple[Any, ...], asked: Asked, name: bytes) -> Optional[bool]:
        """Say what is known of glibc's own libraries without their exports.

        They define C names only, each under a version that stays for ever: what asks for a version of this
        glibc or an older one is satisfied. (``_ZGV`` are libmvec's vector functions, no C++ names.)
        """
        if not _GLIBC.match(os.path.basename(str(identity[-1]))):
            return None
        if name.startswith(b"_Z") and not name.startswith(b"_ZGV"):
            return False
        version = _GLIBC_VERSION.match(asked.version or "")
        return bool(version and (int(version.group(1)), int(version.group(2))) <= self._glibc) or None

    def _library(self, library: Mapping[str, Any], machine: int) -> None:
        identity = ("saved", library.get("real") or library["path"])
        versions = tuple(library.get("versions") or ())
        exports = library.get("exports")
        if exports is not None:
            versions = versions or _versions(exports)
            self.symbols[identity] = _symbols(exports, versions)
        elf = _elf(machine, library.get("soname") or library["name"], versions)
        self._keep(library["path"], File(identity, elf))

    def _keep(self, path: str, file: File) -> None:
        self._saved[path] = file
        self.files[file.identity] = file
        folder, name = os.path.split(path)
        self._names.setdefault(folder, {})[name] = None


def saved_system(system: System, libraries: Mapping[str, Any], glibc: Sequence[int]) -> System:
    """Return the other machine's settings: ``system`` with its cache, its glibc and no legacy folders."""
    cache = dict(libraries.get("present") or ())
    for fact in libraries["read"]:
        library = fact.get("value")
        if library and library.get("path"):
            cache[library["name"]] = library["path"]
    hwcaps = tuple(item for item in system.subfolders if not item or item.startswith("glibc-hwcaps/"))
    return system._replace(cache=cache, glibc=(glibc[0], glibc[1]), subfolders=hwcaps)


def _elf(machine: int, soname: str, versions: Sequence[str]) -> Elf:
    return Elf(
        bits=64,
        machine=machine,
        type=ET_DYN,
        soname=soname,
        definitions=dict(enumerate(versions, _FIRST_VERSION)) or None,
        segments=(Segment(0, 0, 1, 0),),
        stack=0,
    )


def _versions(exports: Sequence[str]) -> Tuple[str, ...]:
    names = (export.partition("@")[2].lstrip("@") for export in exports)
    return tuple(dict.fromkeys(name for name in names if name))


def _symbols(exports: Sequence[str], versions: Sequence[str]) -> Symbols:
    numbers = {name: number for number, name in enumerate(versions, _FIRST_VERSION)}
    offered: Dict[bytes, List[int]] = {}
    for export in exports:
        name, _, version = export.partition("@")
        entry = numbers.get(version.lstrip("@"), 1)
        if version and not version.startswith("@"):
            entry |= HIDDEN_VERSION
        offered.setdefault(name.encode(), []).append(entry)
    table: Dict[bytes, Offer] = {
        name: entries[0] if len(entries) == 1 else tuple(entries) for name, entries in offered.items()
    }
    return Symbols((), table, versioned=bool(versions))
