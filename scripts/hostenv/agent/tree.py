"""The manifest of an environment: every file that matters, its size, mode and digest; one fingerprint.

The canonical form, over which the fingerprint is taken, is a sequence of fields, each ended by a zero byte
(no path holds one): ``hostenv manifest 1``, then in order of the paths' bytes ``f MODE SIZE SHA256 PATH``
for a file (mode octal, digest hexadecimal) and ``l PATH`` followed by the target for a link.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import time
import zlib
from binascii import hexlify
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from hostenv.agent import bytecode, hashing, normal, pyvenv, statcache, walk
from hostenv.agent.statcache import StatCache
from hostenv.agent.wire import PIECE, AgentError, Wire

MAGIC = b"hostenv manifest 1\0"
_LEVEL = 1
"""zlib's: three quarters of the bytes are digests, which do not shrink further."""


class Entry(NamedTuple):
    """A file of the manifest. ``digest`` is sha256 of its normal form, ``found`` of its bytes as they lie."""

    mode: int
    size: int
    digest: bytes
    found: bytes


@dataclass
class Tree:
    """What one look at an environment found; paths are bytes, relative to ``root``."""

    root: str
    entries: Dict[bytes, Entry] = field(default_factory=dict)
    links: Dict[bytes, bytes] = field(default_factory=dict)
    problems: List[Tuple[bytes, str]] = field(default_factory=list)
    left_out: int = 0
    read: int = 0
    """Bytes that had to be read; the rest was known by its stat."""

    def canonical(self) -> bytes:
        """Return the canonical form."""
        pieces = [MAGIC]
        for path in sorted([*self.entries, *self.links]):
            entry = self.entries.get(path)
            if entry:
                pieces.append(b"f %o %d %b %b\0" % (entry.mode, entry.size, hexlify(entry.digest), path))
            else:
                pieces.append(b"l %s\0%s\0" % (path, self.links[path]))
        return b"".join(pieces)

    def summary(self, canonical: bytes) -> Dict[str, Any]:
        """Return the fingerprint and what is told beside it.

        With a problem there is no fingerprint: what could not be read cannot be equal to anything.
        """
        return {
            "fingerprint": None if self.problems else hashlib.sha256(canonical).hexdigest(),
            "interpreter": pyvenv.describe(self.root),
            "files": len(self.entries),
            "links": len(self.links),
            "bytes": sum(entry.size for entry in self.entries.values()),
            "left_out": self.left_out,
            "read": self.read,
            "problems": [{"path": text(path), "reason": reason} for path, reason in sorted(self.problems)],
        }


def text(path: bytes) -> str:
    """Return a path as it travels in JSON: UTF-8, other bytes as surrogate escapes."""
    return path.decode("utf-8", "surrogateescape")


def send(wire: Wire, canonical: bytes) -> None:
    """Send a canonical form as bulk data."""
    packed = memoryview(zlib.compress(canonical, _LEVEL))
    for start in range(0, len(packed), PIECE):
        wire.send_data(packed[start : start + PIECE])
    wire.end_data()


def scan(
    root: str,
    *,
    cache: Optional[str] = None,
    rehash: bool = False,
    progress: Optional[Callable[[int], None]] = None,
) -> Tree:
    """Look at the environment at ``root`` (links to it are followed) and return its tree.

    ``cache`` is the path of a stat cache, read and brought up to date; ``rehash`` reads every byte whatever
    it says. Raises :class:`AgentError` where ``root`` is no folder.
    """
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        raise AgentError(f"{root} is not a folder", hint="name the folder of a virtual environment")
    moment = time.time_ns()
    with without_collector():
        known = StatCache() if rehash else StatCache.load(cache)
        found, fresh = examine(real, walk.walk(os.fsencode(real)), known, moment, progress)
        if cache and (rehash or not fresh.holds(known)):
            fresh.save(cache)
    return found


