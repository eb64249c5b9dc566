"""One file's section of a git diff: ``diff --git``, the extended headers, then hunks or binary data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.errors import PatchError
from hostenv.spec.filechange import Change, FileChange
from hostenv.spec.gitbinary import BinaryChange, decode_line, inflate, is_full_id
from hostenv.spec.hunk import read_hunks
from hostenv.spec.patchpath import safe_path, show, strip_components, unquote

if TYPE_CHECKING:
    from hostenv.spec.hunk import Hunk
    from hostenv.spec.patchlines import PatchLines

START = b"diff --git "
_MODES = {b"100644": False, b"100755": True}
_KINDS = {
    b"new file mode": Change.ADD,
    b"deleted file mode": Change.DELETE,
    b"rename from": Change.RENAME,
    b"rename to": Change.RENAME,
    b"copy from": Change.COPY,
    b"copy to": Change.COPY,
}
_EXTENDED = re.compile(
    rb"(old mode|new mode|new file mode|deleted file mode|rename from|rename to|copy from|copy to"
    rb"|similarity index|dissimilarity index|index) (.+)"
)
_INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: (\d{6}))?")
_BINARY = re.compile(rb"(literal|delta) (\d{1,12})")


@dataclass(kw_only=True, slots=True)
class _Section:
    """What the headers have said so far."""

    strip: int
    names: tuple[bytes, bytes] | None = None
    change: Change = Change.MODIFY
    headers: dict[bytes, bytes] = field(default_factory=dict)
    old_executable: bool | None = None
    new_executable: bool | None = None
    ids: tuple[str, str] | None = None


def read_git_section(lines: PatchLines, strip: int) -> FileChange:
    """Read one section; ``strip`` components are taken off its names, ``a/`` and ``b/`` counting as one."""
    section = _Section(strip=strip)
    section.names = _names_of_start(lines.take_header().removeprefix(START), strip)
    _read_headers(lines, section)
    if section.names is None:
        section.names = _names_of_plain_headers(lines, section)
    binary = _read_binary(lines, section) if lines.peek() == b"GIT binary patch\n" else None
    hunks = () if binary else _read_text(lines, section)
    source, target = (safe_path(name) for name in section.names)
    _check(lines, section, whole=bool(hunks or binary))
    return FileChange(
        change=section.change,
        source=source,
        target=target,
        old_executable=section.old_executable,
        new_executable=section.new_executable,
        hunks=hunks,
        binary=binary,
    )


def _names_of_start(text: bytes, strip: int) -> tuple[bytes, bytes] | None:
    """Return both names of the first line where they can be told apart: they are equal once stripped.

    Names with spaces are not quoted, so an unquoted line is tried at every space. A rename is named by its
    own headers, and None is returned here.
    """
    if text.startswith(b'"'):
        first, rest = unquote(text)
        pairs = [(first, unquote(rest[1:])[0] if rest.startswith(b' "') else rest[1:])]
    elif text.endswith(b'"') and b' "' in text:
        first, _, rest = text.partition(b' "')
        pairs = [(first, unquote(b'"' + rest)[0])]
    else:
        spaces = [at for at, byte in enumerate(text) if byte == ord(" ") and b'"' not in text]
        pairs = [(text[:at], text[at + 1 :]) for at in spaces]
    stripped = {(strip_components(old, strip), strip_components(new, strip)) for old, new in pairs}
    equal = {old for old, new in stripped if old is not None and old == new}
    return (name := equal.pop(), name) if len(equal) == 1 else None


def _read_headers(lines: PatchLines, section: _Section) -> None:
    while match := _EXTENDED.fullmatch(lines.peek().removesuffix(b"\n")):
        lines.take_header()
        key, value = match[1], match[2]
        if key in section.headers:
            raise lines.error(f"a second {key.decode()!r} for one file")
        section.headers[key] = value
        if key in _KINDS:
            if section.change not in (Change.MODIFY, _KINDS[key]):
                raise lines.error(f"{key.decode()!r} contradicts {section.change.value!r}")
            section.change = _KINDS[key]
        if key.endswith(b"mode"):
            _set_mode(lines, section, key, value)
        elif key == b"index":
            _set_index(lines, section, value)
    if section.change in (Change.RENAME, Change.COPY):
        section.names = _names_of_move(lines, section)


def _set_mode(lines: PatchLines, section: _Section, key: bytes, value: bytes) -> None:
    if value not in _MODES:
        kinds = {b"12": "a symbolic link", b"16": "a submodule"}
        what = kinds.get(value[:2], f"mode {show(value)}")
        raise lines.error(f"{what} cannot be patched: only regular files (100644, 100755) can")
    if key in (b"old mode", b"deleted file mode"):
        section.old_executable = _MODES[value]
    else:
        section.new_executable = _MODES[value]


def _set_index(lines: PatchLines, section: _Section, value: bytes) -> None:
    match = _INDEX.fullmatch(value)
    if match is None:
        raise lines.error(f"{show(value)} is not the value of an index line")
    section.ids = match[1].decode(), match[2].decode()
    if match[3]:
        _set_mode(lines, section, b"old mode", match[3])


def _names_of_move(lines: PatchLines, section: _Section) -> tuple[bytes, bytes]:
    """Return the names of a rename or copy; without ``a/`` and ``b/``, one less is stripped."""
    names = []
    for end in (b" from", b" to"):
        value = section.headers.get(section.change.value.encode() + end)
        if value is None:
            raise lines.error(f"'{section.change.value}{end.decode()}' is missing")
        name = unquote(value)[0] if value.startswith(b'"') else value
        stripped = strip_components(name, max(0, section.strip - 1))
        if stripped is None:
            raise lines.error(f"{show(name)} has fewer than {section.strip} components to strip")
        names.append(stripped)
    return names[0], names[1]


def _names_of_plain_headers(lines: PatchLines, section: _Section) -> tuple[bytes, bytes]:
    """Return the names of ``---`` and ``+++`` where the first line's are ambiguous (``a b a/b b``)."""
    if not lines.peek().startswith(b"--- "):
        raise lines.error(
            f"the names in 'diff --git' cannot be told apart, or have no {section.strip} components to strip",
            hint="is the -pN of the series file right?",
        )
    name = plain_name(lines.peek().removesuffix(b"\n").removeprefix(b"--- "))[0]
    stripped = strip_components(name, section.strip)
    if stripped is None or section.change is not Change.MODIFY:
        raise lines.error("the names in 'diff --git' cannot be told apart")
    return stripped, stripped


