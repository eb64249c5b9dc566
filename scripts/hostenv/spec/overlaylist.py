"""The list of an overlay's files, ``overlays/<name>.files``: one line each, made to be read in a review.

::

    [sglang-kernel]
    0644 1043 5f3c…e1 sgl_kernel/__init__.py
    0755 88080384 09aa…7c sgl_kernel/sm100/common_ops.abi3.so
    link sgl_kernel/latest => sm100
    0644 31 77b0…02 {prefix}/share/kernel.json

A heading names the distribution that the lines below it belong to, ``[-]`` none. Paths are relative to
``site-packages``, or to the environment after ``{prefix}/``. A byte that is not printable ASCII stands as
``%XX``, and so does ``%``, which keeps every line one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "{prefix}/"
NOBODY = "-"
"""Stands for a distribution's name over files that no distribution owns."""

_OWN = frozenset({"lib", "lib64", "pyvenv.cfg"})
_SITE = re.compile(re.escape(PREFIX) + r"lib(64)?/python3\.\d+t?/site-packages/")
_LONGEST_PART = 255
_LONGEST = 4095
_FILE = re.compile(r"(0[0-7]{3}) (\d{1,18}) ([0-9a-f]{64}) (.+)")
_LINK = re.compile(r"link (.+) => (.+)")
_HEADING = re.compile(r"\[(-|[a-z0-9][a-z0-9-]*)\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayFile:
    """One file: ``mode`` as in 0o644, ``size`` in bytes; ``dist`` its owner's normalised name or ``-``.

    A link has a ``target`` and neither mode, size nor digest.
    """

    path: str
    dist: str
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: str | None = None


def render(files: Iterable[OverlayFile]) -> str:
    """Return the list's text: by distribution, then by path; the same for the same files."""
    lines: list[str] = []
    owner = None
    for file in sorted(files, key=lambda each: (each.dist, each.path)):
        if file.dist != owner:
            owner = file.dist
            lines.append(f"[{owner}]")
        if file.target is None:
            lines.append(f"{file.mode:04o} {file.size} {file.sha256} {quoted(file.path)}")
        else:
            lines.append(f"link {quoted(file.path, '>')} => {quoted(file.target, '>')}")
    return "".join(line + "\n" for line in lines)


def parse(text: str, document: str) -> tuple[OverlayFile, ...]:
    """Read a list; raises :class:`InputError` with every line that is wrong, and why."""
    problems: list[str] = []
    files = list(_read(text, document, problems))
    problems += [f"{document}: {problem}" for problem in _conflicts(files)]
    if problems:
        raise InputError("\n".join(problems), hint="nox -s overlay -- HOST NAME DIST... writes it anew")
    return tuple(files)


def _read(text: str, document: str, problems: list[str]) -> Iterator[OverlayFile]:
    dist = NOBODY
    for number, line in enumerate(text.splitlines(), 1):
        heading = _HEADING.fullmatch(line)
        if heading:
            dist = heading[1]
            continue
        try:
            yield _entry(line, dist)
        except ValueError as error:
            problems.append(f"{document}: line {number}: {error}")


def _entry(line: str, dist: str) -> OverlayFile:
    if link := _LINK.fullmatch(line):
        path, target = unquoted(link[1]), unquoted(link[2])
        _check_path(path)
        _check_target(path, target)
        return OverlayFile(path=path, dist=dist, target=target)
    match = _FILE.fullmatch(line)
    if not match:
        raise ValueError(f"{line[:60]!r} is not 'MODE SIZE SHA256 PATH'")
    path = unquoted(match[4])
    _check_path(path)
    return OverlayFile(path=path, dist=dist, mode=int(match[1], 8), size=int(match[2]), sha256=match[3])


def _check_path(path: str) -> None:
    parts = path.removeprefix(PREFIX).split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} is no path below site-packages or {PREFIX}")
    for part in parts:
        if len(part.encode("utf-8", "surrogateescape")) > _LONGEST_PART:
            raise ValueError(f"{part[:60]!r}… is longer than the {_LONGEST_PART} bytes of a file's name")
    own = path.startswith(PREFIX) and (
        parts[0] in _OWN or parts[0].startswith(".hostenv") or parts == ["bin"]
    )
    if own:
        raise ValueError(f"{path!r} lies where only the environment itself may write")
    if path.startswith(f"{PREFIX}bin/") and re.match(r"(python|activate)", parts[1]):
        raise ValueError(f"{path!r} would replace the environment's own interpreter or its scripts")


def _check_target(path: str, target: str) -> None:
    """Raise unless a link stays inside the environment: at most as many ``..`` as it lies deep."""
    depth = len(path.removeprefix(PREFIX).split("/")) - 1
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in {".", ""} else 1
        if depth < 0:
            raise ValueError(f"{path!r} links out of the tree, to {target!r}")
    if target.startswith("/") or "\0" in target or len(target.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise ValueError(f"{path!r} links out of the tree, to {target!r}")


def _conflicts(files: list[OverlayFile]) -> Iterator[str]:
    seen: set[str] = set()
    for file in files:
        if file.path in seen:
            yield f"{file.path} stands there twice"
        seen.add(file.path)
    for file in files:
        parts = file.path.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in seen:
                yield f"{file.path} lies below {'/'.join(parts[:end])}, which is a file or a link"
    yield from through_links(files)


def through_links(files: Iterable[OverlayFile]) -> Iterator[str]:
    """Say which links go up again after another of these: where that leads, no count of ``..`` tells."""
    links = {file.path: file.target for file in files if file.target is not None}
    for path, target in links.items():
        prefix = PREFIX if path.startswith(PREFIX) else ""
        at = path.removeprefix(PREFIX).split("/")[:-1]
        left = [part for part in target.split("/") if part not in {"", "."}]
        while left:
            part = left.pop(0)
            at = at[:-1] if part == ".." else [*at, part]
            passed = _SITE.sub("", prefix + "/".join(at))
            if part != ".." and passed in links and ".." in left:
                yield f"{path} links to {target!r}, which goes up again after {passed}, a link"
                break


def quoted(path: str, also: str = "") -> str:
    """Return a path with bytes that are not printable ASCII, ``%``, and what is in ``also``, as ``%XX``."""
    raw = path.encode("utf-8", "surrogateescape")
    plain = set(range(ord(" "), ord("~") + 1)) - set(b"%" + also.encode())
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in raw)


def unquoted(text: str) -> str:
    """Return the path that :func:`quoted` was given; raises ValueError for anything it does not return."""
    if not re.fullmatch(r"(?:[ -$&-~]|%[0-9A-F]{2})+", text):
        raise ValueError(f"{text[:60]!r} is not a quoted path")
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), text.encode("ascii"))
    return raw.decode("utf-8", "surrogateescape")
