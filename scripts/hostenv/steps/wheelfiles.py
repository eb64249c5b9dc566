"""What a wheel installs: path → sha256 and mode, as its RECORD says, without unpacking it."""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent import recordfile
from hostenv.errors import SupplyError
from hostenv.spec.overlaylist import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|scripts|data|headers)/(.+)")


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file that a wheel installs. ``script``: its first line is rewritten when it is installed."""

    sha256: str
    executable: bool
    script: bool = False


def wheel_files(wheel: Path) -> Mapping[str, WheelFile]:
    """Return what a wheel installs by path in site-packages, or after ``{prefix}/`` in the environment.

    RECORD itself is left out. Raises :class:`SupplyError` for what cannot be read as a wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}
            (record,) = [name for name in entries if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
            rows, problems = recordfile.fields(archive.read(record).decode())
            rewritten = {name for name in entries if _place(name)[1] and _is_script(archive, name)}
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError) as error:
        raise SupplyError(f"{wheel.name}: cannot be read as a wheel: {error}") from error
    if problems:
        raise SupplyError(f"{wheel.name}: RECORD {problems[0]}")
    found: dict[str, WheelFile] = {}
    for row in rows:
        if len(row) > 1 and row[1].startswith("sha256=") and row[0] in entries:
            path, script = _place(row[0])
            executable = script or bool(entries[row[0]].external_attr >> 16 & 0o111)
            found[path] = WheelFile(_hex(row[1], wheel), executable, row[0] in rewritten)
    return found


def _is_script(archive: zipfile.ZipFile, name: str) -> bool:
    """Tell whether an installer rewrites a file's first line: wheels have programs beside scripts, too."""
    with archive.open(name) as file:
        return bool(re.match(rb"#![^\n]*python", file.readline(4096)))


def _place(path: str) -> tuple[str, bool]:
    match = _DATA.fullmatch(path)
    if not match:
        return path, False
    kind, rest = match[1], match[2]
    if kind in {"purelib", "platlib"}:
        return rest, False
    folder = {"scripts": "bin/", "data": "", "headers": "include/"}[kind]
    return f"{PREFIX}{folder}{rest}", kind == "scripts"


def _hex(stated: str, wheel: Path) -> str:
    digest = recordfile.sha256(stated)
    if digest is None:
        raise SupplyError(f"{wheel.name}: RECORD holds no sha256 in {stated!r}")
    return digest.hex()
