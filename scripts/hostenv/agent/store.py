"""The store: the contents of overlays' files by digest, ``ROOT/store/AB/SHA256``.

A file gets its name only when its bytes were seen to have that digest; from then on it is never changed, and
nothing links to it: builds get copies.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import zipfile
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from hostenv.agent import recordfile, tree
from hostenv.agent.copying import copy_checked
from hostenv.agent.files import remove
from hostenv.agent.layout import OWN, Layout
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer

_PIECE = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_LISTED = re.compile(r"0[0-7]{3} \d+ ([0-9a-f]{64}) ")
_ENTRY = re.compile(rb"f [0-7]+ (\d+) ([0-9a-f]{64}) (.*)", re.DOTALL)


class Place(NamedTuple):
    """Where a content lies outside the store: a file, or a ``member`` of a wheel."""

    path: str
    member: Optional[str] = None


class Store:
    """The store of one root, or of the controller. Nothing is written before :meth:`prepare`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, sha256: str) -> str:
        """Return where a content lies or will lie."""
        return os.path.join(self.folder, relative(sha256))

    def holds(self, sha256: str, size: int) -> bool:
        """Tell whether a content is there. Its bytes were checked when it got its name."""
        try:
            return os.stat(self.path(sha256)).st_size == size
        except (FileNotFoundError, NotADirectoryError):
            return False

    def missing(self, contents: Mapping[str, int]) -> Dict[str, int]:
        """Return those of sha256 → size that are not there."""
        return {sha256: size for sha256, size in contents.items() if not self.holds(sha256, size)}

    def remove_damaged(self, contents: Iterable[str]) -> Set[str]:
        """Hash contents anew and remove those that are not what their names say; return these."""
        damaged = {sha256 for sha256 in contents if not self._is_sound(sha256)}
        for sha256 in damaged:
            remove(self.path(sha256))
        return damaged

    def _is_sound(self, sha256: str) -> bool:
        content = hashlib.sha256()
        try:
            with open(self.path(sha256), "rb") as file:
                while piece := file.read(_PIECE):
                    content.update(piece)
        except FileNotFoundError:
            return True
        except OSError:  # EIO, or a folder in its place
            return False
        return content.hexdigest() == sha256

    def prepare(self) -> None:
        """Make the folder, and remove what a killed writer left in it."""
        os.makedirs(self.folder, exist_ok=True)
        for name in os.listdir(self.folder):
            if name.startswith(".tmp-"):
                os.unlink(os.path.join(self.folder, name))

    def take(self, place: Place, sha256: str, size: int) -> bool:
        """Copy a content in; ``False`` where the place does not hold it, or cannot be read."""
        target = self.path(sha256)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        descriptor, beside = tempfile.mkstemp(prefix=".tmp-", dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file, _opened(place) as source:
                found = copy_checked(source, file, size)
            if found != sha256:
                return False
            os.replace(beside, target)
        except (OSError, zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError):  # encrypted
            if not os.access(self.folder, os.W_OK) or _is_full(self.folder, size):
                raise
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
        return True


def relative(sha256: str) -> str:
    """Return a content's path below the store; raises :class:`AgentError` for what is no sha256."""
    if not _SHA256.match(sha256):
        raise AgentError(f"{sha256!r} is not a sha256", outcome="input")
    return f"{sha256[:2]}/{sha256}"


def unnamed(layout: Layout, builds: Iterable[str]) -> List[str]:
    """Return the paths of contents that the overlays of none of ``builds`` name."""
    named: Set[str] = set()
    for build in builds:
        folder = os.path.join(layout.build(build), OWN, "overlays")
        for name in _listed(folder):
            if name.endswith(".files"):
                with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
                    named.update(match.group(1) for line in file if (match := _LISTED.match(line)))
    return [
        os.path.join(layout.store, part, sha256)
        for part in _listed(layout.store)
        for sha256 in _listed(os.path.join(layout.store, part))
        if _SHA256.match(sha256) and sha256 not in named
    ]


def _listed(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def find(wire: Wire, *, root: str, contents: Dict[str, int]) -> Dict[str, Any]:
    """Say which of sha256 → size must be sent: neither in the store nor in a build or wheel here.

    Returns ``missing``, and in ``elsewhere`` those that are only in a build or wheel. Nothing is written.
    """
    del wire
    layout = Layout(root)
    absent = Store(layout.store).missing(contents)
    elsewhere = _elsewhere(layout, absent) if absent else set()
    return {
        "missing": {sha256: size for sha256, size in absent.items() if sha256 not in elsewhere},
        "elsewhere": {sha256: absent[sha256] for sha256 in elsewhere},
    }


def gather(wire: Wire, *, root: str, who: Dict[str, Any], contents: Dict[str, int]) -> Dict[str, int]:
    """Copy into the store what lies in builds and wheels here; return what must be sent after all."""
    layout = Layout(root)
    with sole_writer(layout, who):
        store = Store(layout.store)
        store.prepare()
        absent = store.missing(contents)
        for look in (_in_builds, _in_wheels):
            for sha256, place in look(layout, absent) if absent else ():
                wire.event(phase="gather")
                if sha256 in absent and store.take(place, sha256, absent[sha256]):
                    del absent[sha256]
        return absent


def locate(wire: Wire, *, folders: Sequence[str], paths: Sequence[Sequence[Any]]) -> List[Optional[str]]:
    """Say for each of ``paths`` (path, size) below which of ``folders`` a file of that size lies."""
    del wire
    return [
        next((top for top in folders if _has_size(os.path.join(top, path), size)), None)
        for path, size in paths
    ]


def present(wire: Wire, *, folder: str, paths: Sequence[str]) -> List[Optional[int]]:
    """Return the size of each regular file below a folder, ``None`` where there is none."""
    del wire
    return [_size(os.path.join(folder, path)) for path in paths]


def _size(path: str) -> Optional[int]:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except (FileNotFoundError, NotADirectoryError):
        return False


def _elsewhere(layout: Layout, wanted: Mapping[str, int]) -> Set[str]:
    """Return which contents lie here by what builds' kept manifests and wheels' RECORDs say; unverified."""
    found = {sha256 for sha256, _ in _in_builds(layout, wanted)}
    if len(found) < len(wanted):
        found.update(sha256 for sha256, _ in _in_wheels(layout, wanted))
    return found


def _in_builds(layout: Layout, wanted: Mapping[str, int]) -> Iterator[Tuple[str, Place]]:
    digests = {sha256.encode(): sha256 for sha256 in wanted}
    for build in layout.finished_builds():
        top = layout.build(build)
        for field in _kept_manifest(top).split(b"\0"):
            match = _ENTRY.match(field)
            if match and match.group(2) in digests:
                yield digests[match.group(2)], Place(os.path.join(top, os.fsdecode(match.group(3))))


def _kept_manifest(build: str) -> bytes:
    try:
        with open(os.path.join(build, OWN, "manifest.z"), "rb") as file:
            content = zlib.decompress(file.read())
    except (OSError, zlib.error):
        return b""
    return content[len(tree.MAGIC) :] if content.startswith(tree.MAGIC) else b""


def _in_wheels(layout: Layout, wanted: Mapping[str, int]) -> Iterator[Tuple[str, Place]]:
    binary = {bytes.fromhex(sha256): sha256 for sha256 in wanted}
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(os.listdir(layout.wheelhouse)):
            for name in _wheels(os.path.join(layout.wheelhouse, folder)):
                path = os.path.join(layout.wheelhouse, folder, name)
                for member, digest in _recorded(path):
                    if digest in binary:
                        yield binary[digest], Place(path, member)


def _wheels(folder: str) -> List[str]:
    if not _SHA256.match(os.path.basename(folder)):
        return []
    try:
        return [name for name in os.listdir(folder) if name.endswith(".whl")]
    except NotADirectoryError:
        return []


def _recorded(wheel: str) -> Iterator[Tuple[str, bytes]]:
    """Yield the members of a wheel with the sha256 that its RECORD gives them."""
    try:
        rows, _ = recordfile.of_wheel(wheel)
    except AgentError:
        return
    for row in rows:
        digest = recordfile.sha256(row[1]) if len(row) > 1 else None
        if digest:
            yield row[0], digest


@contextlib.contextmanager
def _opened(place: Place) -> Iterator[Any]:
    if place.member is None:
        with open(place.path, "rb") as file:
            yield file
    else:
        with zipfile.ZipFile(place.path) as archive, archive.open(place.member) as member:
            yield member


def _is_full(folder: str, size: int) -> bool:
    volume = os.statvfs(folder)
    return volume.f_bavail * volume.f_frsize < size
