"""Lines of words: wrapped between words on a terminal, whole in a log."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from rich.text import Text

from hostenv.report.findings import printable

if TYPE_CHECKING:
    from rich.console import Console

    from hostenv.errors import HostenvError

_NARROWEST = 20
"""Columns that words get, however narrow the terminal is."""
_LABEL = re.compile(r"\s*\S+\s{2,}|\s*(?:→ )?")
"""What a line begins with that its other lines stand clear of: ``fetch    ``, an arrow, spaces."""


def labelled(label: Text, words: str, out: Console, *, style: str = "") -> None:
    """Print words after a label; on a terminal further lines stand below the first one's words.

    A word longer than a line stays whole: a path can be copied then.
    """
    width = max(_NARROWEST, out.width - label.cell_len)
    pieces = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
    for piece in pieces if out.is_terminal and pieces else [words]:
        out.print(Text.assemble(label, (piece, style)), soft_wrap=True)
        label = Text(" " * label.cell_len)


def line(text: str, out: Console, *, indent: int = 0, style: str = "") -> None:
    """Print one line, in its own columns: what it begins with stands alone at the left."""
    begins = _LABEL.match(text)
    at = begins.end() if begins else 0
    labelled(Text(" " * indent + text[:at], style), text[at:], out, style=style)


def error_lines(error: HostenvError, host: str, out: Console, *, head: Text | None = None) -> None:
    """Print what keeps a host from its result, below or after its name, which is not said again."""
    first, *others = str(error).removeprefix(f"{host}: ").splitlines()
    labelled(head or Text("  "), printable(first), out)
    for each in others:
        line(printable(each), out, indent=0 if head else 2)


def failed(host: str) -> Text:
    """Return the beginning of the line of a host that failed."""
    return Text.assemble((f"✗ {host}", "bold red"), "  ")
