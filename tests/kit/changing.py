"""Files that change while somebody reads them."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def changing(path: pathlib.Path, change: Callable[[pathlib.Path], None]) -> Iterator[None]:
    """Change a file again and again, a thousand times a second where nothing holds this process up."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.001):
            change(path)

    change(path)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
