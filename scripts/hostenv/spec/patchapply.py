"""Exact application of a patch to files in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import PatchError
from hostenv.spec.filechange import Change
from hostenv.spec.gitbinary import apply_binary, is_blob
from hostenv.spec.hunk import apply_hunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostenv.spec.filechange import FileChange

ALREADY_APPLIED = "the file already holds the result: the change is in this release, or applied before"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """A regular file's content and whether it is executable."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """A change that does not apply: to which path, why, and what may help."""

    path: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Application:
    """What a patch makes of the files that it names (None: removed), and every change that did not fit."""

    files: dict[str, FileState | None]
    misfits: tuple[Misfit, ...]


def apply_patch(changes: Sequence[FileChange], read: Callable[[str], FileState | None]) -> Application:
    """Apply all changes of one patch.

    ``read`` gives a file as it was before this patch, None if there is none; like git, every change reads
    from that state, so renames may swap two files. Files of changes that do not fit are absent from the
    result.
    """
    removed = {change.consumes for change in changes if change.writes != change.consumes}
    files: dict[str, FileState | None] = {path: None for path in removed if path}
    misfits: list[Misfit] = []
    for change in changes:
        try:
            state = _apply_change(change, read, free=change.target in removed)
        except PatchError as error:
            hint = ALREADY_APPLIED if _holds_result(change, read) else error.hint
            misfits.append(Misfit(path=change.source, message=error.message, hint=hint))
        else:
            if change.writes:
                files[change.writes] = state
    return Application(files=files, misfits=tuple(misfits))


def _apply_change(
    change: FileChange, read: Callable[[str], FileState | None], *, free: bool
) -> FileState | None:
    """Return what stands at the change's target afterwards."""
    source = read(change.source) if change.change is not Change.ADD else FileState(content=b"")
    if source is None:
        raise PatchError("the distribution has no such file")
    if change.writes not in (None, change.consumes) and not free and read(change.target) is not None:
        raise PatchError(f"{change.target} is to be made, and exists")
    if change.old_executable not in (None, source.executable):
        raise PatchError(
            f"expected mode {_mode(executable=not source.executable)}, "
            f"found {_mode(executable=source.executable)}"
        )
    content = _content(change, source.content)
    if change.change is Change.DELETE:
        if content:
            raise PatchError("the patch deletes the file, but its hunks do not remove every line")
        return None
    executable = source.executable if change.new_executable is None else change.new_executable
    return FileState(content=content, executable=executable)


def _content(change: FileChange, old: bytes) -> bytes:
    return apply_binary(change.binary, old) if change.binary else apply_hunks(old, change.hunks)


def _mode(*, executable: bool) -> str:
    return "100755" if executable else "100644"


def _holds_result(change: FileChange, read: Callable[[str], FileState | None]) -> bool:
    """Say whether the change's result stands where it would be written."""
    target = read(change.target)
    if change.change in (Change.DELETE, Change.RENAME) and read(change.source) is not None:
        return False
    if change.change is Change.DELETE or target is None:
        return change.change is Change.DELETE
    if change.new_executable not in (None, target.executable):
        return False
    if change.binary:
        return is_blob(target.content, change.binary.new_id)
    try:
        before = apply_hunks(target.content, [hunk.reversed() for hunk in change.hunks])
    except PatchError:
        return False
    return change.change is not Change.ADD or not before
