"""Real wheels from a dict of files: the same bytes for the same arguments, RECORD included."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel:
    """A wheel that :func:`build_wheel` wrote: where it lies, and what a lock says of it."""

    path: pathlib.Path
    name: str
    version: str
    sha256: str
    size: int

    @property
    def filename(self) -> str:
        """The file name, tags included."""
        return self.path.name


def build_wheel(  # noqa: PLR0913  each is one part of a wheel, and all but three have a default
    folder: pathlib.Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes] | None = None,
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    requires_python: str | None = None,
    metadata: Sequence[str] = (),
    entry_points: str | None = None,
    executable: Sequence[str] = (),
    record: Mapping[str, str] | None = None,
    compress: bool = True,
) -> BuiltWheel:
    """Write ``folder/NAME-VERSION-TAG.whl`` and return what it is.

    ``files`` maps a path in the wheel to its content (``{"pkg/__init__.py": "x = 1\\n"}``; paths under
    ``NAME-VERSION.data/`` and ``NAME-VERSION.dist-info/`` are allowed and win over the generated ones).
    ``requires`` are Requires-Dist values, ``metadata`` further whole METADATA lines, ``entry_points`` the
    text of ``entry_points.txt``, ``executable`` the paths with an x bit. ``record`` replaces RECORD's
    hash field of single paths (``{"pkg/__init__.py": "sha256=wrong"}``), to make a faulty wheel.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version.replace('-', '_')}"
    info = f"{stem}.dist-info"
    members = {
        **{path: _bytes(content) for path, content in (files or {}).items()},
        f"{info}/METADATA": _metadata(name, version, requires, requires_python, metadata),
        f"{info}/WHEEL": _wheel(tag),
    }
    if entry_points is not None:
        members[f"{info}/entry_points.txt"] = _bytes(entry_points)
    members |= {path: _bytes(content) for path, content in (files or {}).items()}
    members.setdefault(f"{info}/RECORD", _record(members, f"{info}/RECORD", record or {}))

    path = folder / f"{stem}-{tag}.whl"
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for member, content in members.items():
            entry = zipfile.ZipInfo(member, EPOCH)
            entry.compress_type = method
            entry.external_attr = (0o100755 if member in executable else 0o100644) << 16
            archive.writestr(entry, content)
    whole = path.read_bytes()
    return BuiltWheel(
        path=path, name=name, version=version, sha256=hashlib.sha256(whole).hexdigest(), size=len(whole)
    )


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _metadata(
    name: str,
    version: str,
    requires: Sequence[str],
    requires_python: str | None,
    lines: Sequence[str],
) -> bytes:
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        # Tests that run beside each other make other builds: hostenv knows a build's processes by its id.
        head.append(f"Keywords: {worker}")
    head += [f"Requires-Python: {requires_python}"] if requires_python else []
    head += [f"Requires-Dist: {requirement}" for requirement in requires]
    return ("\n".join([*head, *lines]) + "\n").encode()


def _wheel(tag: str) -> bytes:
    python, abi, platform = tag.split("-")
    pure = "true" if platform == "any" else "false"
    tags = [
        f"Tag: {p}-{a}-{q}" for p in python.split(".") for a in abi.split(".") for q in platform.split(".")
    ]
    lines = ["Wheel-Version: 1.0", "Generator: hostenv-tests", f"Root-Is-Purelib: {pure}", *tags]
    return ("\n".join(lines) + "\n").encode()


def _record(members: Mapping[str, bytes], own: str, replaced: Mapping[str, str]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow((path, replaced.get(path, f"sha256={digest}"), len(content)))
    rows.writerow((own, "", ""))
    return text.getvalue().encode()