def plain_name(text: bytes) -> tuple[bytes, bytes]:
    """Split the name off a ``---`` or ``+++`` line: the name, and the time stamp that follows a tab."""
    if text.startswith(b'"'):
        name, rest = unquote(text)
        return name, rest.removeprefix(b"\t")
    name, _, stamp = text.partition(b"\t")
    return name, stamp


def _read_text(lines: PatchLines, section: _Section) -> tuple[Hunk, ...]:
    if lines.peek().startswith(b"Binary files "):
        raise lines.error(
            "a binary file differs, and the patch does not hold its bytes",
            hint="make it with git diff --binary",
        )
    if not lines.peek().startswith(b"--- "):
        return ()
    for prefix, index, absent in ((b"--- ", 0, Change.ADD), (b"+++ ", 1, Change.DELETE)):
        line = lines.take_header()
        name = plain_name(line.removeprefix(prefix))[0]
        expected = b"/dev/null" if section.change is absent else (section.names or ())[index]
        stripped = name if section.change is absent else strip_components(name, section.strip)
        if not line.startswith(prefix) or stripped != expected:
            raise lines.error(f"{show(line)} does not name {show(expected)}, as the lines above do")
    hunks = read_hunks(lines)
    if not hunks:
        raise lines.error("no hunk follows")
    return hunks


def _read_binary(lines: PatchLines, section: _Section) -> BinaryChange:
    lines.take_header()
    if section.ids is None or not all(map(is_full_id, section.ids)):
        raise lines.error(
            "a binary patch needs full object ids in its index line", hint="make it with git diff --binary"
        )
    delta, data = _read_binary_data(lines)
    if _BINARY.match(lines.peek()):
        _read_binary_data(lines)  # the way back: checked for form, not needed
    return BinaryChange(delta=delta, data=data, old_id=section.ids[0], new_id=section.ids[1])


def _read_binary_data(lines: PatchLines) -> tuple[bool, bytes]:
    header = lines.take_header()
    match = _BINARY.fullmatch(header)
    if match is None:
        raise lines.error(f"{show(header)} is neither 'literal SIZE' nor 'delta SIZE'")
    packed = bytearray()
    while line := lines.take_header():
        try:
            packed += decode_line(line)
        except PatchError as error:
            raise lines.error(error.message) from error
    return match[1] == b"delta", inflate(bytes(packed), int(match[2]))


def _check(lines: PatchLines, section: _Section, *, whole: bool) -> None:
    """Headers that contradict each other, or change nothing, raise."""
    if (b"old mode" in section.headers) != (b"new mode" in section.headers):
        raise lines.error("'old mode' and 'new mode' go together")
    if section.change is Change.MODIFY and not whole and b"new mode" not in section.headers:
        raise lines.error("the section changes nothing", hint="was the patch cut short?")
