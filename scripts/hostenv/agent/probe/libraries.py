"""The libraries that the loader would take for a name, with the versions that they define."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from hostenv.agent import ldcache
from hostenv.agent.elf import ElfFile
from hostenv.agent.elfmodel import EM_AARCH64, EM_X86_64, HIDDEN_VERSION, ElfError
from hostenv.agent.elfsymbols import read_symbols
from hostenv.agent.probe.fact import Json, UnknownError, fact, known, reason_of, unknown
from hostenv.agent.probe.intime import SECONDS, Question, ask

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4")
SYSTEM = (
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgomp.so.1",
    "libnuma.so.1",
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libmlx5.so.1",
    "libz.so.1",
    "libssl.so.3",
    "libcrypto.so.3",
)
_MACHINES = {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}
_DEFAULT = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# What a processor must have for each glibc-hwcaps folder: x86-64 psABI, "Micro-Architecture Levels".
_LEVELS = (
    ("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    ("x86-64-v4", "avx512bw avx512cd avx512dq avx512f avx512vl"),
)
_HOW = "LD_LIBRARY_PATH, /etc/ld.so.cache, default folders"
_SECONDS = 30.0
"""Seconds for the symbols of one library: libcuda's, on a slow processor, beside others."""
_DRIVER_VERSION = re.compile(r"\.so\.(\d{3}\.\d+(?:\.\d+)?)\Z")


class Libraries:
    """Where a process with ``library_path`` (LD_LIBRARY_PATH) would find a library by its name."""

    def __init__(self, tree: Tree, library_path: str, machine: str, flags: Sequence[str]) -> None:
        self._tree = tree
        self._machine = _MACHINES.get(machine, 0)
        self._first = [folder for folder in library_path.split(":") if folder.startswith("/")]
        self._last = [*_DEFAULT, *tree.glob("/usr/lib/*-linux-gnu")]
        self.problem: Optional[str] = None
        try:
            entries = ldcache.parse(tree.bytes("/etc/ld.so.cache"))
            self.cache = ldcache.table(entries, self._machine, hwcaps(flags))
        except OSError as error:
            self.cache, self.problem = {}, reason_of(error)
        except ldcache.CacheError as error:
            self.cache, self.problem = {}, f"/etc/ld.so.cache: {error}"

    def find(self, name: str) -> Optional[Tuple[str, str]]:
        """Return the path that the loader would open for ``name``, and what led there."""
        for folder in self._first:
            if self._tree.exists(f"{folder}/{name}"):
                return f"{folder}/{name}", "LD_LIBRARY_PATH"
        if name in self.cache and self._tree.exists(self.cache[name]):
            return self.cache[name], "/etc/ld.so.cache"
        for folder in self._last:
            if self._tree.exists(f"{folder}/{name}"):
                return f"{folder}/{name}", "default folders"
        return None

    def read(self, names: Sequence[str], *, exports: bool) -> List[Json]:
        """Return one fact a library; with ``exports`` also every symbol that it offers."""
        return ask({"libraries": self.questions(names, exports=exports)})["libraries"]

    def questions(self, names: Sequence[str], *, exports: bool) -> List[Question]:
        """Return the questions after these facts."""
        seconds = _SECONDS if exports else SECONDS

        def question(name: str) -> Question:
            return Question(
                lambda: self._fact(name, exports), lambda reason: unknown(f"{name}: {reason}", _HOW), seconds
            )

        return [question(name) for name in names]

    def _fact(self, name: str, exports: bool) -> Json:  # noqa: FBT001  set by questions()'s keyword
        try:
            found = self.find(name)
        except OSError as error:
            return unknown(f"{name}: {reason_of(error)}", _HOW)
        if found is None:
            if self.problem:
                return unknown(f"not in the default folders, and {self.problem}", _HOW)
            return known({"name": name, "path": None}, _HOW)
        path, how = found
        return fact(f"{how}, {path}", self._read, name, path, exports)

    def _read(self, name: str, path: str, exports: bool) -> Json:  # noqa: FBT001  set by questions()'s keyword
        real = os.path.realpath(self._tree.path(path))
        try:
            with open(real, "rb") as file:
                elf = ElfFile(file.fileno())
                symbols = read_symbols(elf) if exports else None
        except ElfError as error:
            raise UnknownError(error.message, path) from error
        definitions = elf.elf.definitions or {}
        told: Dict[str, Any] = {
            "name": name,
            "path": path,
            "real": real,
            "soname": elf.elf.soname,
            "size": os.stat(real).st_size,
            "driver_version": _driver_version(real) if name in DRIVER else None,
            "versions": sorted(set(definitions.values()) - {elf.elf.soname}),
        }
        if symbols is not None:
            told["exports"] = sorted(
                exported
                for symbol, offer in symbols.offered.items()
                for exported in _exported(os.fsdecode(symbol), offer, definitions)
            )
        return told


def _exported(name: str, offer: Any, definitions: Mapping[int, str]) -> List[str]:
    """Return a symbol as ``nm -D`` writes it: ``name@@VERSION`` by default, ``name@VERSION`` on request."""
    told = []
    for entry in offer if isinstance(offer, tuple) else (offer,):
        version = definitions.get(entry & 0x7FFF)
        if version is None or entry & 0x7FFF == 1:
            told.append(name)
        elif version != name:  # the linker marks each version with a symbol of its name
            told.append(f"{name}{'@' if entry & HIDDEN_VERSION else '@@'}{version}")
    return told


def _driver_version(path: str) -> Optional[str]:
    """Return the version in a driver library's file name; a toolkit's stub has none."""
    match = _DRIVER_VERSION.search(path)
    return match.group(1) if match else None


def hwcaps(flags: Sequence[str]) -> List[str]:
    """Return the glibc-hwcaps folders that the loader searches on this processor, best first."""
    have, found = set(flags), []
    for name, needed in _LEVELS:
        if not have.issuperset(needed.split()):
            break
        found.append(name)
    return found[::-1]


def newest(libraries: List[Json], name: str, prefix: str) -> Optional[str]:
    """Return the newest version with ``prefix`` (``GLIBCXX``) that a library of the answer defines."""
    for each in libraries:
        value = each.get("value")
        if value and value["name"] == name and value["path"]:
            numbers = [version[len(prefix) + 1 :] for version in value["versions"]]
            fitting = [number for number in numbers if re.fullmatch(r"\d+(\.\d+)*", number)]
            wanted = [number for number in fitting if f"{prefix}_{number}" in value["versions"]]
            return max(wanted, key=lambda number: [int(part) for part in number.split(".")], default=None)
    return None
