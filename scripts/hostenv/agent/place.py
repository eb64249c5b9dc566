"""Putting streamed files in their places: written beside, checked, made durable, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from hostenv.agent.amounts import megabytes
from hostenv.agent.files import HOLE, sync_volume, write_sparsely
from hostenv.agent.folders import Folders, split
from hostenv.agent.layout import INCOMING
from hostenv.agent.ranges import Follower, Gathering
from hostenv.agent.stream import Piece, Reader, Unit, Wanted, send
from hostenv.agent.wire import AgentError, Wire

BATCH = 256 << 20
"""Bytes after which what has landed is put in place: what a cut connection loses at most."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
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
    :meth:`settle`. Ranges of a file are gathered, and wait for :meth:`finish` of the landing that had the
    first of them. ``expected``: nothing but these paths may come, each with the digest that it has there if
    it has one. Raises :class:`AgentError`; what is in place by then stays.
    """

    def __init__(
        self,
        root: str,
        label: str,
        *,
        durable: bool = True,
        source: str = "",
        expected: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.digests: Dict[str, str] = {}
        self._folders = Folders(root)
        self._beside = incoming(root, label)
        self._incoming = os.open(self._beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._durable = durable
        self._source = source
        self._expected = expected
        self._waiting: List[_Landed] = []
        self._waiting_bytes = 0
        self._count = 0
        self._gathered: List[Gathering] = []
        self._follower = Follower()

    def receive(self, pieces: Iterable[Piece]) -> None:
        """Take a stream to its end, and settle every :data:`BATCH` bytes."""
        for _ in self.pass_on(pieces):
            pass

    def pass_on(self, pieces: Iterable[Piece]) -> Iterator[Union[Unit, memoryview]]:
        """Do as :meth:`receive` does, and yield each unit and then its bytes, once they are written here.

        The last bytes of a whole file are yielded when its digest was seen to be right.
        """
        reader = Reader(pieces)
        unit = reader.unit()
        while unit:
            split(unit.path)
            self._require_expected(unit)
            yield unit
            yield from self._land(reader, unit) if unit.whole else self._gather(reader, unit)
            if self._waiting_bytes >= BATCH:
                self.settle()
            unit = reader.unit()

    def settle(self) -> None:
        """Make what waits durable and rename it to its place."""
        if self._durable and self._waiting:
            sync_volume(f"/proc/self/fd/{self._incoming}")
        changed = set()
        for landed in self._waiting:
            folder, name = self._folders.locate(landed.path, make=True)
            os.rename(landed.beside, name, src_dir_fd=self._incoming, dst_dir_fd=folder)
            changed.add(os.path.dirname(landed.path))
        if self._durable:
            self._sync_folders(changed)
        self._waiting.clear()
        self._waiting_bytes = 0

    def finish(self) -> Dict[str, str]:
        """Check and place the files that came in ranges, when every range has come; tidy up.

        Returns their digests by path. The last landing of a label to finish removes its folder.
        """
        self._follower.stop()
        digests = {}
        for gathering in self._gathered:
            unit = gathering.unit
            digests[unit.path] = gathering.result()
            self._require_digest(unit, digests[unit.path])
            _finish(gathering.descriptor, unit)
            self._adopt(unit, gathering.name)
        self.settle()
        try:
            os.rmdir(self._beside)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY}:
                raise
        return digests

    def close(self) -> None:
        """Close the descriptors; what has not been settled stays beside."""
        self._follower.stop()
        for gathering in self._gathered:
            gathering.close()
        self._folders.close()
        os.close(self._incoming)

    def _adopt(self, unit: Unit, beside: str) -> None:
        """Let a file that lies in the incoming folder wait for its place."""
        self._waiting.append(_Landed(beside, unit.path, unit.size))
        self._waiting_bytes += unit.size

    def _land(self, reader: Reader, unit: Unit) -> Iterator[memoryview]:
        self._count += 1
        beside = f"{os.getpid()}-{id(self):x}-{self._count}"
        content = hashlib.sha256()
        file = os.open(beside, _NEW, 0o600, dir_fd=self._incoming)
        try:
            missing = unit.size
            last = memoryview(b"")
            for piece in reader.body(unit.size):
                if last:
                    yield last
                content.update(piece)
                write_sparsely(file, piece)
                missing -= len(piece)
                last = piece
            if unit.size >= HOLE:
                os.ftruncate(file, unit.size - missing)
            _finish(file, unit)
        finally:
            os.close(file)
        digest = "" if missing else content.hexdigest()
        self._require_digest(unit, digest)
        self.digests[unit.path] = digest
        self._adopt(unit, beside)
        yield last

    def _gather(self, reader: Reader, unit: Unit) -> Iterator[memoryview]:
        gathering = Gathering(self._incoming, unit)
        try:
            yield from gathering.write(unit, reader.body(unit.length))
        except BaseException:
            gathering.close()
            raise
        if unit.offset:
            gathering.close()
        else:
            self._gathered.append(gathering)
            self._follower.add(gathering)

    def _require_expected(self, unit: Unit) -> None:
        if self._expected is not None and self._expected.get(unit.path) not in {"", unit.sha256}:
            name = os.path.join(self._source, unit.path)
            raise AgentError(f"{name}: came with sha256 {unit.sha256 or 'none'}: that was not asked for")

    def _require_digest(self, unit: Unit, digest: str) -> None:
        """Raise unless ``digest`` is the one that the unit came with; ``""`` is that of half a file."""
        name = os.path.join(self._source, unit.path)
        if not digest:
            raise AgentError(f"{name}: the stream ended before the file did")
        if unit.sha256 not in {"", digest}:
            message = f"{name}: landed with sha256 {digest}, expected {unit.sha256}"
            hint = "the source is not the file that was named: nothing was put in its place"
            raise AgentError(message, hint)

    def _sync_folders(self, changed: Iterable[str]) -> None:
        changed = list(changed)
        if len(changed) > _FSYNC_EACH:
            sync_volume(f"/proc/self/fd/{self._incoming}")  # its name may be gone: others finish, too
            return
        for path in changed:
            folder, _ = self._folders.locate(os.path.join(path, "-"))
            os.fsync(folder)


_landings: Dict[Tuple[str, str], Landing] = {}
"""What this process has received and not finished, by root and label."""


def incoming(root: str, label: str) -> str:
    """Return the folder where the files of a transfer lie until they are whole."""
    return os.path.join(root, INCOMING + split(label)[0])


def begin(wire: Any = None, *, root: str, label: str, size: int = 0) -> None:
    """Make ready to receive ``size`` bytes below ``root``: remove what an ended transfer has left there.

    The caller holds the host's lock: no other transfer works below this root. Raises :class:`AgentError`
    where the file system has less room.
    """
    del wire
    for key in [key for key in _landings if key[0] == root]:
        _landings.pop(key).close()
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


def put(wire: Wire, *, root: str, label: str, durable: bool = True, source: str = "") -> Dict[str, str]:
    """Receive one stream; return the digest of every whole file by its path. :func:`finish` must follow.

    An error names a file below ``source``.
    """
    landing = Landing(root, label, durable=durable, source=source)
    try:
        landing.receive(wire.data())
        landing.settle()
    except BaseException:
        landing.close()
        raise
    _landings[root, label] = landing
    return landing.digests


def get(wire: Wire, *, root: str, wanted: Sequence[Sequence[Any]]) -> None:
    """Send one stream: each of ``wanted`` is a path, its digest or ``""``, offset and length (or None)."""
    for piece in send(root, (Wanted(*each) for each in wanted)):
        wire.send_data(piece)
    wire.end_data()


def finish(wire: Any = None, *, root: str, label: str) -> Dict[str, str]:
    """Finish what :func:`put` has received here, when what came over other connections is here, too.

    Returns the digests of the files that came in ranges, by path.
    """
    del wire
    with contextlib.closing(_landings.pop((root, label))) as landing:
        return landing.finish()


def _finish(file: int, unit: Unit) -> None:
    os.fchmod(file, unit.mode)
    os.utime(file, ns=(unit.mtime_ns, unit.mtime_ns))
