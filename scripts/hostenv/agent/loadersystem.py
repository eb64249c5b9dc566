"""What an interpreter's loader takes from its machine: default folders, cache, processor, glibc."""

from __future__ import annotations

import itertools
import os
import re
from typing import Dict, FrozenSet, List, Mapping, Tuple

from hostenv.agent import ldcache
from hostenv.agent.elfmodel import (
    EM_AARCH64,
    EM_X86_64,
    Elf,
)
from hostenv.agent.loadermodel import System

CACHE = "/etc/ld.so.cache"
PRELOAD = "/etc/ld.so.preload"
_FOLDERS = re.compile(rb"(?:/[\w.+-]+(?:/[\w.+-]+)*/\0){2,8}")
_VERSION = re.compile(rb"release version (\d+)\.(\d+)")
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3", "pni"})
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_NEWEST_WITH_LEGACY = (2, 36)
_LEGACY_LIMIT = 64 << 20


def system_of(interpreter: Elf, environment: Mapping[str, str], cwd: str = "/") -> System:
    """Return the settings under which the loader of the program ``interpreter`` works on this machine."""
    loader = _bytes(interpreter.interpreter or "")
    features = processor_features()
    folders = default_folders(loader, interpreter.machine)
    level = isa_level(features) if interpreter.machine == EM_X86_64 else 0
    hwcaps = hwcaps_folders(level)
    cache = ldcache.table(_cache(), interpreter.machine, hwcaps)
    glibc = _glibc(loader, cache.get("libc.so.6", ""))
    platform = _platform(interpreter.machine, features)
    return System(
        machine=interpreter.machine,
        folders=folders,
        cache=cache,
        glibc=glibc,
        subfolders=(*(f"glibc-hwcaps/{name}/" for name in hwcaps), *_legacy(platform, features, glibc), ""),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        isa=(1 << level) - 1,
        library_path=environment.get("LD_LIBRARY_PATH", ""),
        preload=" ".join(
            (environment.get("LD_PRELOAD", ""), os.fsdecode(_bytes(PRELOAD)).replace("\n", " "))
        ),
        lib=re.sub("^/(usr/)?|/$", "", folders[0]) if folders else "lib",
        platform=platform,
        cwd=cwd,
    )


def default_folders(loader: bytes, machine: int) -> Tuple[str, ...]:
    """Return the folders compiled into a loader: the run of zero-terminated folder names that it holds."""
    for match in _FOLDERS.finditer(loader):
        folders = tuple(os.fsdecode(name) for name in match.group().split(b"\0") if name)
        if all("lib" in folder for folder in folders):
            return folders
    multiarch = {EM_X86_64: "x86_64-linux-gnu", EM_AARCH64: "aarch64-linux-gnu"}.get(machine)
    return (f"/lib/{multiarch}/", f"/usr/lib/{multiarch}/", "/lib/", "/usr/lib/")


def processor_features(path: str = "/proc/cpuinfo") -> FrozenSet[str]:
    """Return the flags of the first processor."""
    for line in os.fsdecode(_bytes(path)).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def isa_level(features: FrozenSet[str]) -> int:
    """Return the x86-64 level (1 to 4) that the flags reach."""
    level = 1
    for needed in (_V2, _V3, _V4):
        if not needed <= features:
            break
        level += 1
    return level


def hwcaps_folders(level: int) -> List[str]:
    """Return the glibc-hwcaps folders for a level, best first."""
    return [f"x86-64-v{number}" for number in range(level, 1, -1)]


def _platform(machine: int, features: FrozenSet[str]) -> str:
    if machine == EM_AARCH64:
        return "aarch64"
    haswell = {"avx2", "bmi1", "bmi2", "abm", "movbe", "popcnt", "fma"}
    return "haswell" if haswell <= features else "x86_64"


def _legacy(platform: str, features: FrozenSet[str], glibc: Tuple[int, int]) -> Tuple[str, ...]:
    """Return the folders that glibc up to 2.36 tries, too: all combinations, as a binary number counts."""
    if glibc > _NEWEST_WITH_LEGACY:
        return ()
    parts = ["tls", platform] if platform == "haswell" else ["tls"]
    if {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= features:
        parts.append("avx512_1")
    parts += ["x86_64"] if platform in {"haswell", "x86_64"} else []
    chosen = itertools.product((True, False), repeat=len(parts))
    return tuple(
        "".join(f"{part}/" for part in itertools.compress(parts, some)) for some in chosen if any(some)
    )


def _cache() -> Tuple[ldcache.Entry, ...]:
    try:
        return ldcache.parse(_bytes(CACHE))
    except ldcache.CacheError:
        return ()


def _glibc(loader: bytes, libc: str) -> Tuple[int, int]:
    """Return the glibc version that the loader (since 2.33) or libc says in its banner."""
    match = _VERSION.search(loader) or _VERSION.search(_bytes(libc))
    return (int(match.group(1)), int(match.group(2))) if match else (2, 17)


def _bytes(path: str) -> bytes:
    """Return a file's first 64 MiB; nothing where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_LEGACY_LIMIT)
    except OSError:
        return b""


def environment_of(pairs: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of an environment that the loader reads."""
    return {name: pairs[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if name in pairs}
