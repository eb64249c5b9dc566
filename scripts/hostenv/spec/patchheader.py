"""The header of a patch, after DEP-3 (Debian's patch tagging guidelines): what it is, whence, and its state.

    Description: one line
     and as many more as it needs
    Origin: where the change comes from (a commit, a pull request, or who wrote it)
    Forwarded: no | not-needed | yes | URL
    Author: …
    Captured: sha256 of all else, where a capture wrote it: it may replace what nobody has edited since

``Subject`` stands for Description, ``From`` for Author, ``Applied-Upstream`` for Forwarded. Fields end at
the first empty line; free text may follow until the diff begins.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from hostenv.errors import PatchError

_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)")
_SAME = {"subject": "description", "from": "author"}
_REQUIRED = ("description", "origin")
_OPTIONAL = (
    "forwarded",
    "applied-upstream",
    "author",
    "bug",
    "captured",
    "reviewed-by",
    "acked-by",
    "last-update",
    "date",
)
_FORWARDED = re.compile(r"no|not-needed|yes|https?://\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchHeader:
    """What a patch says of itself. One of ``forwarded`` and ``applied_upstream`` is always there."""

    description: str
    origin: str
    forwarded: str | None = None
    applied_upstream: str | None = None
    author: str | None = None


def read_header(preamble: bytes) -> PatchHeader:
    """Read the header at the start of a patch file; every problem is in the one error raised."""
    try:
        lines = preamble.decode().splitlines()
    except UnicodeDecodeError:
        raise PatchError("the patch's header is not UTF-8") from None
    problems: list[str] = []
    fields = _fields(lines, problems)
    problems += [f"the header lacks {name.capitalize()}" for name in _REQUIRED if not fields.get(name)]
    forwarded, applied = fields.get("forwarded"), fields.get("applied-upstream")
    if not (forwarded or applied):
        problems.append("the header lacks the upstream state: Forwarded or Applied-Upstream")
    if forwarded and not _FORWARDED.fullmatch(forwarded):
        problems.append(f"Forwarded is 'no', 'not-needed', 'yes' or a URL, not {forwarded!r}")
    if problems:
        raise PatchError("; ".join(problems), hint="README shows a patch's header")
    return PatchHeader(
        description=fields["description"],
        origin=fields["origin"],
        forwarded=forwarded,
        applied_upstream=applied,
        author=fields.get("author"),
    )


def _fields(lines: list[str], problems: list[str]) -> dict[str, str]:
    """Return the fields by lower-case name, continuation lines joined."""
    fields: dict[str, str] = {}
    name = ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            break
        match = _FIELD.fullmatch(line)
        if line[0] in " \t" and name:
            fields[name] = f"{fields[name]}\n{line.strip()}".strip()
        elif match is None:
            problems.append(
                f"line {number}: {line!r} is no header field, and no continuation (they are indented)"
            )
        else:
            written = match[1].lower()
            name = _SAME.get(written, written)
            problems += _check_name(number, match[1], name, fields)
            fields[name] = match[2].strip()
    return fields


def _check_name(number: int, written: str, name: str, fields: dict[str, str]) -> list[str]:
    known = (*_REQUIRED, *_OPTIONAL, *_SAME)
    if name in fields:
        return [f"line {number}: a second {written}"]
    if name in known or name.startswith(("bug-", "x-")):
        return []
    near = difflib.get_close_matches(name, known, n=1)
    return [f"line {number}: unknown field {written!r}" + (f" (did you mean {near[0]!r}?)" if near else "")]
