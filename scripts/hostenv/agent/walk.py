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
from typing import Dict, List, Tuple

from hostenv.agent import statcache

_ROOT = frozenset({b".gitignore", b"CACHEDIR.TAG", b".lock"})
_BIN = frozenset(
    {
        *(b"activate" + suffix for suffix in (b"", b".bat", b".csh", b".fish", b".nu", b".ps1", b".xsh")),
        *(b"activate_this.py", b"Activate.ps1", b"deactivate.bat", b"deactivate.nu", b"pydoc.bat"),
    }
)
_INFO = frozenset({b"INSTALLER", b"REQUESTED", b"direct_url.json", b"uv_cache.json", b"uv_build.json"})
_OWN = b".hostenv"

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@dataclass
class File:
    """A regular file as it was when the folder was read."""

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
                for entry in entries:
                    _take(seen, root, folder, entry, folders)
        except OSError as error:
            seen.problems.append((folder, f"cannot be listed: {error.strerror}"))
    return seen


def _take(seen: Walked, root: bytes, folder: bytes, entry: os.DirEntry[bytes], folders: List[bytes]) -> None:
    name = entry.name
    path = folder + b"/" + name if folder else name
    if entry.is_dir(follow_symlinks=False):
        if path != _OWN:
            folders.append(path)
    elif _is_left_out(folder, name):
        seen.left_out += 1
    elif entry.is_symlink():
        _take_link(seen, root, path)
    else:
        _take_file(seen, path, entry)


def _take_file(seen: Walked, path: bytes, entry: os.DirEntry[bytes]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        seen.problems.append((path, f"cannot be read: {error.strerror}"))
        return
    if stat.S_ISREG(status.st_mode):
        seen.files[path] = File(stat.S_IMODE(status.st_mode), status.st_size, statcache.key(status))
        return
    kind = next((name for test, name in _KINDS if test(status.st_mode)), "of a kind that no wheel has")
    seen.problems.append((path, f"is {kind}"))


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


def _is_left_out(folder: bytes, name: bytes) -> bool:
    if folder == b"":
        return name in _ROOT
    if folder == b"bin":
        return name in _BIN
    return name in _INFO and folder.endswith(b".dist-info")
