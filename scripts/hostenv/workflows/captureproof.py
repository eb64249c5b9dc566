"""What a capture does not explain of a host: neither wheel nor series nor overlay makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.checks.comparison import matches
from hostenv.spec.overlaylist import PREFIX
from hostenv.steps.captured import environment_path, overlay_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.utils import NormalizedName

    from hostenv.facts.distributions import Installed
    from hostenv.facts.manifest import Entry, TreeProblem
    from hostenv.steps.captured import ExpectedFile


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
        """Return a line for each path that is nobody's, differs, or is missing, as overlays write them."""
        own = self._made_by_installers()
        left = []
        for path, entry in there.items():
            if path.startswith(own) or path.endswith(".dist-info/RECORD") or self._is_ignored(path):
                continue
            if path not in expected and not self._is_beside_the_point(path):
                left.append(f"nobody's {path}")
            elif path in expected and not expected[path].explains(path, entry):
                left.append(f"differs  {path}")
        gone = sorted(path for path in expected.keys() - there.keys() if not self._is_ignored(path))
        return left + [f"missing  {path}" for path in gone]

    def unread(self, problems: Iterable[TreeProblem]) -> list[str]:
        """Return a line for each path that could not be read as it is: to take it for gone would be wrong."""
        lines = {f"{each.path} {each.reason}" for each in problems if not matches(each.path, self.ignore)}
        return sorted(lines)

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
