"""The difference of two text files as people read it, bounded."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

LARGEST = 256 << 10
"""Bytes of a file of which a difference is shown."""

LONGEST = 200
"""Lines of a difference that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDifference:
    """A unified difference, or why there is none. ``cut``: lines that were left out at the end."""

    lines: tuple[str, ...] = ()
    cut: int = 0
    why: str | None = None


def text_difference(path: str, reference: str | None, target: str | None) -> TextDifference:
    """Compare two texts, ``None`` for a file that is not there.

    Line ends are told apart: a file that differs in nothing else differs.
    """
    lines = list(
        difflib.unified_diff(
            _lines(reference),
            _lines(target),
            "/dev/null" if reference is None else f"reference/{path}",
            "/dev/null" if target is None else f"target/{path}",
            lineterm="",
        )
    )
    return TextDifference(lines=tuple(lines[:LONGEST]), cut=max(0, len(lines) - LONGEST))


def _lines(text: str | None) -> list[str]:
    r"""Split at newlines only: ``\r`` and a missing last newline must show.

    >>> _lines("a\r\nb")
    ['a\r', 'b\\ No newline at end of file']
    """
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\\ No newline at end of file"
        return lines
    return lines[:-1]
