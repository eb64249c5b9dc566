"""Putting streamed files in their places: written beside, checked, made durable, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

from hostenv.agent.amounts import megabytes
from hostenv.agent.files import sync_volume, write_sparsely
from hostenv.agent.folders import Folders, split
from hostenv.agent.stream import Piece, Reader, Unit, Wanted, send
from hostenv.agent.wire import AgentError, Wire

INCOMING = ".incoming-"
"""Prefix of the folder, below the destination, where files lie until they are whole and checked."""

BATCH = 256 << 20
"""Bytes after which what has landed is put in place: what a cut connection loses at most."""

_READ = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
_FSYNC_EACH = 8
"""Folders up to which each is synced by itself; a second sync of the volume is cheaper for more."""


class _Landed(NamedTuple):
    beside: str
    path: str
    size: int


class Landing:
    """The receiving end of a stream below ``root``; several may share one ``label``.

    A whole file is hashed as it lands and refused where its digest is not the one that came with it; the
    error names it below ``source``, the folder that it comes from. Nothing appears under its own path before
    :meth:`settle`. Ranges of a file are gathered and wait for :func:`finish`; ``gathered`` has one of them a
    path. Raises :class:`AgentError`; what is in place by then stays.
    """

    def __init__(self, root: str, label: str, *, durable: bool = True, source: str = "") -> None:
        self.digests: Dict[str, str] = {}
        self.gathered: Dict[str, Unit] = {}
        self._folders = Folders(root)
        self._beside = incoming(root, label)
        self._incoming = os.open(self._beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._durable = durable
        self._source = source
        self._waiting: List[_Landed] = []
        self._waiting_bytes = 0
        self._count = 0

    def receive(self, pieces: Iterable[Piece]) -> None:
        """Take a stream to its end, and settle every :data:`BATCH` bytes."""
        reader = Reader(pieces)
        unit = reader.unit()
        while unit:
            if unit.whole:
                self._land(reader, unit)
            else:
                self._gather(reader, unit)
            if self._waiting_bytes >= BATCH:
                self.settle()
            unit = reader.unit()

    def settle(self) -> None:
        """Make what waits durable and rename it to its place."""
        if self._durable and self._waiting:
            sync_volume(self._beside)
        changed = set()
        for landed in self._waiting:
            folder, name = self._folders.locate(landed.path, make=True)
            os.rename(landed.beside, name, src_dir_fd=self._incoming, dst_dir_fd=folder)
            changed.add(os.path.dirname(landed.path))
        if self._durable:
            self._sync_folders(changed)
        self._waiting.clear()
        self._waiting_bytes = 0

    def adopt(self, unit: Unit, beside: str) -> None:
        """Let a file that lies in the incoming folder wait for its place."""
        self._waiting.append(_Landed(beside, unit.path, unit.size))
        self._waiting_bytes += unit.size

    def close(self) -> None:
        """Close the descriptors; what has not been settled stays beside."""
        self._folders.close()
        os.close(self._incoming)

    def _land(self, reader: Reader, unit: Unit) -> None:
        split(unit.path)
        self._count += 1
        beside = f"{os.getpid()}-{id(self):x}-{self._count}"
        digest = hashlib.sha256()
        file = os.open(beside, _NEW | os.O_EXCL, 0o600, dir_fd=self._incoming)
        try:
            missing = unit.size
            for piece in reader.body(unit.size):
                digest.update(piece)
                write_sparsely(file, piece)
                missing -= len(piece)
            os.ftruncate(file, unit.size - missing)
            _finish(file, unit)
        finally:
            os.close(file)
        _require_digest(os.path.join(self._source, unit.path), unit, digest.hexdigest(), missing)
        self.digests[unit.path] = digest.hexdigest()
        self.adopt(unit, beside)

    def _gather(self, reader: Reader, unit: Unit) -> None:
        beside = gathered_name(unit.path)
        self.gathered[unit.path] = unit
        file = os.open(beside, _NEW, 0o600, dir_fd=self._incoming)
        try:
            os.lseek(file, unit.offset, os.SEEK_SET)
            for piece in reader.body(unit.length):
                write_sparsely(file, piece)
            os.ftruncate(file, unit.size)  # never shrinks it: no range lies beyond
        finally:
            os.close(file)

    def _sync_folders(self, changed: Iterable[str]) -> None:
        changed = list(changed)
        if len(changed) > _FSYNC_EACH:
            sync_volume(self._beside)
            return
        for path in changed:
            folder, _ = self._folders.locate(os.path.join(path, "-"))
            os.fsync(folder)


def incoming(root: str, label: str) -> str:
    """Return the folder where the files of a transfer lie until they are whole."""
    return os.path.join(root, INCOMING + split(label)[0])


def gathered_name(path: str) -> str:
    """Return the name under which the ranges of ``path`` come together."""
    return "ranges-" + hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def begin(wire: Any = None, *, root: str, label: str, size: int = 0) -> None:
    """Make ready to receive ``size`` bytes below ``root``: remove what an ended transfer has left there.

    The caller holds the host's lock: no other transfer works below this root. Raises :class:`AgentError`
    where the file system has less room.
    """
    del wire
    os.makedirs(root, exist_ok=True)
    with os.scandir(root) as entries:
        stale = [entry.path for entry in entries if entry.name.startswith(INCOMING)]
    for path in stale:
        import shutil  # noqa: PLC0415  rarely needed, 5 ms to import

        shutil.rmtree(path)
    volume = os.statvfs(root)
    free = volume.f_bavail * volume.f_frsize
    if free < size:
        message = f"{root}: {megabytes(size)} are to come and {megabytes(free)} are free"
        raise AgentError(message, "make room there, or put the root on another file system", "refused")
    os.mkdir(incoming(root, label), 0o700)


def put(wire: Wire, *, root: str, label: str, durable: bool = True) -> Dict[str, str]:
    """Receive one stream; return the digest of every whole file by its path."""
    landing = Landing(root, label, durable=durable)
    try:
        landing.receive(wire.data())
        landing.settle()
    finally:
        landing.close()
    return landing.digests


def get(wire: Wire, *, root: str, wanted: Sequence[Sequence[Any]]) -> None:
    """Send one stream: each of ``wanted`` is a path, its digest or ``""``, offset and length (or None)."""
    for piece in send(root, (Wanted(*each) for each in wanted)):
        wire.send_data(piece)
    wire.end_data()


def finish(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Any = None,
    *,
    root: str,
    label: str,
    ranged: Sequence[Tuple[str, int, int, int, str]] = (),
    durable: bool = True,
    source: str = "",
) -> Dict[str, str]:
    """Check and place the files that came in ranges (path, mode, size, mtime in ns, digest); tidy up.

    Returns their digests by path. An error names a file below ``source``.
    """
    del wire
    landing = Landing(root, label, durable=durable)
    try:
        for path, mode, size, mtime_ns, sha256 in ranged:
            unit = Unit(path, mode, size, 0, size, mtime_ns, sha256)
            beside = os.path.join(incoming(root, label), gathered_name(path))
            landing.digests[path] = _check_gathered(beside, os.path.join(source, path), unit)
            landing.adopt(unit, gathered_name(path))
        landing.settle()
    finally:
        landing.close()
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(incoming(root, label))
    return landing.digests


def _check_gathered(beside: str, name: str, unit: Unit) -> str:
    digest = hashlib.sha256()
    missing = unit.size
    file = os.open(beside, os.O_RDONLY | os.O_CLOEXEC)
    try:
        buffer = memoryview(bytearray(_READ))
        while count := os.readv(file, [buffer]):
            digest.update(buffer[:count])
            missing -= count
        _finish(file, unit)
    finally:
        os.close(file)
    _require_digest(name, unit, digest.hexdigest(), missing)
    return digest.hexdigest()


def _finish(file: int, unit: Unit) -> None:
    os.fchmod(file, unit.mode)
    os.utime(file, ns=(unit.mtime_ns, unit.mtime_ns))


def _require_digest(name: str, unit: Unit, digest: str, missing: int) -> None:
    if missing:
        message = f"{name}: the stream ended {missing} bytes before the file did"
        raise AgentError(message)
    if unit.sha256 and unit.sha256 != digest:
        message = f"{name}: landed with sha256 {digest}, expected {unit.sha256}"
        raise AgentError(message, "the source is not the file that was named: nothing was put in its place")
