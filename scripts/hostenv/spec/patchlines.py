"""A patch file as lines with a place, for the parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.errors import PatchError
from hostenv.spec.patchpath import show

if TYPE_CHECKING:
    from collections.abc import Sequence


class PatchLines:
    """Lines that are read once, in order; each ends with a newline, and a carriage return is content."""

    def __init__(self, lines: Sequence[bytes], *, first: int) -> None:
        self._lines = lines
        self._first = first
        self._next = 0

    @property
    def number(self) -> int:
        """The line number, in the patch file, of the line that was read last."""
        return self._first + self._next - 1

    def peek(self) -> bytes:
        """Return the next line, or nothing at the end."""
        return self._lines[self._next] if self._next < len(self._lines) else b""

    def take(self) -> bytes:
        """Return the next line and go on; the end of the file raises."""
        line = self.peek()
        if not line:
            raise PatchError(f"line {self.number}: the patch ends here, in the middle of a change")
        self._next += 1
        return line

    def take_header(self) -> bytes:
        """Return the next line without its newline; a carriage return raises: a name would have it quoted."""
        line = self.take().removesuffix(b"\n")
        if b"\r" in line:
            raise self.error(f"{show(line)} has a carriage return: were the patch's line ends changed?")
        return line

    def rest(self) -> list[bytes]:
        """Return all lines that were not read, and end."""
        lines = list(self._lines[self._next :])
        self._next = len(self._lines)
        return lines

    def error(self, message: str, *, hint: str | None = None) -> PatchError:
        """Return an error that names the line that was read last."""
        return PatchError(f"line {self.number}: {message}", hint=hint)
