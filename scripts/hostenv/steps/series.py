"""The files that a series makes of shipped ones, computed as a whole before anything is written."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from hostenv.errors import PatchError
from hostenv.spec.patchapply import apply_patch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostenv.spec.filechange import FileChange
    from hostenv.spec.patchapply import FileState, Misfit
    from hostenv.spec.series import Patch, Series
    from hostenv.steps.pristine import Pristine


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultFile:
    """One file as the series leaves it; ``path`` is relative to site-packages.

    ``mode`` is 0o644 or 0o755. ``pristine_sha256`` is the shipped file's, None for one that the series adds.
    """

    path: str
    mode: int
    content: bytes
    sha256: str
    pristine_sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesResult:
    """All that differs from what was shipped.

    ``files`` are put in place, ``removed`` are taken away: path → shipped sha256.
    """

    series: str
    digest: str
    files: tuple[ResultFile, ...]
    removed: Mapping[str, str]


class _Files:
    """The files under the changes so far; None stands for a file that a patch removed."""

    def __init__(self, pristine: Pristine) -> None:
        self.pristine = pristine
        self._tops = {shipped.partition("/")[0] for shipped in pristine.paths}
        self.changed: dict[str, FileState | None] = {}
        self.failed: set[str] = set()

    def read(self, path: str) -> FileState | None:
        """Return the file as it is now."""
        return self.changed[path] if path in self.changed else self.pristine.read(path)

    def conflicts(self) -> list[str]:
        """Return what would make a path both a file and a folder, or two files of the wheel one."""
        written = {path for path, state in self.changed.items() if state}
        live = (self.pristine.paths | written) - {path for path, state in self.changed.items() if not state}
        folders = {parent.as_posix() for path in live for parent in PurePosixPath(path).parents}
        problems = [f"{path}: is a file and would be a folder" for path in sorted(live & folders)]
        return problems + [
            f"{path}: {problem}"
            for path in sorted(written - self.pristine.paths)
            if (problem := self._misplaced(path))
        ]

    def _misplaced(self, path: str) -> str | None:
        """Say why an added path is not the distribution's to write, if so: others live in site-packages."""
        top = path.partition("/")[0]
        if top not in self._tops:
            what = self.pristine.what
            return f"{what} has nothing below {top}: a series adds files only to its own distribution"
        return self.pristine.elsewhere(path)


def compute(series: Series, wheel: Path) -> SeriesResult:
    """Apply every patch of ``series`` in order to the pristine files of ``wheel``, in memory.

    Raises one :class:`~hostenv.errors.PatchError` that names every change that does not apply exactly (patch,
    file, hunk, expected and found lines); later changes of a file that already failed are left out. A wheel
    of another distribution or version is refused, and :class:`~hostenv.errors.SupplyError` says that a file
    is not what the wheel's RECORD says.
    """
    from hostenv.steps.pristine import PristineWheel  # noqa: PLC0415  zipfile takes 15 ms; seldom needed

    with PristineWheel(wheel, dist=series.dist, version=series.version) as pristine:
        return compute_on(series, pristine)


def compute_on(series: Series, pristine: Pristine) -> SeriesResult:
    """Do as :func:`compute` does with the files of anything: a wheel, or an overlay."""
    files = _Files(pristine)
    problems = [line for patch in series.patches for line in _apply(series, patch, files)]
    problems = problems or [f"patches/{series.name}: {problem}" for problem in files.conflicts()]
    if problems:
        raise PatchError(
            "\n".join(problems), hint=f"nothing was written; the files compared are those of {pristine.label}"
        )
    return _result(series, files)


def _apply(series: Series, patch: Patch, files: _Files) -> list[str]:
    """Apply one patch to ``files``; return its problems, one line each."""
    before = frozenset(files.failed)
    changes: list[FileChange] = []
    for change in patch.changes:
        paths = {change.source, change.target}
        if before.isdisjoint(paths):
            changes.append(change)
        else:
            files.failed |= paths
    application = apply_patch(changes, files.read)
    misfits = {misfit.path for misfit in application.misfits}
    files.failed |= {path for c in changes if c.source in misfits for path in (c.source, c.target)}
    files.changed |= application.files
    return [_line(series, patch, misfit) for misfit in application.misfits]


def _line(series: Series, patch: Patch, misfit: Misfit) -> str:
    hint = f" ({misfit.hint})" if misfit.hint else ""
    return f"patches/{series.name}/{patch.name}: {misfit.path}: {misfit.message}{hint}"


def _result(series: Series, files: _Files) -> SeriesResult:
    results: list[ResultFile] = []
    removed: dict[str, str] = {}
    for path, state in sorted(files.changed.items()):
        pristine = files.pristine.read(path)
        if state is None and pristine is not None:
            removed[path] = hashlib.sha256(pristine.content).hexdigest()
        elif state is not None and state != pristine:
            results.append(_result_file(path, state, pristine))
    return SeriesResult(
        series=series.name, digest=series.digest, files=tuple(results), removed=MappingProxyType(removed)
    )


def _result_file(path: str, state: FileState, pristine: FileState | None) -> ResultFile:
    return ResultFile(
        path=path,
        mode=0o755 if state.executable else 0o644,
        content=state.content,
        sha256=hashlib.sha256(state.content).hexdigest(),
        pristine_sha256=hashlib.sha256(pristine.content).hexdigest() if pristine else None,
    )