def examine(
    real: str,
    seen: walk.Walked,
    known: StatCache,
    moment: int,
    progress: Optional[Callable[[int], None]] = None,
) -> Tuple[Tree, StatCache]:
    """Return the tree of what a walk below ``real`` saw, and what the next look may trust.

    Only what ``known`` does not know is read. ``moment`` (``time.time_ns()``) lies before the walk.
    """
    look = _Look(Tree(root=real, links=seen.links, problems=seen.problems), seen.files, known, moment)
    look.take_known()
    look.read_rest(progress)
    look.tree.left_out += seen.left_out
    return look.tree, look.fresh


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Pause the cycle collector: it would look again and again at 75,000 tuples without cycles (0.2 s)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Look:
    """One pass over the files of a walk; gathers the tree and what the next pass may trust."""

    def __init__(self, tree: Tree, files: Dict[bytes, walk.File], known: StatCache, moment: int) -> None:
        self.tree = tree
        self.fresh = StatCache()
        self._files = files
        self._known = known
        self._moment = moment
        self._root = os.fsencode(tree.root)
        self._rest: List[bytes] = []
        self._sources: Dict[bytes, bytes] = {}

    def take_known(self) -> None:
        """Take from the cache what it knows; note the rest for reading. One loop: it runs once a file."""
        digests, fresh, entries = self._known.digests, self.fresh.digests, self.tree.entries
        for path, file in self._files.items():
            if path.endswith(b".pyc") and self._is_paired(path, file):
                continue
            digest = digests.get(file.key)
            if digest is None or path in self._sources:
                self._rest.append(path)
            elif path[-7:] == b"/RECORD" or path[:4] == b"bin/" or path == b"pyvenv.cfg":
                self._enter(path, file, digest, self._known.normal.get(file.key))
            else:
                entries[path] = Entry(file.mode, file.size, digest, digest)
                fresh[file.key] = digest

    def _is_paired(self, path: bytes, file: walk.File) -> bool:
        """Leave bytecode out if it is known to repeat its source; else note the source it may repeat."""
        source = bytecode.source_of(path)
        if source is None or source not in self._files:
            return False
        if file.key + self._files[source].key in self._known.pairs:
            self._leave_out(path, source)
            return True
        self._sources[path] = source
        return False

    def read_rest(self, progress: Optional[Callable[[int], None]]) -> None:
        """Read what the cache did not know."""
        jobs = [self._job(path) for path in self._rest]
        for path, result in zip(self._rest, hashing.examine(jobs, progress=progress)):
            file = self._files[path]
            if result.state == hashing.REPEATS:
                self._leave_out(path, self._sources[path])
            elif result.state == hashing.HASHED:
                self.tree.read += file.size
                self._enter(path, file, result.digest, None)
            else:
                reason = result.reason or "changed while it was read"
                self.tree.problems.append((path, reason))

    def _job(self, path: bytes) -> hashing.Job:
        file = self._files[path]
        source = self._sources.get(path)
        return hashing.Job(
            path=self._full(path),
            size=file.size,
            key=file.key,
            source=None if source is None else self._full(source),
        )

    def _enter(self, path: bytes, file: walk.File, found: bytes, known: Optional[bytes]) -> None:
        """Enter a file whose bytes are known, in its normal form where it has one."""
        digest, size = found, file.size
        if _has_normal_form(path, file.size):
            try:
                digest, size = self._normal(path, file, known)
            except OSError as error:
                self.tree.problems.append((path, f"cannot be read: {error.strerror}"))
                return
        self.tree.entries[path] = Entry(file.mode, size, digest, found)
        if statcache.settled(file.key, self._moment):
            self.fresh.digests[file.key] = found

    def _normal(self, path: bytes, file: walk.File, known: Optional[bytes]) -> Tuple[bytes, int]:
        if known is not None:
            packed = known
        else:
            with open(self._full(path), "rb") as opened:
                content = opened.read()
            plain = _normal_form(path, content, self._root)
            packed = hashlib.sha256(plain).digest() + len(plain).to_bytes(8, "little")
        if not path.startswith(b"bin/") and statcache.settled(file.key, self._moment):
            self.fresh.normal[file.key] = packed  # a script's also depends on where the tree lies
        return packed[:32], int.from_bytes(packed[32:], "little")

    def _leave_out(self, path: bytes, source: bytes) -> None:
        self.tree.left_out += 1
        keys = self._files[path].key, self._files[source].key
        if all(statcache.settled(key, self._moment) for key in keys):
            self.fresh.pairs.add(keys[0] + keys[1])

    def _full(self, path: bytes) -> str:
        return os.fsdecode(self._root + b"/" + path)


def _has_normal_form(path: bytes, size: int) -> bool:
    return (
        path.endswith(b".dist-info/RECORD")
        or path == b"pyvenv.cfg"
        or (path.startswith(b"bin/") and path.count(b"/") == 1 and size <= normal.LARGEST_SCRIPT)
    )


def _normal_form(path: bytes, content: bytes, root: bytes) -> bytes:
    if path == b"pyvenv.cfg":
        return normal.pyvenv(content)
    return normal.script(content, root) if path.startswith(b"bin/") else normal.record(content)
