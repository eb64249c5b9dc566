"""What a capture does not explain of a host: neither wheel nor series nor overlay makes it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.checks.comparison import matches
from hostenv.errors import CheckError
from hostenv.spec.overlay import load_overlay, path_of
from hostenv.spec.overlaylist import NOBODY, PREFIX
from hostenv.steps.captured import ExpectedFile, environment_path, overlay_path

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.facts.distributions import Installed
    from hostenv.facts.manifest import Entry, TreeProblem
    from hostenv.spec.overlaylist import OverlayFile
    from hostenv.spec.spec import Spec

_SHOWN = 20


@dataclass(kw_only=True, slots=True)
class Proof:
    """One environment. ``ignore`` are the spec's patterns of paths in the environment.

    ``run_regardless`` is bytecode that Python runs whatever its source says; ``bytecode`` gathers the other
    that matches no source: Python compiles it anew, and nobody needs it.
    """

    installed: Installed
    ignore: tuple[str, ...]
    run_regardless: frozenset[str]
    bytecode: list[str] = field(default_factory=list)

    @property
    def site(self) -> str:
        """Its site-packages, relative."""
        return self.installed.site or ""

    @property
    def editable(self) -> frozenset[NormalizedName]:
        """The distributions whose code lies elsewhere."""
        return frozenset(each.key for each in self.installed.distributions if each.editable)

    def unexplained(self, there: Mapping[str, Entry], expected: Mapping[str, ExpectedFile]) -> list[str]:
        """Return a line for each path in the environment that is nobody's, differs, or is missing."""
        own = self._made_by_installers()
        left = []
        for path, entry in there.items():
            if path.startswith(own) or path.endswith(".dist-info/RECORD") or self._is_ignored(path):
                continue
            if path not in expected and not self._is_beside_the_point(path):
                left.append(f"nobody's {self._plain(path)}")
            elif path in expected and not expected[path].explains(entry):
                left.append(f"differs  {self._plain(path)}")
        gone = sorted(path for path in expected.keys() - there.keys() if not self._is_ignored(path))
        return left + [f"missing  {self._plain(path)}" for path in gone]

    def unread(self, problems: Iterable[TreeProblem]) -> list[str]:
        """Return a line for each path that could not be read as it is: to take it for gone would be wrong."""
        lines = {f"{each.path} {each.reason}" for each in problems if not matches(each.path, self.ignore)}
        return sorted(lines)

    def idle(self, there: Iterable[str]) -> list[str]:
        """Return a line for each pattern of ``capture.ignore`` that fits nothing there."""
        paths = list(there)
        return [
            f'capture.ignore "{pattern}" fits nothing there: it is held against paths in the environment, '
            f"like {self.site}/{pattern}"
            for pattern in self.ignore
            if not any(matches(path, (pattern,)) for path in paths)
        ]

    def error(self, left: Sequence[str], host: str, venv: str | None) -> CheckError | None:
        """Return the error that lines of :meth:`unexplained` are; ``venv`` as the session was given it."""
        if not left:
            return None
        more = [f"and {len(left) - _SHOWN} more"] if len(left) > _SHOWN else []
        lines = "\n".join([*left[:_SHOWN], *more])
        return CheckError(
            f"{host}: wheels, series and overlays do not make these:\n{lines}",
            hint=self._way_out(left, host, venv),
        )

    def _way_out(self, left: Iterable[str], host: str, venv: str | None) -> str:
        """Say what can be done about lines of :meth:`unexplained`, in commands that work as they stand."""
        loose = set()
        for line in left:
            what, _, path = line.partition(" ")
            top, below, _ = path.removeprefix(f"{self.site}/").partition("/")
            if what == "nobody's" and path.startswith(f"{self.site}/") and not path.endswith(".pyc"):
                loose.add(shlex.quote(f"./{top}{below}"))
        ways = "remove them there, or list them as they stand here in capture.ignore of the spec"
        if not loose:
            return ways
        words = [host, f"{host}-loose", *sorted(loose), *(["--venv", shlex.quote(venv)] if venv else ())]
        return (
            f"{ways}, or take them: nox -s overlay -- {' '.join(words)}, "
            f'and let the spec or its class say: [[overlays]] name = "{host}-loose"'
        )

    def _plain(self, path: str) -> str:
        return environment_path(path, self.site)

    def _is_ignored(self, path: str) -> bool:
        return matches(environment_path(path, self.site), self.ignore)

    def _is_beside_the_point(self, path: str) -> bool:
        """Tell whether a file is an installer's own script (pip3.12), or bytecode that nobody runs."""
        plain = environment_path(path, self.site)
        if path.endswith(".pyc") and plain not in self.run_regardless:
            self.bytecode.append(path)
            return True
        return path.startswith(f"{PREFIX}bin/") and plain not in self.installed.unowned

    def _made_by_installers(self) -> tuple[str, ...]:
        """Return how the paths begin that no wheel has: scripts, and what editable installations leave."""
        scripts = [
            f"{PREFIX}bin/{line.partition('=')[0].strip()}"
            for each in self.installed.distributions
            for group in ("console_scripts", "gui_scripts")
            for line in each.entry_points.get(group, ())
        ]
        infos = [
            f"{overlay_path(each.info, self.site)}/"
            for each in self.installed.distributions
            if each.key in self.editable
        ]
        left = ("__editable__", "_editable_impl") if infos else ()
        return (f"{PREFIX}pyvenv.cfg", *scripts, *infos, *left)


def as_overlaid(file: OverlayFile) -> ExpectedFile:
    """Return what an overlay's file should be."""
    script = file.path.startswith(f"{PREFIX}bin/")
    return ExpectedFile(file.sha256, file.mode, file.target, script=script)


def laid_besides(folder: pathlib.Path, spec: Spec, own: str) -> dict[str, ExpectedFile]:
    """Return nobody's files that overlays of the spec and its class lay, the capture's ``own`` aside."""
    names = {use.name for use in spec.overlays} - {own}
    overlays = [load_overlay(folder, name) for name in sorted(names) if path_of(folder, name).exists()]
    return {file.path: as_overlaid(file) for each in overlays for file in each.files if file.dist == NOBODY}
