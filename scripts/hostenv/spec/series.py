"""Patch series: ``patches/<distribution>-<version>/`` as frozen values.

The ``series`` file names the patches in their order, one a line, as quilt does: ``name.patch [-pN]``, with
``#`` comments; N is the number of leading components that are no part of the names (default 1). A series for
a distribution that an overlay brings has a file ``overlay`` beside it, with the digest of that overlay: it is
for exactly those files.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from hostenv.agent.files import open_regular
from hostenv.document import read_text
from hostenv.errors import PatchError
from hostenv.spec.patchfile import read_patch
from hostenv.spec.patchheader import read_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hostenv.spec.filechange import FileChange
    from hostenv.spec.patchheader import PatchHeader

SERIES = "series"
OVERLAY = "overlay"
"""The file that names the overlay whose files a series is for, where it is for no wheel's."""

_LINE = re.compile(r"(?P<name>[^\s#/]+)(?:\s+-p(?P<strip>\d))?")
_SUFFIXES = (".patch", ".diff")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One patch file of a series: its header, and what it changes."""

    name: str
    strip: int
    sha256: str
    header: PatchHeader
    changes: tuple[FileChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """An ordered patch series for exactly one release of one distribution.

    ``digest`` is the sha256 of a canonical form of the distribution, its version, and every patch's name,
    strip count and bytes, in order; comments in the ``series`` file do not count. ``overlay`` is the digest
    of the overlay whose files it changes, None for those of the locked wheel; ``digest`` covers it, too.
    """

    dist: str
    version: str
    patches: tuple[Patch, ...]
    digest: str
    overlay: str | None = None

    @property
    def name(self) -> str:
        """The folder's name, and what a spec writes in ``patches``."""
        return f"{self.dist}-{self.version}"

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files: ``series``, the patches in order, ``overlay`` where there is one."""
        return (SERIES, *(patch.name for patch in self.patches), *((OVERLAY,) if self.overlay else ()))


def load_series(folder: Path) -> Series:
    """Read one series folder.

    Raises one :class:`~hostenv.errors.PatchError` with every problem of every file in it: malformed patches
    and headers, missing and unknown files.
    """
    dist, version = split_name(folder.name)
    problems: list[str] = []
    entries = _read_entries(folder, problems)
    _check_files(folder, [name for name, _ in entries], problems)
    patches = [_read_patch(folder, name, strip, problems) for name, strip in entries]
    overlay = _read_overlay(folder, problems)
    if problems:
        raise PatchError("\n".join(problems))
    whole = tuple(patch for patch in patches if patch)
    digest = _digest(dist, version, whole, overlay)
    return Series(dist=dist, version=version, patches=whole, digest=digest, overlay=overlay)


def load_selected(root: Path, names: Iterable[str]) -> tuple[Series, ...]:
    """Read the series ``names`` (what a spec lists) below ``root``, the ``patches/`` folder.

    A name without a folder, a name given twice, and two series for one distribution are errors.
    """
    wanted = list(names)
    problems = _check_selection(root, wanted)
    series: list[Series] = []
    for name in wanted if not problems else ():
        try:
            series.append(load_series(root / name))
        except PatchError as error:
            problems.append(error.message)
    if problems:
        raise PatchError("\n".join(problems))
    return tuple(series)


def check_versions(series: Sequence[Series], locked: Mapping[str, str]) -> None:
    """Raise unless ``locked`` (canonical name → version) holds every series' distribution at its version."""
    problems = []
    for one in series:
        version = locked.get(one.dist)
        if version is None:
            problems.append(f"patches/{one.name}: the lock has no {one.dist}")
        elif Version(version) != Version(one.version):
            problems.append(f"patches/{one.name} is for {one.version}; the lock has {one.dist} {version}")
    if problems:
        raise PatchError(
            "\n".join(problems),
            hint="a series belongs to one exact release: pin it, or port the series to a new folder",
        )


def split_name(name: str) -> tuple[str, str]:
    """Split a series' name into distribution and version, both in normal form (PEP 503, PEP 440)."""
    dist, _, version = name.rpartition("-")
    try:
        normal = f"{canonicalize_name(dist, validate=True)}-{Version(version)}"
    except (InvalidVersion, ValueError):
        raise PatchError(
            f"patches/{name}: the name is not <distribution>-<version>", hint="such as sglang-0.5.15.post1"
        ) from None
    if normal != name:
        raise PatchError(f"patches/{name}: the name is not in normal form", hint=f"rename it to {normal}")
    return dist, version


def _check_selection(root: Path, names: Sequence[str]) -> list[str]:
    problems: list[str] = []
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    by_dist: dict[str, str] = {}
    for name in names:
        if name not in folders:
            near = difflib.get_close_matches(name, folders, n=1)
            problems.append(
                f"patches/{name} is not there" + (f" (did you mean {near[0]!r}?)" if near else "")
            )
            continue
        dist = name.rpartition("-")[0]
        if dist in by_dist:
            problems.append(f"patches/{name} and patches/{by_dist[dist]} are both for {dist}")
        by_dist.setdefault(dist, name)
    return problems


def _read_entries(folder: Path, problems: list[str]) -> list[tuple[str, int]]:
    """Return the names and strip counts of the ``series`` file."""
    where = f"patches/{folder.name}/{SERIES}"
    try:
        text = read_text(folder / SERIES)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{where}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}")
        return []
    entries: list[tuple[str, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = re.sub(r"(^|\s)#.*", "", line).strip()
        match = _LINE.fullmatch(entry)
        if match and match["name"].endswith(_SUFFIXES):
            entries.append((match["name"], int(match["strip"] or 1)))
        elif entry:
            problems.append(f"{where}: line {number}: {entry!r} is not 'NAME.patch [-pN]'")
    if not (entries or problems):
        problems.append(f"{where}: names no patch")
    return entries


def _check_files(folder: Path, names: Sequence[str], problems: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    problems += [f"patches/{folder.name}/{SERIES}: {name} stands there twice" for name in twice]
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    unknown = sorted(present - {*names, SERIES, OVERLAY})
    problems += [f"patches/{folder.name}/{name}: no line of {SERIES} names it" for name in unknown]


def _read_patch(folder: Path, name: str, strip: int, problems: list[str]) -> Patch | None:
    where = f"patches/{folder.name}/{name}"
    try:
        with os.fdopen(open_regular(str(folder / name)), "rb") as file:
            content = file.read()
    except OSError as error:
        problems.append(f"{where}: cannot be read: {error.strerror}")
        return None
    try:
        preamble, changes = read_patch(content, strip=strip)
        header = read_header(preamble)
    except PatchError as error:
        problems.append(f"{where}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        return None
    digest = hashlib.sha256(content).hexdigest()
    return Patch(name=name, strip=strip, sha256=digest, header=header, changes=changes)


def _read_overlay(folder: Path, problems: list[str]) -> str | None:
    """Return the digest that the file ``overlay`` holds; None without such a file."""
    where = f"patches/{folder.name}/{OVERLAY}"
    try:
        text = read_text(folder / OVERLAY).strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{where}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}")
        return None
    if not _DIGEST.fullmatch(text):
        problems.append(f"{where}: holds {text[:80]!r}, not an overlay's digest: 64 hexadecimal digits")
        return None
    return text


def _digest(dist: str, version: str, patches: Sequence[Patch], overlay: str | None) -> str:
    contents = [[patch.name, patch.strip, patch.sha256] for patch in patches]
    inputs = [2, dist, version, contents, overlay] if overlay else [1, dist, version, contents]
    return hashlib.sha256(json.dumps(inputs, separators=(",", ":")).encode()).hexdigest()
