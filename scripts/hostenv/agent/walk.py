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

import os
import stat
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Tuple

from hostenv.agent import statcache

_ROOT = frozenset({b".gitignore", b"CACHEDIR.TAG", b".lock", b".hostenv"})
_BIN = frozenset(
    {
        *(b"activate" + suffix for suffix in (b"", b".bat", b".csh", b".fish", b".nu", b".ps1", b".xsh")),
        *(b"activate_this.py", b"Activate.ps1", b"deactivate.bat", b"deactivate.nu", b"pydoc.bat"),
    }
)
_INFO = frozenset({b"INSTALLER", b"REQUESTED", b"direct_url.json", b"uv_cache.json", b"uv_build.json"})

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


@dataclass
class Walked:
    """What a walk saw; every path is bytes, relative to the root, and no order is promised."""

    files: Dict[bytes, File] = field(default_factory=dict)
    links: Dict[bytes, bytes] = field(default_factory=dict)
    left_out: int = 0
    problems: List[Tuple[bytes, str]] = field(default_factory=list)


def walk(root: bytes) -> Walked:
    """List everything below ``root``, a real path, that may belong to a manifest.

    What cannot be read, is neither file, folder nor link, or is a link that leaves the tree, is a problem
    with its path and never an exception. Links are not followed.
    """
    seen = Walked()
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder) if folder else root) as entries:
                _list(seen, root, folder, entries, folders)
        except OSError as error:
            seen.problems.append((folder, f"cannot be listed: {error.strerror}"))
    return seen


def _list(
    seen: Walked, root: bytes, folder: bytes, entries: Iterable[os.DirEntry[bytes]], folders: List[bytes]
) -> None:
    """Take a folder's entries. One loop without calls of our own: it runs once a file."""
    left_out = _left_out(folder)
    prefix = folder + b"/" if folder else b""
    files = seen.files
    for entry in entries:
        name = entry.name
        if name in left_out:
            seen.left_out += 1
            continue
        path = prefix + name
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            seen.problems.append((path, f"cannot be read: {error.strerror}"))
            continue
        mode = status.st_mode
        kind = mode & _FORMAT
        if kind == stat.S_IFREG:
            files[path] = File(mode & 0o7777, status.st_size, statcache.key(status))
        elif kind == stat.S_IFDIR:
            folders.append(path)
        elif kind == stat.S_IFLNK:
            _take_link(seen, root, path)
        else:
            seen.problems.append((path, f"is {_KINDS.get(kind, 'of a kind that no wheel has')}"))


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
