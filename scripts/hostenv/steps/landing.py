"""Folders in a store where files land before they get their names: each goes with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = ".receive-"


@contextlib.contextmanager
def landing_in(store: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a folder in ``store`` that is gone afterwards; what killed processes left there is removed first.

    A folder is locked as long as its process lives (flock(2)): another session's is left alone.
    """
    store.mkdir(parents=True, exist_ok=True)
    _sweep(store)
    while True:
        folder = pathlib.Path(tempfile.mkdtemp(dir=store, prefix=PREFIX))
        with contextlib.ExitStack() as stack:
            if _lock(folder, stack, without=True) and folder.exists():  # nobody swept it before it was locked
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                yield folder
                return


def _sweep(store: pathlib.Path) -> None:
    for folder in store.glob(f"{PREFIX}*"):
        with contextlib.ExitStack() as stack:
            if _lock(folder, stack, without=False):
                shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: pathlib.Path, stack: contextlib.ExitStack, *, without: bool) -> bool:
    """Lock a folder until the stack closes; ``False`` where somebody else has it, or it is gone.

    ``without`` is the answer where the file system has no locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without
    return True
