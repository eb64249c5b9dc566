"""A patch file: its preamble, and every file's change as a value.

Formats: POSIX ``diff -u``, GNU ``diff -ruN``, and git's (git-diff, "Generating patch text with -p"). What
git or GNU patch would guess, or skip as text between two diffs, is an error here.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

from hostenv.errors import PatchError
from hostenv.spec import gitdiff
from hostenv.spec.filechange import Change, FileChange
from hostenv.spec.hunk import read_hunks, split_lines
from hostenv.spec.patchlines import PatchLines
from hostenv.spec.patchpath import safe_path, show, strip_components

if TYPE_CHECKING:
    from collections.abc import Sequence

_SKIPPED = (b"Index: ", b"====", b"diff ")
# Any of them ends the preamble: a damaged first section must not pass for text before the diff.
_DIFF = (*_SKIPPED, b"--- ", b"+++ ", b"*** ", b"@@ ", b"index ", b"Binary files ", b"Only in ")
_SIGNATURE = b"-- \n"
_SIGNATURE_LINES = 2
_NO_FILE = b"/dev/null"
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.0+)? ([+-]\d{4})")


def read_patch(content: bytes, *, strip: int = 1) -> tuple[bytes, tuple[FileChange, ...]]:
    """Return the preamble (all before the first diff) and the changes of a patch file.

    ``strip`` is ``-pN``: how many leading components are no part of the names. Raises
    :class:`~hostenv.errors.PatchError` with the line.
    """
    if not content.endswith(b"\n"):
        raise PatchError("the patch file is empty or does not end with a newline: it was cut short")
    lines = split_lines(content)
    start = next((at for at, line in enumerate(lines) if line.startswith(_DIFF)), len(lines))
    changes = _read_changes(PatchLines(lines[start:], first=start + 1), strip)
    if not changes:
        raise PatchError("the patch file holds no unified or git diff")
    _check_together(changes)
    return b"".join(lines[:start]), changes


def _read_changes(lines: PatchLines, strip: int) -> tuple[FileChange, ...]:
    changes: list[FileChange] = []
    while line := lines.peek():
        if line.startswith(gitdiff.START):
            changes.append(gitdiff.read_git_section(lines, strip))
        elif line.startswith(b"--- "):
            changes.append(_read_plain_section(lines, strip))
        elif line == _SIGNATURE:
            _check_signature(lines)
        elif line == b"\n" or line.startswith(_SKIPPED):
            lines.take()
        else:
            lines.take()
            raise lines.error(
                f"{show(line)} belongs to no change",
                hint="the line counts of the hunk before it may be wrong, or a file's content is not carried",
            )
    return tuple(changes)


def _check_signature(lines: PatchLines) -> None:
    """Read the mail signature that ends a patch of git format-patch: ``-- `` and one line."""
    rest = [line for line in lines.rest() if line.strip()]
    if len(rest) > _SIGNATURE_LINES:
        raise lines.error("text follows the patch's signature")


def _read_plain_section(lines: PatchLines, strip: int) -> FileChange:
    old_name, old_stamp = _plain_header(lines, b"--- ")
    new_name, new_stamp = _plain_header(lines, b"+++ ")
    added = old_name == _NO_FILE or _is_epoch(old_stamp)
    deleted = new_name == _NO_FILE or _is_epoch(new_stamp)
    names = {strip_components(name, strip) for name in (old_name, new_name) if name != _NO_FILE}
    if added and deleted:
        raise lines.error("the file exists neither before nor after")
    if len(names) > 1:
        raise lines.error(
            f"{show(old_name)} and {show(new_name)} are not one file", hint="a rename needs git's own format"
        )
    name = names.pop()
    if name is None:
        raise lines.error(f"{show(old_name)} has no {strip} components to strip")
    hunks = read_hunks(lines)
    if not hunks:
        raise lines.error("no hunk follows")
    path = safe_path(name)
    change = Change.ADD if added else Change.DELETE if deleted else Change.MODIFY
    return FileChange(change=change, source=path, target=path, hunks=hunks)


def _plain_header(lines: PatchLines, prefix: bytes) -> tuple[bytes, bytes]:
    line = lines.take_header()
    if not line.startswith(prefix):
        raise lines.error(f"expected a line that starts with {prefix.decode()!r}, found {show(line)}")
    return gitdiff.plain_name(line.removeprefix(prefix))


def _is_epoch(stamp: bytes) -> bool:
    """Say whether a time stamp is 1970-01-01 00:00 UTC: so GNU ``diff -N`` marks a file that is not there."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return False
    text = b" ".join(match.groups()).decode()
    try:
        return dt.datetime.strptime(text, "%Y-%m-%d %H:%M:%S %z").timestamp() == 0
    except ValueError:
        return False


def _check_together(changes: Sequence[FileChange]) -> None:
    """Within one patch a path is changed once: git reads all sources before it writes, GNU patch does not."""
    for paths in ([c.consumes for c in changes], [c.writes for c in changes]):
        seen: set[str] = set()
        for path in paths:
            if path in seen:
                raise PatchError(f"{path} is changed twice", hint="split the patch in two")
            seen |= {path} if path else set()
