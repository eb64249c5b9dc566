"""The files of a wheel as it was shipped, each checked against the wheel's own RECORD."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import stat
import zipfile
import zlib
from typing import TYPE_CHECKING, Protocol, Self

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from hostenv.agent import recordfile
from hostenv.errors import PatchError, SupplyError
from hostenv.spec.patchapply import FileState

if TYPE_CHECKING:
    from pathlib import Path


_ALGORITHMS = ("sha256", "sha384", "sha512")
_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(.+)")


class Pristine(Protocol):
    """The files of one distribution before a series: ``label`` says in an error where they come from."""

    @property
    def label(self) -> str:
        """The name of what the files are those of."""

    @property
    def what(self) -> str:
        """The same in the middle of a sentence."""

    @property
    def paths(self) -> frozenset[str]:
        """Every file in site-packages that a series may change, relative to it."""

    def elsewhere(self, path: str) -> str | None:
        """Say why a path that a series adds is not its to write; None where it is."""

    def read(self, path: str) -> FileState | None:
        """Return the file, None if there is none."""


class PristineWheel:
    """An open wheel, read by path relative to site-packages. Use as a context manager.

    The wheel is one that the lock names and whose sha256 was checked when it came into the wheelhouse; here
    every file that is read must also have the hash that RECORD gives it.
    """

    def __init__(self, path: Path, *, dist: str, version: str) -> None:
        """Open ``path``, which must be a wheel of exactly ``dist`` (canonical name) at ``version``."""
        _check_name(path, dist, version)
        self.filename = path.name
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise SupplyError(f"{path.name}: cannot be read as a wheel: {error}") from error
        try:
            self._entries = self._read_entries()
            self._record = self._read_record()
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._archive.close()

    @property
    def label(self) -> str:
        """Its file name."""
        return self.filename

    @property
    def what(self) -> str:
        """What it is."""
        return "the wheel"

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        """Every file that the wheel puts into site-packages, metadata and ``*.data`` left out."""
        roots = (path.partition("/")[0] for path in self._entries)
        metadata = {root for root in roots if root.endswith((".dist-info", ".data"))}
        return frozenset(path for path in self._entries if path.partition("/")[0] not in metadata)

    def elsewhere(self, path: str) -> str | None:
        """Say so where the wheel installs ``path`` from its ``*.data`` folder, which is never patched."""
        return "the wheel installs this path from its *.data folder" if path in self._elsewhere else None

    @functools.cached_property
    def _elsewhere(self) -> frozenset[str]:
        found = (_DATA.fullmatch(path) for path in self._entries)
        return frozenset(match[1] for match in found if match)

    def read(self, path: str) -> FileState | None:
        """Return the file as shipped, None if the wheel has none there; a wrong hash raises."""
        entry = self._entries.get(path)
        if entry is None:
            return None
        mode = entry.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise PatchError(f"{path} is no regular file in {self.filename}")
        content = self._unpacked(path)
        self._check_hash(path, content)
        return FileState(content=content, executable=bool(mode & 0o111))

    def _unpacked(self, path: str) -> bytes:
        try:
            return self._archive.read(self._entries[path])
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise SupplyError(f"{self.filename}: {path}: cannot be read: {error}") from error

    def _check_hash(self, path: str, content: bytes) -> None:
        """Raise unless ``content`` has RECORD's hash (``sha256=`` and urlsafe base64 without padding)."""
        expected = self._record.get(path, "")
        algorithm = expected.partition("=")[0]
        if algorithm not in _ALGORITHMS:
            raise SupplyError(f"{self.filename}: RECORD has no sha256 (or stronger) for {path}")
        digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest())
        found = f"{algorithm}={digest.rstrip(b'=').decode()}"
        if found != expected:
            raise SupplyError(f"{self.filename}: {path}: RECORD says {expected}, its bytes give {found}")

    def _read_entries(self) -> dict[str, zipfile.ZipInfo]:
        entries: dict[str, zipfile.ZipInfo] = {}
        for entry in self._archive.infolist():
            if entry.filename in entries:
                raise SupplyError(f"{self.filename}: holds {entry.filename} twice")
            if not entry.is_dir():
                entries[entry.filename] = entry
        return entries

    def _read_record(self) -> dict[str, str]:
        found = [
            path for path in self._entries if path.endswith(".dist-info/RECORD") and path.count("/") == 1
        ]
        if len(found) != 1:
            raise SupplyError(f"{self.filename}: has {len(found)} RECORD files")
        rows, problems = recordfile.fields(self._unpacked(found[0]).decode("utf-8", "surrogateescape"))
        if problems:
            raise SupplyError(f"{self.filename}: RECORD {problems[0]}")
        return {row[0]: row[1] for row in rows if len(row) > 1}


def _check_name(path: Path, dist: str, version: str) -> None:
    try:
        name, found, *_ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise SupplyError(f"{path.name}: is not named as a wheel is") from error
    if name != dist or found != Version(version):
        raise PatchError(f"patches/{dist}-{version} is for {dist} {version}, and the wheel is {name} {found}")
