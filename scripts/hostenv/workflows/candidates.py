"""Where distributions that might mend an environment are looked at: in a reference, in a wheelhouse."""

from __future__ import annotations

import contextlib
import posixpath
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from hostenv.agent.wheelhouse import Wheel
from hostenv.checks import changed
from hostenv.checks.stack_tables import stack_tables
from hostenv.errors import InputError
from hostenv.facts.candidates import excerpts_from_answer, wheels_from_answer
from hostenv.facts.distributions import Installed
from hostenv.facts.site import SiteFacts
from hostenv.machine.reach import Reach
from hostenv.steps import supply_survey
from hostenv.steps.depot import Depot
from hostenv.steps.identity import Seen, require_identity
from hostenv.workflows.environment import nothing_current, places
from hostenv.workflows.looking import look_at_site

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from packaging.utils import NormalizedName
    from packaging.version import Version

    from hostenv.checks.changed import Brought
    from hostenv.facts.candidates import Candidate, Excerpt, Unread
    from hostenv.facts.operators import Operators
    from hostenv.machine.agent import Agent
    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.lockplatform import LockPlatform
    from hostenv.spec.spec import Spec
    from hostenv.steps.pylock import PylockPackage
    from hostenv.workflows.environment import Place
    from hostenv.workflows.events import Listener


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """An environment that works, on whichever host; only read. ``given``: the path that was typed for it."""

    host: str
    venv: str
    given: bool
    agent: Agent
    installed: Installed
    site: SiteFacts
    _read: dict[NormalizedName, tuple[Excerpt, ...]] = field(default_factory=dict)

    def bring(self, names: Sequence[NormalizedName]) -> tuple[Brought, tuple[Excerpt, ...]]:
        """Return what some of its distributions would lay, and what the loader reads of their objects."""
        found = tuple(excerpt for name in names for excerpt in self._excerpts(name))
        return changed.brought_from(self.installed, self.site, names, found), found

    def _excerpts(self, name: NormalizedName) -> tuple[Excerpt, ...]:
        if name not in self._read:
            paths = [
                self.site.within(each.path)
                for each in self.site.objects
                if changed.owned(each.owners, {name})
            ]
            pieces: list[bytes] = []
            answer = self.agent.call("abi.excerpts", venv=self.venv, paths=paths, on_data=pieces.append)
            self._read[name] = excerpts_from_answer(answer, pieces)
        return self._read[name]

    def command(self, overlay: str, names: Iterable[NormalizedName]) -> str:
        """Return what makes an overlay of some of its distributions."""
        path = f" --venv {shlex.quote(self.venv)}" if self.given else ""
        return f"nox -s overlay -- {self.host} {overlay} {' '.join(names)}{path}"


def reference_place(fleet: Fleet, judged: Spec, word: str) -> Place:
    """Return the place that ``--reference`` names: ``HOST``, ``HOST:PATH``, or a path on the judged host.

    Raises :class:`InputError` for a word that names none, or several.
    """
    if posixpath.isabs(word):
        word = f"{judged.name}:{word}"
    elif word.startswith((".", "~")):
        raise InputError(f"--reference {word}: must be absolute", hint="HOST, HOST:PATH, or an absolute path")
    found = places(fleet, [word])
    if len(found) != 1:
        raise InputError(f"--reference {word}: names {len(found)} hosts, not one")
    return found[0]


