"""Overlays: whole distributions taken from a reference machine, described in ``overlays/<name>.toml``.

The description says what, from where, when and why; the files stand beside it, in ``<name>.files``
(:mod:`hostenv.spec.overlaylist`). Their bytes are in no repository: they lie by digest in the stores of the
controller and the hosts.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from hostenv.document import Problems, Source, day, did_you_mean, list_of, load_toml, read_text, table_of
from hostenv.errors import InputError
from hostenv.spec import overlaylist, words
from hostenv.spec.overlaylist import NOBODY, OverlayFile

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hostenv.document import Table

LONGEST_NAME = 100
"""Characters of an overlay's name."""
_ROLES = "module|linked|relocatable|loose"
_METADATA = re.compile(r"([^/]+)\.dist-info/METADATA")
_IMAGE = r"[a-z]+[0-9_]*[0-9]+[af]?(?::[0-9]+\.[0-9]+)?"


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlaidDistribution:
    """A distribution that an overlay brings, by normalised name, and its version as METADATA writes it."""

    name: str
    version: str

    @classmethod
    def from_table(cls, table: Table) -> OverlaidDistribution:
        """Read one entry of ``[[distributions]]``."""
        return cls(name=table.get("name", words.distribution), version=table.get("version", words.line))


@dataclass(frozen=True, kw_only=True, slots=True)
class Binary:
    """What one shared object needs and holds, so that it can be judged before its bytes are anywhere.

    ``machine`` is uname's word; ``glibc`` the newest version it needs, ``needed`` its DT_NEEDED, ``versions``
    what it needs of libraries beside glibc's (``libstdc++.so.6 GLIBCXX_3.4.30``); ``soname`` is told where it
    is not the file's name, ``search`` are absolute folders of its RPATH or RUNPATH. ``gpu`` are its
    containers of GPU code, ``module sm_80 compute_86:9.0 x12``: role, images, how many are alike.
    """

    path: str
    machine: str
    glibc: str | None
    needed: tuple[str, ...]
    gpu: tuple[str, ...]
    problem: str | None
    soname: str | None = None
    versions: tuple[str, ...] = ()
    search: tuple[str, ...] = ()

    @classmethod
    def from_table(cls, table: Table) -> Binary:
        """Read one entry of ``[[binaries]]``."""
        return cls(
            path=table.get("path", words.line),
            machine=table.get("machine", words.line),
            glibc=table.get("glibc", words.matching(r"\d+(\.\d+)+", "a glibc version like 2.34"), None),
            needed=table.get("needed", list_of(words.line), ()),
            gpu=table.get(
                "gpu",
                list_of(words.matching(rf"({_ROLES})( {_IMAGE})*( x\d+)?", "GPU code as overlay writes it")),
                (),
            ),
            problem=table.get("problem", words.line, None),
            soname=table.get("soname", words.line, None),
            versions=table.get("versions", list_of(words.line), ()),
            search=table.get("search", list_of(words.line), ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where an overlay was taken: host, environment there, day, minor version of its Python, architecture."""

    host: str
    venv: str
    taken: dt.date
    python: str
    arch: str

    @classmethod
    def from_table(cls, table: Table) -> Origin:
        """Read ``[origin]``."""
        return cls(
            host=table.get("host", words.name),
            venv=str(table.get("venv", words.host_path)),
            taken=table.get("taken", day),
            python=table.get("python", words.matching(r"3\.\d{1,2}", "a Python like 3.12")),
            arch=table.get("arch", words.line),
        )


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """One overlay, description and files."""

    name: str
    why: str
    origin: Origin
    distributions: tuple[OverlaidDistribution, ...]
    binaries: tuple[Binary, ...]
    files: tuple[OverlayFile, ...]

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of what the overlay lays: distributions, paths, modes, bytes; not of whence and why."""
        inputs = [
            1,
            sorted([each.name, each.version] for each in self.distributions),
            sorted([each.path, each.mode, each.sha256, each.target or ""] for each in self.files),
        ]
        return hashlib.sha256(json.dumps(inputs, separators=(",", ":")).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def contents(self) -> Mapping[str, int]:
        """The size of every different content, by sha256: what must be in a store."""
        return {file.sha256: file.size for file in self.files if file.target is None}


def path_of(folder: Path, name: str) -> Path:
    """Return where the description of an overlay lies; its list is beside it."""
    return folder / f"{name}.toml"


def load_overlays(folder: Path, names: Iterable[str]) -> tuple[Overlay, ...]:
    """Read the overlays ``names`` (what a spec lists) below ``folder``.

    Raises :class:`InputError` with everything that is wrong in any of them, and where two of them bring one
    distribution, or one path with different bytes.
    """
    loaded = []
    problems = []
    for name in names:
        try:
            loaded.append(load_overlay(folder, name))
        except InputError as error:
            problems.append(error.message)
    problems = problems or _clashes(loaded)
    if problems:
        raise InputError("\n".join(problems))
    return tuple(loaded)


def load_overlay(folder: Path, name: str) -> Overlay:
    """Read one overlay; raises :class:`InputError` with every problem of both its files."""
    path = path_of(folder, name)
    document = f"overlays/{name}.toml"
    if len(name) > LONGEST_NAME or not path.exists():
        there = [each.stem for each in folder.glob("*.toml")] if folder.is_dir() else []
        raise InputError(f"{document} is not there{did_you_mean(name, there)}")
    problems = Problems()
    values = load_toml(path, document=document, problems=problems)
    problems.raise_any()
    listed = f"overlays/{name}.files"
    try:
        text = read_text(path.with_suffix(".files"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not ASCII"
        raise InputError(f"{listed}: cannot be read: {why}", hint="it belongs beside the .toml") from error
    return _overlay(values, name, overlaylist.parse(text, listed))


def check_rendered(overlay: Overlay) -> None:
    """Raise :class:`InputError` with all for which an overlay, once written, would not be read again."""
    files = overlaylist.parse(overlaylist.render(overlay.files), f"overlays/{overlay.name}.files")
    _overlay(tomllib.loads(render(overlay)), overlay.name, files)


def stated_why(folder: Path, name: str) -> str | None:
    """Return the ``why`` of an earlier description, whatever else is wrong with it; ``None`` without one."""
    values = load_toml(path_of(folder, name), document=f"overlays/{name}.toml", problems=Problems())
    stated = (values or {}).get("why")
    return stated if isinstance(stated, str) and stated.isprintable() and stated else None


def _overlay(values: dict[str, object] | None, name: str, files: tuple[OverlayFile, ...]) -> Overlay:
    problems = Problems()
    reader = table_of(lambda table: _from_table(table, name, files))
    overlay = problems.read(values, reader, source=Source(f"overlays/{name}.toml"))
    problems.raise_any()
    return overlay


def _from_table(table: Table, name: str, files: tuple[OverlayFile, ...]) -> Overlay:
    overlay = Overlay(
        name=name,
        why=table.get("why", words.line),
        origin=table.get("origin", table_of(Origin.from_table)),
        distributions=table.get("distributions", list_of(table_of(OverlaidDistribution.from_table)), ()),
        binaries=table.get("binaries", list_of(table_of(Binary.from_table)), ()),
        files=files,
    )
    if table.sound:
        named = [each.name for each in overlay.distributions]
        owners = {file.dist for file in files} - {NOBODY}
        for missing in sorted(set(named) ^ owners):
            where = (
                "has no file in the list" if missing in named else "has files in the list and no entry here"
            )
            table.problem("distributions", f"{missing} {where}")
        for each in overlay.distributions:
            if each.name in owners:
                _check_version(table, each, files)
    return overlay


def _check_version(table: Table, each: OverlaidDistribution, files: tuple[OverlayFile, ...]) -> None:
    """Note where the distribution's ``.dist-info`` in the list is of another version, or there is none."""
    found = [
        (match[0], stem[end + 1 :])
        for file in files
        if file.dist == each.name and (match := _METADATA.fullmatch(file.path))
        for stem in (match[1],)
        for end, character in enumerate(stem)
        if character == "-" and canonicalize_name(stem[:end]) == each.name
    ]
    if not found:
        table.problem("distributions", f"{each.name} has no NAME-VERSION.dist-info/METADATA in the list")
    elif _comparable(each.version) not in {_comparable(version) for _, version in found}:
        table.problem("distributions", f"{each.name} is {each.version} here, {found[0][0]} in the list")


def _comparable(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion:
        return version.replace("-", "_").lower()


def _clashes(overlays: list[Overlay]) -> list[str]:
    """Say what two overlays cannot both lay."""
    problems = []
    brought: dict[str, str] = {}
    laid: dict[str, tuple[str, OverlayFile]] = {}
    for overlay in overlays:
        for each in overlay.distributions:
            other = brought.setdefault(each.name, overlay.name)
            if other != overlay.name:
                problems.append(
                    f"overlays/{other}.toml and overlays/{overlay.name}.toml both bring {each.name}"
                )
        for file in overlay.files:
            name, first = laid.setdefault(file.path, (overlay.name, file))
            if (first.sha256, first.mode, first.target) != (file.sha256, file.mode, file.target):
                both = f"overlays/{name}.toml and overlays/{overlay.name}.toml"
                problems.append(f"{both} own {file.path} with different bytes")
    together = (file for overlay in overlays for file in overlay.files)
    problems += [f"overlays: {problem}" for problem in overlaylist.through_links(together)]
    return problems


def render(overlay: Overlay) -> str:
    """Return the text of an overlay's description, in one order."""
    origin = overlay.origin
    lines = [
        f"# {len(overlay.files)} files, {overlay.size} bytes, listed one a line in {overlay.name}.files.",
        f"why = {_text(overlay.why)}",
        "",
        "[origin]",
        f"host = {_text(origin.host)}",
        f"venv = {_text(origin.venv)}",
        f"taken = {origin.taken.isoformat()}",
        f"python = {_text(origin.python)}",
        f"arch = {_text(origin.arch)}",
    ]
    for each in sorted(overlay.distributions, key=lambda each: each.name):
        lines += ["", "[[distributions]]", f"name = {_text(each.name)}", f"version = {_text(each.version)}"]
    for binary in sorted(overlay.binaries, key=lambda each: each.path):
        lines += ["", "[[binaries]]", f"path = {_text(binary.path)}", f"machine = {_text(binary.machine)}"]
        lines += [f"glibc = {_text(binary.glibc)}"] if binary.glibc else []
        lines += [f"soname = {_text(binary.soname)}"] if binary.soname else []
        lines += [f"needed = [{', '.join(map(_text, binary.needed))}]"] if binary.needed else []
        lines += [f"versions = [{', '.join(map(_text, binary.versions))}]"] if binary.versions else []
        lines += [f"search = [{', '.join(map(_text, binary.search))}]"] if binary.search else []
        lines += ["gpu = [", *(f"    {_text(one)}," for one in binary.gpu), "]"] if binary.gpu else []
        lines += [f"problem = {_text(binary.problem)}"] if binary.problem else []
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Return a TOML basic string: JSON's, for text without what only one of them allows."""
    return json.dumps(overlaylist.quoted(value) if not value.isprintable() else value, ensure_ascii=False)
