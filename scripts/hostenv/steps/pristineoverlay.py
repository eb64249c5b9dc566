"""The files of an overlaid distribution before a series, read from a store and held against their digests."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

from hostenv.agent.store import relative
from hostenv.errors import PatchError, SupplyError
from hostenv.spec.overlaylist import PREFIX
from hostenv.spec.patchapply import FileState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostenv.spec.overlay import Overlay
    from hostenv.spec.overlaylist import OverlayFile
    from hostenv.spec.series import Series


class PristineOverlay:
    """One distribution of an overlay. Contents that are read must lie in ``store``: see :func:`touched`."""

    def __init__(self, overlay: Overlay, dist: str, store: Path) -> None:
        self._overlay = overlay
        self._dist = dist
        self._store = store
        self._files = {file.path: file for file in overlay.files}

    @property
    def label(self) -> str:
        """The overlay's name."""
        return f"overlays/{self._overlay.name}"

    @property
    def what(self) -> str:
        """The same."""
        return self.label

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        """Its files in site-packages, metadata left out."""
        return frozenset(path for path, file in self._files.items() if self._is_own(file))

    def elsewhere(self, path: str) -> str | None:
        """Say whose a path is that the overlay lays for somebody else."""
        file = self._files.get(path)
        return f"{self.label} lays this path for {file.dist}" if file else None

    def read(self, path: str) -> FileState | None:
        """Return the file as the overlay has it; a link, and bytes that are not those it names, raise."""
        file = self._files.get(path)
        if file is None or not (self._is_own(file) or file.target):
            return None
        if file.target is not None:
            raise PatchError(f"{path} is a symbolic link in {self.label}")
        try:
            content = (self._store / relative(file.sha256)).read_bytes()
        except OSError as error:
            raise SupplyError(f"{self.label}: {path}: cannot be read from {self._store}: {error}") from error
        if hashlib.sha256(content).hexdigest() != file.sha256:
            (self._store / relative(file.sha256)).unlink(missing_ok=True)
            raise SupplyError(
                f"{self.label}: {path}: {self._store / relative(file.sha256)} has other bytes than its name "
                "says; it was removed",
                hint="run again: it is brought anew",
            )
        return FileState(content=content, executable=bool(file.mode & 0o111))

    def _is_own(self, file: OverlayFile) -> bool:
        top = file.path.partition("/")[0]
        return (
            file.dist == self._dist
            and file.target is None
            and not (file.path.startswith(PREFIX) or top.endswith(".dist-info"))
        )


def touched(overlay: Overlay, series: Series) -> Mapping[str, int]:
    """Return sha256 → size in bytes of what a series reads of an overlay."""
    changes = [change for patch in series.patches for change in patch.changes]
    names = {path for change in changes for path in (change.source, change.target)}
    return {file.sha256: file.size for file in overlay.files if file.path in names and file.target is None}
