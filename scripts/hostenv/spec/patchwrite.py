"""Writing patches: what turns one text file into another, in the form that git writes and a series reads."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostenv.spec.patchapply import FileState

LARGEST_TEXT = 4 << 20
"""Bytes of a file above which its change is no patch that anybody would read."""

_NO_NEWLINE = b"\\ No newline at end of file\n"
_PLAIN = re.compile(rb"[ !#-\[\]-~]+")


def is_text(state: FileState | None) -> bool:
    """Tell whether a file's content can stand in a patch as lines: no NUL in it, as git decides it."""
    return state is None or b"\0" not in state.content


def header(fields: Mapping[str, str]) -> bytes:
    """Return a patch's header (DEP-3): further lines of a value are indented."""
    lines = [f"{name}: " + value.strip().replace("\n", "\n ") for name, value in fields.items()]
    return ("\n".join(lines) + "\n\n").encode()


def write_change(path: str, before: FileState | None, after: FileState | None) -> bytes:
    """Return the part of a patch that makes ``before`` into ``after``; ``None`` is no file.

    Nothing where they are equal. Both must be text (:func:`is_text`).
    """
    if before == after:
        return b""
    old, new = _name("a/", path), _name("b/", path)
    lines = [b"diff --git %s %s\n" % (old, new), *_modes(before, after)]
    hunks = list(_hunks(before.content if before else b"", after.content if after else b""))
    if hunks:
        lines.append(b"--- %s\n" % (old if before else b"/dev/null"))
        lines.append(b"+++ %s\n" % (new if after else b"/dev/null"))
    return b"".join([*lines, *hunks])


def _modes(before: FileState | None, after: FileState | None) -> Iterator[bytes]:
    if before is None and after is not None:
        yield b"new file mode %s\n" % _mode(after)
    elif after is None and before is not None:
        yield b"deleted file mode %s\n" % _mode(before)
    elif before and after and before.executable != after.executable:
        yield b"old mode %s\n" % _mode(before)
        yield b"new mode %s\n" % _mode(after)


def _mode(state: FileState) -> bytes:
    return b"100755" if state.executable else b"100644"


def _hunks(before: bytes, after: bytes) -> Iterator[bytes]:
    """Yield the lines of the hunks. Latin-1 gives every byte a character and takes it back."""
    found = difflib.unified_diff(_lines(before), _lines(after))
    for number, line in enumerate(found):
        raw = line.encode("latin-1")
        if number > 1:  # the names, which come first, are written by others
            yield raw
            if not raw.endswith(b"\n"):
                yield b"\n" + _NO_NEWLINE


def _lines(content: bytes) -> list[str]:
    return [line.decode("latin-1") for line in re.findall(rb"[^\n]*\n|[^\n]+", content)]


def _name(prefix: str, path: str) -> bytes:
    """Return a name as git writes it: in C-style quotes where a byte would be ambiguous."""
    raw = (prefix + path).encode("utf-8", "surrogateescape")
    if _PLAIN.fullmatch(raw):
        return raw
    quoted = b"".join(bytes([byte]) if _PLAIN.fullmatch(bytes([byte])) else b"\\%03o" % byte for byte in raw)
    return b'"' + quoted + b'"'
