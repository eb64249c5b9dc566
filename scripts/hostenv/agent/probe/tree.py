"""Reading files below a root folder, with links resolved inside that root."""

from __future__ import annotations

import errno
import fnmatch
import os
from typing import List, Mapping, Optional

LARGEST = 16 << 20
"""Bytes of a file that are read at most; what is longer is not a file that a probe understands."""

_MOST_LINKS = 40


class SilentError(OSError):
    """A path that lies on a mount that does not answer; ``str()`` is the reason."""


class Tree:
    """A root folder seen as ``/``: the host's own, another process's (``/proc/PID/root``), or a test's.

    An absolute symbolic link below ``/proc/PID/root`` would be followed in *our* root by the kernel; here it
    stays inside, so that a path of the host is never taken for one of a container.

    ``silent`` are mount points that do not answer, with the reason: nothing on them is asked for, and what
    leads there raises :class:`SilentError`.
    """

    def __init__(self, root: str = "/", silent: Optional[Mapping[str, str]] = None) -> None:
        self.root = root
        self.silent = dict(silent or {})

    def path(self, path: str) -> str:
        """Return where ``path`` really lies, every link followed inside the root."""
        if self.root == "/":
            if self.silent:
                self.resolve(path)
            return path
        return self._below(self.resolve(path))

    def resolve(self, path: str) -> str:
        """Return ``path`` with every link followed, as seen from inside the root; it need not exist."""
        pending = [part for part in path.split("/") if part][::-1]
        done: List[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in {".", ".."}:
                done = done[:-1] if part == ".." else done
                continue
            place = "/" + "/".join([*done, part])
            if place in self.silent:
                raise SilentError(self.silent[place])
            try:
                target = os.readlink(self._below(place))
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done = []
            pending += [piece for piece in target.split("/") if piece][::-1]
        return "/" + "/".join(done)

    def bytes(self, path: str, limit: int = LARGEST) -> bytes:
        """Return the first ``limit`` bytes of a file."""
        descriptor = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            pieces = []
            while limit > 0:
                piece = file.read(min(limit, 1 << 20))
                if not piece:
                    break
                pieces.append(piece)
                limit -= len(piece)
            return b"".join(pieces)

    def text(self, path: str, limit: int = LARGEST) -> str:
        """Return a file's text without the white space at its ends; undecodable bytes become escapes."""
        return self.bytes(path, limit).decode("utf-8", "backslashreplace").strip()

    def names(self, path: str) -> List[str]:
        """Return the names in a folder, sorted; an absent folder has none."""
        try:
            return sorted(os.listdir(self.path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def glob(self, pattern: str) -> List[str]:
        """Return the absolute paths that fit a pattern with ``*`` and ``[…]``, in order, as sh would."""
        found = [""]
        for part in filter(None, pattern.split("/")):
            if any(sign in part for sign in "*?["):
                found = [f"{place}/{name}" for place in found for name in self._matching(place or "/", part)]
            else:
                found = [f"{place}/{part}" for place in found if self._is_there(f"{place}/{part}")]
        return found

    def _matching(self, folder: str, pattern: str) -> List[str]:
        try:
            names = self.names(folder)
        except OSError:
            return []
        return [name for name in fnmatch.filter(names, pattern) if not name.startswith(".")]

    def _is_there(self, path: str) -> bool:
        try:
            return self.exists(path)
        except OSError:
            return False

    def link(self, path: str) -> str:
        """Return the target of a link as it is written."""
        head, _, tail = path.rpartition("/")
        return os.readlink(os.path.join(self.path(head or "/"), tail))

    def exists(self, path: str) -> bool:
        """Whether something is there, links followed."""
        return os.path.exists(self.path(path))

    def is_folder(self, path: str) -> bool:
        """Whether a folder is there, links followed."""
        return os.path.isdir(self.path(path))

    def is_executable(self, path: str) -> bool:
        """Whether an executable file is there, links followed; its rights are those of the agent's user."""
        real = self.path(path)
        return os.path.isfile(real) and os.access(real, os.X_OK)

    def _below(self, path: str) -> str:
        return path if self.root == "/" else self.root + path
