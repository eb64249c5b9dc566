"""Names in a patch: quoting, stripping, and the paths that a patch may touch."""

from __future__ import annotations

import re

from hostenv.errors import PatchError

_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
    b'"': b'"',
    b"\\": b"\\",
}
_QUOTED = re.compile(rb'"((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_METADATA = (".dist-info", ".egg-info", ".data")


def unquote(text: bytes) -> tuple[bytes, bytes]:
    r"""Split a name in C-style quotes off ``text``: the name's bytes, and what follows the closing quote.

    ``"a/caf\303\251" b`` gives ``a/café`` and `` b``. Git and GNU diff quote a name that holds a control
    character, a quote, a backslash, or (git, by default) a byte above 127.
    """
    match = _QUOTED.match(text)
    if match is None:
        raise PatchError(f"the quoted name {show(text)} has no closing quote")
    return _ESCAPE.sub(_unescape, match[1]), text[match.end() :]


def _unescape(match: re.Match[bytes]) -> bytes:
    escape: bytes = match[1]
    if len(escape) == len("303"):
        return bytes([int(escape, 8)])
    try:
        return _ESCAPES[escape]
    except KeyError:
        raise PatchError(f"unknown escape {show(match[0])} in a quoted name") from None


def strip_components(name: bytes, count: int) -> bytes | None:
    """Return ``name`` without its first ``count`` components (``-pN``).

    None if it has no more, or is absolute: the slash at the start of a name is no component to strip.
    """
    if count and name.startswith(b"/"):
        return None
    parts = name.split(b"/", count)
    return parts[count] if len(parts) > count and parts[count] else None


def safe_path(name: bytes) -> str:
    """Return ``name`` as a path below site-packages, or raise.

    Refused: absolute paths, ``.``, ``..`` and empty components, ``.git``, bytes that are no UTF-8, and the
    installer's own folders (``*.dist-info``, ``*.egg-info``, ``*.data``): RECORD stays as shipped, and what
    lies under ``*.data/`` is installed elsewhere than it is named.
    """
    try:
        path = name.decode()
    except UnicodeDecodeError:
        raise PatchError(f"the path {show(name)} is not UTF-8") from None
    parts = path.split("/")
    if path.startswith("/"):
        raise PatchError(f"the path {path!r} is absolute")
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or "\0" in path:
        raise PatchError(f"the path {path!r} is not a plain path below site-packages")
    if any(part.lower() == ".git" for part in parts):
        raise PatchError(f"the path {path!r} leads into a git folder")
    if parts[0].lower().endswith(_METADATA):
        raise PatchError(f"the path {path!r} is the installer's: metadata and *.data are never patched")
    return path


def show(line: bytes, limit: int = 100) -> str:
    """Return ``line`` for an error message: quoted, escaped, and cut at ``limit`` characters."""
    text = repr(line.decode(errors="backslashreplace"))
    return text if len(text) <= limit else f"{text[:limit]}…"
