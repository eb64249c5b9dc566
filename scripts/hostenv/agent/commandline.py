"""The command line of a running process, with relative paths as the process meant them when it started."""

from __future__ import annotations

import os
from typing import Iterator, List


def words(folder: str) -> List[str]:
    """Return the words of the command line of ``folder``, a ``/proc/PID``, as they stand."""
    return _split(f"{folder}/cmdline")


def absolute(folder: str, *, by_environment: bool = True) -> Iterator[str]:
    """Yield the relative paths among those words as absolute ones; links in them stay as they are named.

    A relative path was one below the working directory of the start, and ``venv/bin/python`` finds its
    environment by it. Where nothing lies there now, the process has moved on: then the shell's ``PWD`` at
    the start (only ``by_environment``) says more. Raises ``OSError`` where the process is closed to us.
    """
    relative = [word for word in words(folder) if "/" in word and not word.startswith("/")]
    if not relative:
        return
    places = [os.readlink(f"{folder}/cwd")]
    if by_environment:
        places += [each[4:] for each in _split(f"{folder}/environ") if each.startswith("PWD=/")]
    for word in relative:
        paths = [os.path.normpath(os.path.join(place, word)) for place in places]
        yield next((path for path in paths if os.path.lexists(path)), paths[0])


def _split(path: str) -> List[str]:
    with open(path, "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0") if word]
