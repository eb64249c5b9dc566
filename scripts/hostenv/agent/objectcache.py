"""The answer of the last judgement, kept with the state of all that it rests on.

A folder's listing holds as long as its mtime does, a file's facts as long as device, inode, size, mtime and
ctime do. What changed within the clock's last tick before the reading may change again unseen, so an answer
that rests on it is not kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional

from hostenv.agent import loadersystem

if TYPE_CHECKING:
    from hostenv.agent.hostfiles import HostFiles
    from hostenv.agent.preload import Environment

TICK = 50_000_000
"""Nanoseconds within which two changes may carry one time: more than any kernel's tick."""

_MODULES = (
    "binding companions elf elfmodel elfshort elfsymbols elfversions fatbin gpucode hostfiles ldcache loader "
    "loaderchecks loadermodel loadersearch loadersystem objectowners objects preload reading savedfiles "
    "verdicts"
)
State = Optional[List[int]]


def key(
    place: Environment,
    settings: Mapping[str, str],
    package: str,
    *,
    gpu: bool,
    host: Optional[Mapping[str, Any]],
) -> List[Any]:
    """Return what else an answer depends on: the question, the processor and this code."""
    features = sorted(loadersystem.processor_features())
    saved = zlib.crc32(json.dumps(host, sort_keys=True).encode()) if host else None
    processor = zlib.crc32(repr(features).encode())
    return [list(place), sorted(settings.items()), package, gpu, saved, processor, _code()]


def load(path: str, wanted: List[Any]) -> Optional[Dict[str, Any]]:
    """Return the answer that is kept at ``path`` where everything that it rests on is as it was."""
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        if kept["key"] != json.loads(json.dumps(wanted)):
            return None
        if all(_state(item) == state for item, state in kept["states"].items()):
            return dict(kept["answer"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


class Watch:
    """Collects what an answer rests on."""

    def __init__(self) -> None:
        self._started = time.time_ns()
        self._paths: Dict[str, None] = {}

    def add(self, files: HostFiles, place: Environment, folders: Iterable[str]) -> None:
        """Note the files that were opened and the folders that were listed."""
        own = [loadersystem.CACHE, loadersystem.PRELOAD, os.path.join(place.site, "torch", "version.py")]
        for group in (own, folders, files.folders, files.paths, [place.standard]):
            self._paths.update(dict.fromkeys(group))

    def save(self, path: str, wanted: List[Any], answer: Mapping[str, Any]) -> None:
        """Keep the answer at ``path``, whole or not at all; not where something changed just now."""
        states = {item: _state(item) for item in self._paths}
        newest = max((max(state[3:]) for state in states.values() if state), default=0)
        if newest >= self._started - TICK:
            return
        partial = f"{path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(partial, "w", encoding="utf-8") as file:
                json.dump({"key": wanted, "states": states, "answer": answer}, file, separators=(",", ":"))
            os.replace(partial, path)
        except OSError:
            return


def _state(path: str) -> State:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _code() -> int:
    """Return a checksum over the modules that judge."""
    checksum = 0
    for name in _MODULES.split():
        module = sys.modules.get(f"hostenv.agent.{name}")
        loader = getattr(module, "__loader__", None)
        if module is not None and loader is not None and module.__file__:
            checksum = zlib.crc32(loader.get_data(module.__file__), checksum)
    return checksum
