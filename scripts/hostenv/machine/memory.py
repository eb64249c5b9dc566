"""What the controller remembers of environments on hosts, so that nothing is written there."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.agent.files import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 1 << 30
"""Bytes of all that is remembered; an environment of 75,000 files takes 7 MB, a build of hostenv's 2 kB."""

_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """What the last look at an environment found.

    ``stat`` as the host told it, ``tree`` the summary as JSON; the ``manifest``, and the ``cache`` for a
    host that keeps none for this environment, as they travelled.
    """

    stat: str | None
    tree: Mapping[str, Any]
    manifest: bytes | None = None
    cache: bytes | None = None


class Memory:
    """Remembered environments by name. What cannot be read, or written, was never there."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self._folder = folder or _default_folder()

    def load(self, name: str) -> Remembered | None:
        """Return what is remembered under ``name``, without its large parts."""
        part = self._read(name, "head.json")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            head = json.loads(part or b"null")
            if head["version"] == _VERSION:
                return Remembered(stat=head["stat"], tree=head["tree"])
        return None

    def manifest(self, name: str) -> bytes | None:
        """Return the remembered manifest: of the last look, which may be newer than :meth:`load`'s."""
        return self._read(name, "manifest")

    def cache(self, name: str) -> bytes | None:
        """Return the remembered stat cache."""
        return self._read(name, "cache")

    def save(self, name: str, remembered: Remembered) -> None:
        """Remember; what was saved longest ago is forgotten where all grows above :data:`LARGEST`."""
        head = {"version": _VERSION, "stat": remembered.stat, "tree": remembered.tree}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("head.json", json.dumps(head))
            if remembered.manifest is not None:
                archive.writestr("manifest", remembered.manifest, zipfile.ZIP_STORED)
            if remembered.cache is not None:
                archive.writestr("cache", remembered.cache)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_file(str(self._path(name)), packed.getvalue(), 0o600)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        found = [(path.stat(), path) for path in self._folder.iterdir()]
        total = 0
        for status, path in sorted(found, key=lambda each: -each[0].st_mtime_ns):
            total += status.st_size
            if total > LARGEST:
                path.unlink()

    def _read(self, name: str, part: str) -> bytes | None:
        try:
            with zipfile.ZipFile(self._path(name)) as archive:
                return archive.read(part)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def _path(self, name: str) -> pathlib.Path:
        return self._folder / hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _default_folder() -> pathlib.Path:
    """Return the folder below the user's cache (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(cache) if cache.startswith("/") else pathlib.Path.home() / ".cache"
    return base / "hostenv" / "environments"