@contextlib.contextmanager
def open_reference(
    fleet: Fleet, place: Place, reach: Reach, turn: Turn, listener: Listener
) -> Iterator[Reference]:
    """Look at a reference over its own connection, or over ``reach`` where it is on that host.

    Raises :class:`~hostenv.errors.RefusedError` where it is another machine than its spec says, or there is
    no environment, and :class:`~hostenv.errors.UnreachableError`.
    """
    spec = place.spec
    with contextlib.ExitStack() as stack:
        if spec.name != reach.name:
            reach = Reach(spec, specs=fleet.specs.values())
            turn.ends_with(reach.close)
            stack.enter_context(reach)
        path = place.path
        if path is None and spec.capture and spec.capture.venv:
            path = str(spec.capture.venv)
        with nothing_current(spec):
            found = reach.agent.call("environment.find", root=str(spec.host.root), path=path)
        if spec.identity:
            seen = Seen(machine_id=found["machine_id"], host_key=reach.host_key)
            require_identity(spec.as_managed(), seen, fleet.specs.values())
        looked = look_at_site(reach, spec, found["path"], listener, full=False)
        yield Reference(
            host=spec.name,
            venv=found["path"],
            given=place.path is not None,
            agent=reach.agent,
            installed=Installed.from_answer(looked["facts"]["survey"], spec.name),
            site=SiteFacts.from_answer(looked["facts"]["site"], spec.name),
        )


@dataclass(kw_only=True, slots=True)
class Wheels:
    """The wheels that lie on a host, in its wheelhouse or in the filled one that its spec names.

    For a host that is this machine, the controller's own count, too. They are only read, and each once.
    """

    agent: Agent
    spec: Spec
    root: str
    _names: tuple[str, ...] | None = None
    _read: dict[str, Candidate | Unread] = field(default_factory=dict)

    def versions(self, name: NormalizedName, platform: LockPlatform) -> tuple[Version, ...]:
        """Return the versions of a distribution that lie there for a platform, the newest first."""
        if self._names is None:
            told: list[str] = self.agent.call("wheelhouse.names", root=self.root, given=self._given)
            self._names = tuple(told)
        found: set[Version] = set()
        for each in self._names:
            with contextlib.suppress(InvalidWheelFilename, InvalidVersion):
                owner, version, _, tags = parse_wheel_filename(each)
                if owner == name and not platform.tag_ranks.keys().isdisjoint(tags):
                    found.add(version)
        return tuple(sorted(found, reverse=True))

    def look(
        self, packages: Iterable[PylockPackage], platform: LockPlatform, operators: Operators
    ) -> Mapping[NormalizedName, Candidate | Unread]:
        """Look into those packages whose wheel lies there; ``operators`` are the environment's own."""
        wanted: dict[str, tuple[NormalizedName, Wheel]] = {}
        for package in packages:
            best = package.best(platform)
            if best and best.sha256:
                wheel = Wheel(best.sha256, best.filename, best.size or 0)
                wanted[best.sha256] = (canonicalize_name(package.name), wheel)
        fresh = [wheel for sha256, (_, wheel) in wanted.items() if sha256 not in self._read]
        for wheel, path in self._paths(fresh).items():
            (self._read[wheel.sha256],) = self._looked(path, operators)
        return {name: self._read[sha256] for sha256, (name, _) in wanted.items() if sha256 in self._read}

    @property
    def _given(self) -> str | None:
        return str(self.spec.supply.wheelhouse) if self.spec.supply.wheelhouse else None

    def _paths(self, wheels: Sequence[Wheel]) -> dict[Wheel, str]:
        if not wheels:
            return {}
        found = supply_survey.find(
            self.agent,
            self.root,
            [(each.sha256, each.filename, each.size) for each in wheels],
            given=self.spec.supply.wheelhouse,
            remember=False,
        )
        depot = Depot()
        paths = {wheel: each.path for wheel, each in zip(wheels, found, strict=True)}
        if self.spec.is_local:
            paths |= {
                wheel: str(depot.path(wheel))
                for wheel, path in paths.items()
                if path is None and depot.holds(wheel)
            }
        return {wheel: path for wheel, path in paths.items() if path}

    def _looked(self, path: str, operators: Operators) -> tuple[Candidate | Unread, ...]:
        tables = stack_tables().namespaces
        pieces: list[bytes] = []
        called = {call.operator for source in operators.sources.values() for call in source.calls}
        answer = self.agent.call(
            "abi.wheels",
            paths=[path],
            namespaces={each.name: each.objects for each in tables},
            kernels=[each.package for each in tables],
            called=sorted(called),
            makers=sorted(operators.makers),
            on_data=pieces.append,
        )
        return wheels_from_answer(answer, pieces)
