"""The files in which locks lie."""

from __future__ import annotations

import pathlib
import tempfile

from hostenv.document import read_text
from hostenv.errors import HostenvError, InputError
from hostenv.spec.lock import Lock


def load(path: pathlib.Path, *, document: str) -> Lock | None:
    """Read a lock, or return ``None`` where there is none."""
    try:
        return Lock.parse(read_text(path), document=document)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{document}: cannot be read: {error}") from error


def store(lock: Lock, path: pathlib.Path) -> None:
    """Write a lock, whole or not at all; a file that holds it already stays as it is."""
    text = lock.render().encode()
    if path.is_file() and path.read_bytes() == text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".lock-", delete=False) as beside:
            beside.write(text)
        pathlib.Path(beside.name).chmod(0o644)
        pathlib.Path(beside.name).replace(path)
    except OSError as error:
        raise HostenvError(f"{path}: cannot be written: {error.strerror}") from error
