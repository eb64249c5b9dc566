"""Reading one installed distribution's ``.dist-info``: METADATA, WHEEL, RECORD, entry points, origin.

Formats: the recording-installs, core-metadata, binary-distribution and entry-points specifications of
packaging.python.org. What does not follow them is a problem of that distribution, never an exception.
"""

from __future__ import annotations

import binascii
import json
import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hostenv.agent import recordfile, regular

_LARGEST = 4_000_000
"""Bytes of a file of ``.dist-info`` that are read."""
_LARGEST_RECORD = 64_000_000
"""The same of RECORD: the largest one seen has 2 MB."""
_LONGEST_SIZE = 18
"""Decimal digits of a file's size: what a filesystem counts in 63 bits."""


class Row(NamedTuple):
    """What RECORD says of a file: ``sha256`` in binary, or another algorithm's name, or neither; its size."""

    sha256: Optional[bytes] = None
    other: Optional[str] = None
    size: Optional[int] = None


@dataclass
class Distribution:
    """One installed distribution. ``info`` and the keys of ``rows`` are relative to the environment."""

    info: bytes
    name: str
    version: str
    metadata: Dict[str, List[str]] = field(default_factory=dict)
    wheel: Dict[str, List[str]] = field(default_factory=dict)
    rows: Dict[bytes, Row] = field(default_factory=dict)
    entry_points: Dict[str, List[str]] = field(default_factory=dict)
    installer: Optional[str] = None
    direct_url: Optional[Dict[str, Any]] = None
    problems: List[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """``name==version``, the name normalised: tells two installed versions of one name apart."""
        return f"{normalised(self.name)}=={self.version}"

    @property
    def editable(self) -> bool:
        """Whether its modules lie elsewhere, in a source tree (PEP 610, PEP 660)."""
        stated = (self.direct_url or {}).get("dir_info")
        return (isinstance(stated, dict) and stated.get("editable") is True) or any(
            b"/__editable__" in path for path in self.rows
        )


def normalised(name: str) -> str:
    """Return a distribution's name as names are compared (the name-normalization specification)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(root: str, info: bytes) -> Distribution:
    """Read the ``.dist-info`` (or legacy ``.egg-info``) folder at ``info`` below ``root``."""
    folder = os.path.join(root, os.fsdecode(info))
    stem = os.path.basename(folder).rpartition(".")[0]
    name, _, version = stem.partition("-")
    legacy = info.endswith(b".egg-info")
    problems: List[str] = []
    stated = _content(folder, "PKG-INFO" if legacy else "METADATA", problems, required=True)
    metadata = headers(stated)
    if "Requires-Dist" in metadata:
        metadata["Requires-Dist"] = list(dict.fromkeys(metadata["Requires-Dist"]))
    found = Distribution(
        info=info,
        name=next(filter(None, metadata.get("Name", ())), name),
        version=next(filter(None, metadata.get("Version", ())), version),
        metadata=metadata,
        problems=problems,
    )
    if not problems:
        absent = [each for each in ("Name", "Version") if not any(metadata.get(each, ()))]
        problems += [f"METADATA has no {each}" for each in absent]
    found.entry_points = entry_points(_content(folder, "entry_points.txt", problems))
    if legacy:
        problems.append("is installed the legacy way, without RECORD")
        return found
    before = len(problems)
    found.wheel = headers(_content(folder, "WHEEL", problems, required=True))
    if len(problems) == before and not any(found.wheel.get("Tag", ())):
        problems.append("WHEEL has no Tag")
    found.installer = _content(folder, "INSTALLER", problems).strip() or None
    found.direct_url = _json(_content(folder, "direct_url.json", problems), problems)
    site = posixpath.dirname(info)
    before = len(problems)
    found.rows, bad = rows(_content(folder, "RECORD", problems, required=True), site)
    problems.extend(bad)
    if len(problems) == before and not found.rows:
        problems.append("RECORD names no file")
    return found


def headers(text: str) -> Dict[str, List[str]]:
    """Return the header fields of METADATA or WHEEL, each with all its values in order."""
    fields: Dict[str, List[List[str]]] = {}
    values: List[List[str]] = []
    for line in text.splitlines():
        if not line:
            break  # the description follows
        if line[0] in " \t" and values:
            values[-1].append(line.strip())
            continue
        name, colon, value = line.partition(":")
        if colon:
            values = fields.setdefault(name.strip(), [])
            values.append([value.strip()])
    return {name: ["\n".join(lines) for lines in values] for name, values in fields.items()}


def entry_points(text: str) -> Dict[str, List[str]]:
    """Return ``name = value`` lines by group."""
    groups: Dict[str, List[str]] = {}
    group: List[str] = []
    for line in (line.strip() for line in text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = groups.setdefault(line[1:-1].strip(), [])
        elif line and line[0] not in "#;":
            group.append(line)
    return groups


def rows(text: str, site: bytes) -> Tuple[Dict[bytes, Row], List[str]]:
    """Return the rows of a RECORD that lies below ``site``, and what is wrong with it.

    Paths are made relative to the environment; one that leaves it is a problem and no row.
    """
    parsed, unread = recordfile.fields(text)
    found: Dict[bytes, Row] = {}
    problems = [f"RECORD {problem}" for problem in unread]
    prefix = site + b"/"
    for number, row in enumerate(parsed, 1):
        usual = _usual(row) if len(row) == 3 else None  # noqa: PLR2004  path, hash, size
        if usual is not None:
            found[prefix + row[0].encode("utf-8", "surrogateescape")] = usual
            continue
        path = _place(row[0], site)
        if path is None:
            problems.append(f"RECORD line {number}: {row[0]!r} leaves the environment")
        elif len(row) != 3 or not row[0]:  # noqa: PLR2004  path, hash, size
            problems.append(f"RECORD line {number}: {len(row)} fields instead of 3")
        elif (read_hash := _hash(row[1])) is None:
            problems.append(f"RECORD line {number}: {row[1]!r} is no hash")
        else:
            told = row[2].isdecimal() and len(row[2]) <= _LONGEST_SIZE
            found[path] = read_hash._replace(size=int(row[2])) if told else read_hash
    return found, problems


def _usual(row: Sequence[str]) -> Optional[Row]:
    """Return what nearly all rows say, quickly: a plain path below the site, a sha256 and a size."""
    path, stated, size = row
    if path[:1] in "/." or "/." in path or "//" in path or "\0" in path:
        return None
    if stated[:7] != "sha256=" or len(stated) != 7 + recordfile.DIGITS:
        return None
    if not size.isdecimal() or len(size) > _LONGEST_SIZE:
        return None
    try:
        digest = binascii.a2b_base64(stated[7:].replace("-", "+").replace("_", "/") + "=")
    except ValueError:
        return None
    return Row(digest, None, int(size)) if len(digest) == 32 else None  # noqa: PLR2004  sha256


def _place(path: str, site: bytes) -> Optional[bytes]:
    raw = path.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        return None
    if not raw.startswith((b"/", b".")) and b"//" not in raw and b"/." not in raw:
        return site + b"/" + raw
    joined = posixpath.normpath(posixpath.join(site, raw))
    return None if joined.startswith((b"/", b"../")) or joined == b".." else joined


def _hash(stated: str) -> Optional[Row]:
    if not stated:
        return Row()
    algorithm, _, value = stated.partition("=")
    if algorithm != "sha256":
        return Row(other=algorithm) if value else None
    digest = recordfile.sha256(stated)
    return Row(digest) if digest else None


def _content(folder: str, name: str, problems: List[str], *, required: bool = False) -> str:
    limit = _LARGEST_RECORD if name == "RECORD" else _LARGEST
    try:
        content = regular.read(os.path.join(folder, name), limit + 1)
    except FileNotFoundError:
        if required:
            problems.append(f"has no {name}")
        return ""
    except OSError as error:
        problems.append(f"{name} cannot be read: {error.strerror}")
        return ""
    if len(content) > limit:
        problems.append(f"{name} is longer than {limit // 1_000_000} MB: what follows is not read")
        content = content[: content.rfind(b"\n", 0, limit) + 1]
    return content.decode("utf-8", "surrogateescape")


def _json(text: str, problems: List[str]) -> Optional[Dict[str, Any]]:
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"direct_url.json is not JSON: {error}")
        return None
    return value if isinstance(value, dict) else None
