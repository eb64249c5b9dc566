"""Walking an environment: which of its files matter, and which are left out of a manifest, and why.

Left out, because neither Python nor the loader reads it for what an environment does, or because it names
the machine, the folder or the tool and not the content:

* ``bin/python*`` links: they name the interpreter, which is reported beside the fingerprint;
* ``bin/activate``, ``activate.fish``, ``deactivate.bat`` and the like: for shells; they hold the folder's
  path, and their text belongs to the tool that made the venv;
* ``lib64 -> lib``: an alias that some tools make and some do not;
* ``.gitignore``, ``CACHEDIR.TAG``, ``.lock``: the venv tool's marks for other tools;
* ``.hostenv/``: hostenv's own notes beside a build;
* ``*.dist-info/{INSTALLER,REQUESTED,direct_url.json,uv_cache.json,uv_build.json}``: who installed it, from
  where, on whose request (the recording-installs specification); the bytes are the same;
* bytecode that repeats its source (:mod:`hostenv.agent.bytecode`).

``pyvenv.cfg`` and RECORD are kept in a normal form, see :mod:`hostenv.agent.normal`. Empty folders are not
listed, as in git: a wheel cannot carry one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import struct
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple, Sequence, Tuple

from hostenv.agent import statcache
from hostenv.agent.child import Shared, dealt

_ROOT = frozenset({b".gitignore", b"CACHEDIR.TAG", b".lock", b".hostenv"})
_BIN = frozenset(
    {
        *(b"activate" + suffix for suffix in (b"", b".bat", b".csh", b".fish", b".nu", b".ps1", b".xsh")),
        *(b"activate_this.py", b"Activate.ps1", b"deactivate.bat", b"deactivate.nu", b"pydoc.bat"),
    }
)
_INFO = frozenset({b"INSTALLER", b"REQUESTED", b"direct_url.json", b"uv_cache.json", b"uv_build.json"})

_RECORD = struct.Struct(f"<IQ{statcache.KEY_SIZE}s")
"""Mode, size and stat key: what a :class:`File` holds."""
_LINE = struct.Struct("<xIQ" + statcache.FIELDS).pack
"""The same after a zero byte that ends a name, packed at once."""
_TIMES = statcache.TIMES
_NAME = -1 - _RECORD.size

_WORTH_A_FORK = 64
"""Folders waiting to be listed from which a second process is started (it takes 4 ms)."""

_FORMAT = 0o170000
"""The bits of a mode that tell the kind of file, inode(7)."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class File(NamedTuple):
    """A regular file as it was when its folder was read."""

    mode: int
    size: int
    key: bytes


