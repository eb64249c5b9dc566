"""Hunks of a unified diff: reading them, and applying them exactly.

Exactly means: at the line that the header names, every context and removed line byte for byte. GNU patch
and git search for another place, and GNU patch drops context lines (fuzz); neither happens here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.errors import PatchError
from hostenv.spec.patchpath import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostenv.spec.patchlines import PatchLines

_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_USUAL_CONTEXT = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    r"""One place of a file: the lines that stand there, and those that shall.

    Lines keep their newline; one without it is the file's last (``\ No newline at end of file``). ``old_at``
    and ``new_at`` count the lines before the hunk. ``leading`` and ``trailing`` count context lines.
    """

    number: int
    old_at: int
    new_at: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    leading: int
    trailing: int

    def reversed(self) -> Hunk:
        """Return the hunk that undoes this one."""
        return Hunk(
            number=self.number,
            old_at=self.new_at,
            new_at=self.old_at,
            old=self.new,
            new=self.old,
            leading=self.leading,
            trailing=self.trailing,
        )


def read_hunks(lines: PatchLines) -> tuple[Hunk, ...]:
    """Read all hunks that follow each other; what their counts do not cover raises later, or here."""
    hunks: list[Hunk] = []
    while lines.peek().startswith(b"@@ "):
        hunk = _read_hunk(lines, len(hunks) + 1)
        if hunks and hunk.old_at < hunks[-1].old_at + len(hunks[-1].old):
            raise lines.error(f"hunk {hunk.number} does not follow hunk {hunks[-1].number}")
        hunks.append(hunk)
    return tuple(hunks)


def _read_hunk(lines: PatchLines, number: int) -> Hunk:
    header = lines.take()
    match = _HEADER.match(header)
    if match is None:
        raise lines.error(f"{show(header)} is not a hunk header")
    old_start, old_count, new_start, new_count = (int(group or b"1") for group in match.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    kinds: list[bytes] = []
    while len(old) < old_count or len(new) < new_count or (kinds and lines.peek().startswith(b"\\ ")):
        _read_line(lines, old, new, kinds)
        if len(old) > old_count or len(new) > new_count:
            raise lines.error(f"hunk {number} has more lines than its header {match[0].decode()} counts")
    if not {b"-", b"+"} & set(kinds):
        raise lines.error(f"hunk {number} changes nothing")
    kinds = [kind for kind in kinds if kind != b"\\"]
    return Hunk(
        number=number,
        old_at=_lines_before(lines, old_start, old_count),
        new_at=_lines_before(lines, new_start, new_count),
        old=tuple(old),
        new=tuple(new),
        leading=_run_of_context(kinds),
        trailing=_run_of_context(kinds[::-1]),
    )


def _read_line(lines: PatchLines, old: list[bytes], new: list[bytes], kinds: list[bytes]) -> None:
    line = lines.take()
    # Both tools read an empty line as an empty context line (diff --suppress-blank-empty writes it).
    kind, text = (b" ", line) if line == b"\n" else (line[:1], line[1:])
    if kind == b"\\" and kinds and kinds[-1] != b"\\" and text.startswith(b" "):
        for side, carries in ((old, b" -"), (new, b" +")):
            if kinds[-1] in carries:
                side[-1] = side[-1].removesuffix(b"\n")
    elif kind in (b" ", b"-", b"+"):
        if kind in b" -":
            old.append(text)
        if kind in b" +":
            new.append(text)
    else:
        raise lines.error(f"{show(line)} is no line of a hunk (hunk lines start with ' ', '+' or '-')")
    kinds.append(kind)


def _lines_before(lines: PatchLines, start: int, count: int) -> int:
    """Turn a header's line number into the number of lines before the hunk.

    With a count of 0 the header names the line after which the hunk stands (POSIX, diff -u).
    """
    before = start - 1 if count else start
    if before < 0:
        raise lines.error("the hunk's header names line 0 and lines at it")
    return before


def _run_of_context(kinds: Sequence[bytes]) -> int:
    return next((index for index, kind in enumerate(kinds) if kind != b" "), len(kinds))


def split_lines(content: bytes) -> list[bytes]:
    r"""Return the lines with their newline; only ``\n`` ends a line, as in diff and git."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def apply_hunks(content: bytes, hunks: Sequence[Hunk]) -> bytes:
    """Return ``content`` with every hunk applied; the first that does not fit raises :class:`PatchError`."""
    old = split_lines(content)
    new: list[bytes] = []
    at = 0
    for hunk in hunks:
        new += old[at : hunk.old_at]
        _check_place(hunk, old, len(new))
        new += hunk.new
        at = hunk.old_at + len(hunk.old)
    new += old[at:]
    cut = next((number for number, line in enumerate(new[:-1], 1) if not line.endswith(b"\n")), None)
    if cut is not None:
        raise PatchError(f"line {cut} of the result would have no newline, and lines follow it")
    return b"".join(new)


def _check_place(hunk: Hunk, file: Sequence[bytes], written: int) -> None:
    for index, expected in enumerate(hunk.old, hunk.old_at):
        found = (
            show(file[index]) if index < len(file) else f"the end of the file ({counted(len(file), 'line')})"
        )
        if index >= len(file) or file[index] != expected:
            raise PatchError(
                f"hunk {hunk.number}: line {index + 1}: expected {show(expected)}, found {found}"
            )
    if hunk.old_at > len(file):
        raise PatchError(
            f"hunk {hunk.number}: line {hunk.old_at}: expected lines before it, found the end of the file "
            f"({counted(len(file), 'line')})"
        )
    if hunk.new_at != written:
        raise PatchError(
            f"hunk {hunk.number}: its header says that {hunk.new_at} lines of the result stand before it, "
            f"but there are {written}"
        )
    _check_ends(hunk, len(file))


def _check_ends(hunk: Hunk, length: int) -> None:
    """Less context at one end than at the other was the file's start or end when the patch was made.

    GNU patch judges so too; :data:`_USUAL_CONTEXT` bounds it, because ``git diff -W`` widens one side.
    """
    if hunk.trailing < min(hunk.leading, _USUAL_CONTEXT) and hunk.old_at + len(hunk.old) != length:
        raise PatchError(
            f"hunk {hunk.number}: it was made at the end of the file (line {hunk.old_at + len(hunk.old)}), "
            f"but the file has {length} lines"
        )
    if hunk.leading < min(hunk.trailing, _USUAL_CONTEXT) and hunk.old_at:
        raise PatchError(
            f"hunk {hunk.number}: it was made at the start of the file, but its header names line "
            f"{hunk.old_at + 1}"
        )
