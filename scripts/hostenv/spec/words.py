"""The small vocabulary of specs: how a path, a size, an age, a name is written, and what is refused."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, NormalizedName, canonicalize_name
from packaging.version import Version

from hostenv.document import InvalidValueError, did_you_mean, parsed, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Node, Reader

PLACEHOLDERS = ("build", "root", "id", "port")
"""What ``{…}`` may name in a service's words: the build's folder, the root, the build's id, the port."""

_UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_LARGEST_SIZE = 2**63 - 1
"""Bytes: the largest file offset (off_t) there is."""
_LONGEST = 100
"""Characters of a version, or of a range of them."""
_SPANS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def line(node: Node) -> str:
    """Read a string of one line without control characters, not empty."""
    value = text(node)
    if not value.strip():
        raise InvalidValueError("must not be empty")
    if not value.isprintable():
        raise InvalidValueError("has a line break or a control character")
    return value


def matching(pattern: str, what: str) -> Reader[str]:
    """Read a string that a regular expression matches as a whole; ``what`` says in words what it must be."""
    compiled = re.compile(pattern)

    def reader(node: Node) -> str:
        value = line(node)
        if not compiled.fullmatch(value):
            raise InvalidValueError(f'must be {what}, is "{value}"')
        return value

    return reader


name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, dots, dashes and underscores")
tag = matching(r"(?!all$)[a-z0-9][a-z0-9-]*", 'a tag of small letters, digits and dashes ("all" is taken)')
sha256 = matching(r"[0-9a-f]{64}", "a sha256 of 64 small hexadecimal digits")
machine_id = matching(r"[0-9a-f]{32}", "the 32 hexadecimal digits of /etc/machine-id")
host_key = matching(r"SHA256:[A-Za-z0-9+/]{43}", 'a fingerprint as "ssh-keygen -l" prints it, SHA256:…')
capability = matching(r"[0-9]{1,2}\.[0-9]", 'a compute capability like "12.0"')
soname = matching(r"[^/\s]+\.so(\.[0-9A-Za-z_]+)*", 'a SONAME like "libnuma.so.1"')
unit = matching(r"[A-Za-z0-9:_.@-]+\.service", 'a systemd unit like "sglang.service"')
gpu_uuid = matching(
    r"(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "a GPU's UUID as nvidia-smi -L prints it"
)


def alias(node: Node) -> str:
    """Read an SSH alias or a host's name; a user or an option in it is refused."""
    value = line(node)
    if "@" in value:
        raise InvalidValueError(f'must be an SSH alias without a user (that is host.user), is "{value}"')
    if not re.fullmatch(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*", value):
        raise InvalidValueError(f'must be an SSH alias, is "{value}"')
    return value


def host_path(node: Node) -> PurePosixPath:
    """Read a path on the host: absolute, or below the user's home there as ``~/…``; never with ``..``."""
    value = line(node)
    path = PurePosixPath(value)
    if ".." in path.parts:
        raise InvalidValueError(f'must not contain "..", is "{value}"')
    if not path.is_absolute() and not (path.parts[:1] == ("~",) and len(path.parts) > 1):
        raise InvalidValueError(f'must be an absolute path, or one that starts with "~/", is "{value}"')
    if path.is_absolute() and len(path.parts) == 1:
        raise InvalidValueError("must not be the root of the file system")
    return path


def at_home(path: PurePosixPath, home: PurePosixPath) -> PurePosixPath:
    """Return a spec's path with a leading ``~`` replaced by the user's home folder on that host."""
    return home.joinpath(*path.parts[1:]) if path.parts[:1] == ("~",) else path


def relative_path(node: Node) -> str:
    """Read a path below something: relative and without ``..``; a trailing slash is kept."""
    value = line(node)
    if value.startswith("/") or ".." in PurePosixPath(value).parts:
        raise InvalidValueError(f'must be a relative path without "..", is "{value}"')
    return value


def size(node: Node) -> int:
    """Read bytes from ``30GiB``, ``500 MB`` or a plain number of bytes."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        if node.value < 0:
            raise InvalidValueError(f"must not be negative, is {node.value}")
        return _bounded(node.value)
    value = line(node)
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)", value)
    if not match or match[2] not in _UNITS:
        near = did_you_mean(match[2], _UNITS) if match else ""
        raise InvalidValueError(f'must be a size like "30GiB", is "{value}"{near}')
    return _bounded(int(float(match[1]) * _UNITS[match[2]]))


def _bounded(size: int) -> int:
    if size > _LARGEST_SIZE:
        raise InvalidValueError("must be less than 8 EiB")
    return size


def span(node: Node) -> dt.timedelta:
    """Read a length of time from ``90m``, ``12h``, ``30d`` or ``4w``."""
    value = line(node)
    match = re.fullmatch(r"([0-9]{1,5})\s*([mhdw])", value)
    if not match:
        raise InvalidValueError(f'must be a length of time like "12h" or "30d", is "{value}"')
    return dt.timedelta(**{_SPANS[match[2]]: int(match[1])})


def glibc(node: Node) -> tuple[int, int]:
    """Read a glibc version like ``2.34``."""
    value = line(node)
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,3})", value)
    if not match:
        raise InvalidValueError(f'must be a glibc version like "2.34", is "{value}"')
    return int(match[1]), int(match[2])


def pythons(node: Node) -> SpecifierSet:
    """Read which Pythons fit: ``3.12`` (every 3.12) or specifiers like ``>=3.11,<3.14``."""
    value = line(node)
    if len(value) > _LONGEST:
        raise InvalidValueError(f"must be at most {_LONGEST} characters long, has {len(value)}")
    specifiers = f"=={value}.*" if re.fullmatch(r"3\.[0-9]{1,2}", value) else value
    try:
        return SpecifierSet(specifiers)
    except InvalidSpecifier:
        raise InvalidValueError(
            f'must be a Python like "3.12", or a range like ">=3.11,<3.14", is "{value}"'
        ) from None


def requirement(node: Node) -> Requirement:
    """Read a requirement that an index can serve: a direct reference (``name @ URL``) is refused.

    A lock names no index and no URL, so it could not carry such a requirement.
    """
    value = parsed(Requirement, "requirement")(node)
    if value.url:
        raise InvalidValueError(
            f'"{value.name}" must not name a URL: take the wheel from a wheelhouse or an overlay'
        )
    return value


def _distribution(value: str) -> NormalizedName:
    try:
        return canonicalize_name(value, validate=True)
    except InvalidName as error:
        raise ValueError(str(error)) from None


distribution = parsed(_distribution, "name of a distribution")
version = parsed(Version, "version")


def template(allowed: tuple[str, ...] = PLACEHOLDERS) -> Reader[str]:
    """Read a string in which ``{…}`` may only be one of these placeholders; it is kept as it stands."""

    def reader(node: Node) -> str:
        value = text(node)
        if not value.isprintable():
            raise InvalidValueError("has a line break or a control character")
        for found in re.findall(r"\{([^{}]*)\}", value):
            if re.fullmatch(r"[A-Za-z_]\w*", found) and found not in allowed:
                known = ", ".join(f"{{{word}}}" for word in allowed) or "none"
                raise InvalidValueError(
                    f'unknown placeholder "{{{found}}}"{did_you_mean(found, allowed)} (known: {known})'
                )
        return value

    return reader


def fill(value: str, values: Mapping[str, str]) -> str:
    """Replace each ``{placeholder}`` that ``values`` names; other braces (JSON in an argument) stay."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), value)
