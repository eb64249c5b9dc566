"""What a patch does to one file, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostenv.spec.gitbinary import BinaryChange
    from hostenv.spec.hunk import Hunk


class Change(StrEnum):
    """The kind of a change, in git's words."""

    MODIFY = "modify"
    ADD = "add"
    DELETE = "delete"
    RENAME = "rename"
    COPY = "copy"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """One file's change: paths are below site-packages; ``source`` is ``target`` unless renamed or copied.

    ``old_executable`` and ``new_executable`` are git's modes (100755 or 100644), None where the patch does
    not say. ``hunks`` and ``binary`` exclude each other; both may be missing (a rename, a mode, an empty
    file).
    """

    change: Change
    source: str
    target: str
    old_executable: bool | None = None
    new_executable: bool | None = None
    hunks: tuple[Hunk, ...] = ()
    binary: BinaryChange | None = None

    @property
    def consumes(self) -> str | None:
        """The path whose old content this change replaces or removes."""
        return None if self.change in (Change.ADD, Change.COPY) else self.source

    @property
    def writes(self) -> str | None:
        """The path that has content afterwards."""
        return None if self.change is Change.DELETE else self.target
