"""Making a build on a host from wheels in its wheelhouse, with the results of series laid over."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.agent.amounts import counted, megabytes
from hostenv.errors import HostError, PatchError, RefusedError
from hostenv.steps.ground import require_executable, require_room, require_writable

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.facts.root import RootState
    from hostenv.machine.agent import Agent
    from hostenv.spec.environment import Build
    from hostenv.spec.overlay import Overlay
    from hostenv.spec.series import Series
    from hostenv.steps.build import BuildInputs
    from hostenv.steps.series import SeriesResult

UNPACKED = 2.6
"""Bytes of a build for a byte of its wheels: 9.95 GB from 4.05 GB, sglang 0.5.23, measured 2026-12."""

NO_PYTHON = "install one (deadsnakes, pyenv, python-build-standalone), or change platform.python"
"""What to do about an interpreter that a host lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPython:
    """A CPython on the host: where it is, its version (``3.12.1``)."""

    path: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Make:
    """Make one build."""

    inputs: BuildInputs
    settings: Build
    remake: bool = False
    despite_running: bool = False

    def plan(self, state: RootState, *, missing: int) -> tuple[str, ...]:
        """Say what will be made; nothing where the build is there.

        ``missing`` are the bytes of the wheels that are brought for it. Raises :class:`RefusedError` where
        the host has no room for all of it: before anything is downloaded.
        """
        if self.inputs.id in state.builds and not self.remake:
            return ()
        self.check_ground(state)
        self._check_room(state, missing)
        python = self.inputs.lock.platform.python
        count = len(self.inputs.wheels)
        lines = [
            f"build    {self.inputs.id}: {counted(count, 'wheel')}, Python {python}, in {state.root}/builds"
        ]
        lines += [self._series_line(each) for each in self.inputs.series]
        lines += [
            f"overlay  {each.name}: {_named(each)}, {counted(len(each.files), 'file')}, "
            f"{megabytes(each.size)}"
            for each in self.inputs.overlays
        ]
        if self.inputs.id in state.builds:
            lines.append(f"exchange {self.inputs.id}: the build that is there for the new one")
        if self.inputs.id in state.unsound:
            lines.append(f"remove   {self.inputs.id}: the interpreter it was made for is gone")
        return tuple(lines)

    def _series_line(self, series: Series) -> str:
        overlay = self.inputs.overlay_with(series.dist)
        over = f", over overlays/{overlay.name}" if overlay else ""
        return f"series   {series.name}: {counted(len(series.patches), 'patch', 'patches')}{over}"

    def check_ground(self, state: RootState) -> None:
        """Refuse a host that cannot have this build, whatever is brought there.

        Raises :class:`RefusedError`; nothing was looked for under the root yet.
        """
        arch = self.inputs.lock.platform.arch
        if state.arch != arch:
            raise RefusedError(
                f"the host is {state.arch}, the lock is for {arch}", hint="change platform.arch in the spec"
            )
        require_writable(state)
        require_executable(state)

    def _check_room(self, state: RootState, missing: int) -> None:
        wheels = sum(entry.size for entry in self.inputs.wheels)
        laid = sum(overlay.size for overlay in self.inputs.overlays)
        needed = missing + int(2 * UNPACKED * wheels) + 2 * laid + self.settings.min_free
        require_room(state, needed, "missing wheels, uv's cache, the build and build.min-free")

    def _texts(self, repository: pathlib.Path) -> dict[str, str]:
        """Return the files that are kept beside the build, path → text: those of series and overlays."""
        names = [
            *(
                (f"series/{each.name}/{file}", f"patches/{each.name}/{file}")
                for each in self.inputs.series
                for file in each.files
            ),
            *(
                (f"overlays/{each.name}.{kind}", f"overlays/{each.name}.{kind}")
                for each in self.inputs.overlays
                for kind in ("toml", "files")
            ),
        ]
        texts = {kept: (repository / path).read_bytes() for kept, path in names}
        for each in self.inputs.series:
            for patch in each.patches:
                if hashlib.sha256(texts[f"series/{each.name}/{patch.name}"]).hexdigest() != patch.sha256:
                    raise PatchError(f"patches/{each.name}/{patch.name} changed while it was read")
        return {kept: content.decode("utf-8", "surrogateescape") for kept, content in texts.items()}

    def apply(  # noqa: PLR0913  a build needs all of them
        self,
        agent: Agent,
        state: RootState,
        *,
        uv: str,
        python: HostPython,
        wheels: Mapping[str, str],
        results: Sequence[SeriesResult],
        repository: pathlib.Path,
        who: Mapping[str, str],
        on_event: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Make the build and return what was read of it (the agent's facts).

        ``wheels`` maps a sha256 to the wheel's path on the host; ``repository`` is the folder that holds
        ``patches/`` and ``overlays/``, whose text is kept beside the build.
        Raises :class:`~hostenv.errors.HostError` with uv's words, RefusedError for a second writer.
        """
        files = [file for result in results for file in result.files]
        plan = {
            "python": python.path,
            "uv": uv,
            "wheels": [
                {
                    "name": entry.name,
                    "version": entry.version,
                    "sha256": entry.sha256,
                    "size": entry.size,
                    "path": wheels[entry.sha256],
                }
                for entry in self.inputs.wheels
            ],
            "files": [
                {
                    "path": file.path,
                    "mode": file.mode,
                    "size": len(file.content),
                    "sha256": file.sha256,
                    "pristine": file.pristine_sha256,
                }
                for file in files
            ],
            "removed": [
                {"path": path, "pristine": sha256}
                for result in results
                for path, sha256 in result.removed.items()
            ],
            "link_mode": str(self.settings.link_mode),
            "bytecode": str(self.settings.bytecode),
            "min_free": self.settings.min_free,
            "io": str(self.settings.io),
            "inputs": dict(self.inputs.describe()),
            "texts": self._texts(repository),
            "overlays": [_laid(each) for each in self.inputs.overlays],
            "remake": self.remake,
            "despite_running": self.despite_running,
            "applied": _applied(results),
        }
        facts: Mapping[str, Any] = agent.call(
            "build.make",
            root=state.root,
            build=self.inputs.id,
            who=dict(who),
            plan=plan,
            data=[file.content for file in files],
            on_event=on_event,
        )
        return facts


def _named(overlay: Overlay) -> str:
    """Return which distributions an overlay brings, in a few words."""
    names = [f"{each.name} {each.version}" for each in overlay.distributions]
    more = [f"{len(names) - 3} more"] if len(names) > 4 else names[3:]  # noqa: PLR2004  one line
    return ", ".join([*names[:3], *more]) or "loose files"


def _laid(overlay: Overlay) -> dict[str, Any]:
    """Return an overlay as the agent lays it."""
    return {
        "name": overlay.name,
        "distributions": [{"name": each.name, "version": each.version} for each in overlay.distributions],
        "files": [
            (each.path, each.dist, each.mode, each.size, each.sha256)
            for each in overlay.files
            if each.target is None
        ],
        "links": [(each.path, each.target) for each in overlay.files if each.target is not None],
    }


def _applied(results: Sequence[SeriesResult]) -> dict[str, str | None]:
    """Return what the series make of files: path → sha256, ``None`` for a removed one.

    Left out is a file that has the shipped bytes still, and another mode.
    """
    files: dict[str, str | None] = {
        file.path: file.sha256
        for each in results
        for file in each.files
        if file.sha256 != file.pristine_sha256
    }
    return files | {path: None for each in results for path in each.removed}


def pythons_of(agent: Agent, minor: str | None = None, *, root: str | None = None) -> tuple[HostPython, ...]:
    """Return the host's CPython interpreters of a minor version, or all of them, newest first.

    With ``root``, those too that came by hash and lie below it.
    """
    places = [f"{root}/pythons/*/python/bin"] if root else []
    found = agent.call("interpreters.find", version=minor, places=places)
    return tuple(HostPython(path=each["path"], version=each["version"]) for each in found)


def choose_python(agent: Agent, minor: str, host: str) -> HostPython:
    """Return the host's newest CPython of a minor version.

    Raises :class:`~hostenv.errors.HostError` that says what was looked for and what is there.
    """
    for python in pythons_of(agent, minor):
        return python
    there = ", ".join(f"{each.version} ({each.path})" for each in pythons_of(agent)) or "none"
    raise HostError(
        f"{host}: there is no CPython {minor}; found: {there}",
        hint=NO_PYTHON,
    )
