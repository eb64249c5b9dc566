"""What differs between a pristine wheel and a host, and the class that describes what was captured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.bytecode import source_of
from hostenv.spec.overlaylist import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostenv.facts.manifest import Entry
    from hostenv.spec.environment import Env
    from hostenv.spec.lockplatform import LockPlatform
    from hostenv.steps.series import SeriesResult
    from hostenv.steps.wheelfiles import WheelFile

_EXECUTABLE = 0o111
_NOTES = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json", "RECORD")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A file of a distribution that is not as shipped; ``is_there`` is false for a removed one.

    ``link``: a symbolic link lies there, which no patch makes. ``shipped`` is false for an added file.
    """

    path: str
    is_there: bool
    shipped: bool
    size: int = 0
    sha256: str | None = None
    executable: bool = False
    link: bool = False

    def environment_path(self, site: str) -> str:
        """Return the path relative to the environment."""
        return environment_path(self.path, site)


def environment_path(path: str, site: str) -> str:
    """Return a path as overlays and wheels have it, relative to the environment."""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else f"{site}/{path}"


def overlay_path(path: str, site: str) -> str:
    """Return a path of the environment as overlays and wheels have it."""
    return path.removeprefix(f"{site}/") if path.startswith(f"{site}/") else PREFIX + path


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """What a file should be. ``mode`` may be only its x bits; a script's bytes depend on where it lies."""

    sha256: str
    mode: int
    target: str | None = None
    script: bool = False
    owner: str | None = None

    def explains(self, entry: Entry) -> bool:
        """Tell whether what lies there is this."""
        if self.target is not None or entry.target is not None:
            return self.target == entry.target
        if bool(self.mode & _EXECUTABLE) != bool(entry.mode & _EXECUTABLE):
            return False
        return self.script or self.sha256 == entry.sha256


def changes_of(
    pristine: Mapping[str, WheelFile], there: Mapping[str, Entry], added: Iterable[str]
) -> tuple[Change, ...]:
    """Return what of a distribution is not as its wheel shipped it, ``added`` files included, by path."""
    found = []
    for path, shipped in pristine.items():
        if _is_note(path):
            continue
        entry = there.get(path)
        if entry is None:
            found.append(Change(path=path, is_there=False, shipped=True))
        elif not ExpectedFile(shipped.sha256, _mode(shipped), None, shipped.script).explains(entry):
            found.append(_change(path, entry, shipped=True))
    found += [
        _change(path, there[path], shipped=False)
        for path in added
        if path in there and path not in pristine and not _is_note(path)
    ]
    return tuple(sorted(found, key=lambda each: each.path))


def _change(path: str, entry: Entry, *, shipped: bool) -> Change:
    return Change(
        path=path,
        is_there=True,
        shipped=shipped,
        size=entry.size,
        sha256=entry.sha256 or None,
        executable=bool(entry.mode & _EXECUTABLE),
        link=entry.target is not None,
    )


def expected_of(
    pristine: Mapping[str, WheelFile], series: SeriesResult | None, owner: str
) -> dict[str, ExpectedFile]:
    """Return what a wheel and its series make."""
    expected = {
        path: ExpectedFile(file.sha256, _mode(file), None, file.script, owner)
        for path, file in pristine.items()
        if not _is_note(path)
    }
    if series:
        expected |= {file.path: ExpectedFile(file.sha256, file.mode, owner=owner) for file in series.files}
        for path in series.removed:
            expected.pop(path, None)
    return expected


def _mode(file: WheelFile) -> int:
    return 0o755 if file.executable else 0o644


def _is_note(path: str) -> bool:
    """Tell whether a manifest leaves a file out, or has it in another form."""
    folder, _, name = path.rpartition("/")
    return source_of(path.encode("utf-8", "surrogateescape")) is not None or (
        name in _NOTES and folder.endswith(".dist-info")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedClass:
    """The class that a capture writes."""

    name: str
    host: str
    env: Env
    platform: LockPlatform
    series: tuple[str, ...]
    overlay: str | None
    fingerprint: str | None

    def render(self) -> str:
        """Return its text."""
        lines = [
            f"# Captured from {self.host}: what is installed there, pinned. Fingerprint there:",
            f"# {self.fingerprint or 'none, some files cannot be read'}",
            "[env]",
            *_array("requires", [str(each) for each in self.env.requires]),
            *(_array("overrides", [str(each) for each in self.env.overrides]) if self.env.overrides else ()),
            *(_array("excludes", list(self.env.excludes)) if self.env.excludes else ()),
            f"prereleases = {json.dumps(self.env.prereleases)}",
            f"indexes = {json.dumps(list(self.env.indexes))}",
        ]
        if self.env.torch_backend:
            lines.append(f"torch-backend = {json.dumps(self.env.torch_backend)}")
        if self.series:
            lines.append(f"patches = {json.dumps(list(self.series))}")
        lines += [
            "",
            "[platform]",
            f"arch = {json.dumps(self.platform.arch)}",
            f"glibc = {json.dumps(self.platform.glibc)}",
            f"python = {json.dumps(self.platform.python)}",
        ]
        if self.overlay:
            lines += ["", "[[overlays]]", f"name = {json.dumps(self.overlay)}"]
        return "\n".join(lines) + "\n"


def _array(key: str, values: list[str]) -> list[str]:
    return [f"{key} = [", *(f"    {json.dumps(value)}," for value in values), "]"]
