"""Opening folders below a root without ever leaving it."""

from __future__ import annotations

import os
from typing import Dict, Tuple

from hostenv.agent.wire import AgentError

_KEPT = 64
"""Folders that stay open: neighbours in a sorted list share theirs."""

_NO_PARTS = frozenset({"", ".", ".."})


def split(path: str) -> Tuple[str, ...]:
    """Return the parts of a relative path that stays below where it starts.

    Raises :class:`AgentError` for an absolute path, an empty, ``.`` or ``..`` part, and a NUL.
    """
    parts = tuple(path.split("/"))
    if "\0" in path or not _NO_PARTS.isdisjoint(parts):
        message = f"{path!r} is no path below a root"
        raise AgentError(message)
    return parts


class Folders:
    """The folders below ``root`` by descriptor; no symbolic link below it is followed.

    ``root`` itself may be reached through links. Raises :class:`AgentError` for a part that is a link or no
    folder.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: Dict[Tuple[str, ...], int] = {}

    def locate(self, path: str, *, make: bool = False) -> Tuple[int, str]:
        """Return the descriptor of the folder that holds ``path``, and the last part of ``path``.

        The descriptor is valid until the next call. ``make`` creates folders that are not there.
        """
        parts = split(path)
        return self._folder(parts[:-1], make=make), parts[-1]

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        os.close(self._top)

    def _folder(self, parts: Tuple[str, ...], *, make: bool) -> int:
        if not parts:
            return self._top
        if parts in self._open:
            return self._open[parts]
        parent = self._folder(parts[:-1], make=make)
        descriptor = self._descend(parent, parts, make=make)
        if len(self._open) >= _KEPT:
            os.close(self._open.pop(next(iter(self._open))))
        self._open[parts] = descriptor
        return descriptor

    def _descend(self, parent: int, parts: Tuple[str, ...], *, make: bool) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(parts[-1], flags, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(parts[-1], 0o755, dir_fd=parent)
            return os.open(parts[-1], flags, dir_fd=parent)
        except NotADirectoryError:
            message = f"{os.path.join(self.root, *parts)} is a link or no folder: nothing goes through it"
            raise AgentError(message) from None