class Walked:
    """What a walk saw; every path is bytes, relative to the root, and no order is promised.

    ``digests``: folder → digest of the names and stats of its files, where it has any, with those of
    ``.dist-info`` that are left out. ``newest`` is the last time (nanoseconds) at which an inode of them
    changed, ``shared`` counts files with other names, ``beside`` are the stat keys of those left out.
    """

    def __init__(self) -> None:
        self.links: Dict[bytes, bytes] = {}
        self.left_out = 0
        self.problems: List[Tuple[bytes, str]] = []
        self.digests: Dict[bytes, bytes] = {}
        self.newest = 0
        self.shared = 0
        self.beside: List[bytes] = []
        self._listed: Dict[bytes, List[bytes]] = {}

    @functools.cached_property
    def files(self) -> Dict[bytes, File]:
        """The files by path; made when first asked for, since an unchanged tree is known by its digests."""
        files: Dict[bytes, File] = {}
        for folder, lines in self._listed.items():
            prefix = folder + b"/" if folder else b""
            records = _RECORD.iter_unpack(b"".join([line[-_RECORD.size :] for line in lines]))
            for line, record in zip(lines, records):
                files[prefix + line[:_NAME]] = File._make(record)
        return files

    def names(self, folder: bytes) -> List[bytes]:
        """Return the names of the files in a folder, sorted."""
        return [line[:_NAME] for line in self._listed.get(folder, [])]

    def packed(self) -> Tuple[Any, ...]:
        """Return all that was seen, as marshal takes it."""
        told = (self.links, self.problems, self.left_out, self.newest, self.shared, self.beside)
        return (self._listed, self.digests, *told)

    def add(self, packed: Tuple[Any, ...]) -> None:
        """Take over what another walk of other folders saw."""
        listed, digests, links, problems, left_out, newest, shared, beside = packed
        self._listed.update(listed)
        self.digests.update(digests)
        self.links.update(links)
        self.problems += problems
        self.left_out += left_out
        self.newest = max(self.newest, newest)
        self.shared += shared
        self.beside += beside

    def list(self, root: bytes, folder: bytes) -> List[bytes]:
        """List a folder below ``root`` and return the folders in it."""
        try:
            with os.scandir(root + b"/" + folder if folder else root) as entries:
                return self._list(root, folder, entries)
        except OSError as error:
            self.problems.append((folder, f"cannot be listed: {error.strerror}"))
            return []

    def _list(self, root: bytes, folder: bytes, entries: Iterable[os.DirEntry[bytes]]) -> List[bytes]:
        """Take a folder's entries. One loop without calls of our own: it runs once a file."""
        left_out = _left_out(folder)
        prefix = folder + b"/" if folder else b""
        lines: List[bytes] = []
        folders: List[bytes] = []
        newest = self.newest
        for entry in entries:
            name = entry.name
            if name in left_out:
                self.left_out += 1
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                self.problems.append((prefix + name, f"cannot be read: {error.strerror}"))
                continue
            mode = status.st_mode
            kind = mode & _FORMAT
            if kind == stat.S_IFREG:
                size, changed = status.st_size, status.st_ctime_ns & _TIMES
                modified = status.st_mtime_ns & _TIMES
                lines.append(
                    name + _LINE(mode & 0o7777, size, status.st_dev, status.st_ino, size, modified, changed)
                )
                if changed > newest:  # noqa: PLR1730  a call of max() would cost a tenth of the loop
                    newest = changed
                if status.st_nlink > 1:
                    self.shared += 1
            elif kind == stat.S_IFDIR:
                folders.append(prefix + name)
            elif kind == stat.S_IFLNK:
                _take_link(self, root, prefix + name)
            else:
                self.problems.append((prefix + name, f"is {_KINDS.get(kind, 'of a kind that no wheel has')}"))
        self.newest = newest
        if lines:
            lines.sort()
            self._listed[folder] = lines
            beside = self._look_beside(root + b"/" + prefix) if left_out is _INFO else []
            self.digests[folder] = hashlib.sha256(b"".join([*lines, *beside])).digest()
        return folders

    def _look_beside(self, info: bytes) -> List[bytes]:
        """Return names and stats of files of a ``.dist-info`` that no manifest has, but rules read."""
        lines = []
        for name in sorted(_INFO):
            with contextlib.suppress(OSError):
                status = os.lstat(info + name)
                key = statcache.key(status)
                self.beside.append(key)
                self.newest = max(self.newest, status.st_ctime_ns & _TIMES)
                lines.append(b"\0%b\0%o\0%b" % (name, status.st_mode, key))
        return lines


def walk(root: bytes, *, helper: bool = True) -> Walked:
    """List everything below ``root``, a real path, that may belong to a manifest.

    What cannot be read, is neither file, folder nor link, or is a link that leaves the tree, is a problem
    with its path and never an exception. Links are not followed. With a ``helper`` a second process lists
    its part of a large tree.
    """
    seen = Walked()
    folders = [b""]
    while folders and len(folders) < _WORTH_A_FORK:
        folders = [inner for folder in folders for inner in seen.list(root, folder)]
    if not helper or not folders:
        return _below(seen, root, folders)
    shared = Shared(dealt(folders), lambda group: _below(Walked(), root, group).packed())
    with contextlib.closing(shared):
        for packed in shared.results():
            seen.add(packed)
    return seen


def _below(seen: Walked, root: bytes, folders: Sequence[bytes]) -> Walked:
    """List ``folders`` and everything below them."""
    waiting = list(folders)
    while waiting:
        waiting += seen.list(root, waiting.pop())
    return seen


def _left_out(folder: bytes) -> FrozenSet[bytes]:
    """Return the names in a folder that are left out."""
    if folder == b"":
        return _ROOT
    if folder == b"bin":
        return _BIN
    return _INFO if folder.endswith(b".dist-info") else frozenset()


def _take_link(seen: Walked, root: bytes, path: bytes) -> None:
    full = os.path.join(root, path)
    try:
        target = os.readlink(full)
    except OSError as error:
        seen.problems.append((path, f"cannot be read: {error.strerror}"))
        return
    inside = (os.path.realpath(full) + b"/").startswith(root + b"/")
    if path == b"lib64" and target == b"lib":
        seen.left_out += 1
    elif inside:
        seen.links[path] = target
    elif path.startswith(b"bin/python"):
        seen.left_out += 1
    else:
        seen.problems.append((path, f"links out of the tree, to {os.fsdecode(target)}"))
