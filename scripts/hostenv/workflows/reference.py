"""A reference under a session: what it is, whether it is what its spec says, and targets held against it."""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
from typing import TYPE_CHECKING

from hostenv.checks import comparison
from hostenv.checks.comparison import Outcome
from hostenv.checks.drift import drift_of_handmade
from hostenv.errors import CheckError, RefusedError
from hostenv.facts.distributions import Installed
from hostenv.machine.memory import Memory
from hostenv.machine.turns import Turns
from hostenv.spec.rules import Layer
from hostenv.steps.payload import Source
from hostenv.workflows.demands import besides, demands_of
from hostenv.workflows.environment import Environment, Place
from hostenv.workflows.inputs import inputs_of
from hostenv.workflows.locking import platform_of
from hostenv.workflows.match import side_of
from hostenv.workflows.taking import overlay_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostenv.checks.comparison import Comparison, Demands
    from hostenv.facts.root import Hold
    from hostenv.spec.overlaylist import OverlayFile
    from hostenv.steps.build import BuildInputs
    from hostenv.steps.series import ResultFile, SeriesResult
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.session import Session
    from hostenv.workflows.taking import Reading

_SHOWN = 12


class Reference:
    """The machine that works. Its agent answers one question at a time: targets ask from several threads."""

    def __init__(self, session: Session, reading: Reading) -> None:
        self._session = session
        self._reading = reading
        self._turn = Turns()
        self.name = reading.spec.name
        self.inputs = self._inputs()
        self.environment = Environment(
            Place(spec=reading.spec, path=reading.venv), reading.reach, Memory(), contextlib.ExitStack()
        )
        self._read = f"{dt.datetime.now(dt.UTC):%H:%M:%S} UTC"
        """When it was looked at: what is written there since is not seen."""
        self.environment.read(session.listener)

    @property
    def source(self) -> Source:
        """Where targets get the contents of overlays from."""
        environments = (self._reading.venv,)
        root = self._reading.state.root
        return Source(self._reading.reach, root=root, environments=environments, turn=self._turn)

    @property
    def hold(self) -> Hold | None:
        """The hold that somebody set there, if its environment is the build that is current."""
        return self._reading.state.hold if self.environment.look.build else None

    def _inputs(self) -> BuildInputs:
        spec, session = self._reading.spec, self._session
        platform = platform_of(spec, self._reading.state, self._reading.agent)
        locked = session.locker.lock(spec, platform, lambda: session.listener.phase(spec.name, "resolve"))
        return inputs_of(session.fleet.folder.parent, spec, locked.lock)

    def drift(self) -> tuple[str, ...]:
        """Say, a line each, where the reference is not its spec's lock, series and overlays."""
        if self.environment.look.build is None:
            return tuple(self._drift_of_handmade())
        return tuple(self._drift_of_build())

    @property
    def only_moved_on(self) -> bool:
        """Whether it is a build as it was made, of what its spec said before."""
        look, tree = self.environment.look, self.environment.tree
        whole = look.kept is not None and tree.fingerprint == look.kept.fingerprint and not tree.problems
        return whole and look.build != self.inputs.id

    def _drift_of_build(self) -> Iterator[str]:
        look, tree = self.environment.look, self.environment.tree
        if look.build != self.inputs.id:
            yield f"build {look.build} is current there, and its spec makes build {self.inputs.id}"
        yield from (f"{each.path} {each.reason}" for each in tree.problems)
        if look.kept is None:
            yield f"{look.path} keeps nothing of its making: whether it was edited is unknown"
        elif tree.fingerprint != look.kept.fingerprint:
            kept = self.environment.kept_manifest()
            for each in kept.differences(self.environment.manifest(self._session.listener)):
                yield f"{each.change:<8} {each.path}"

    def _drift_of_handmade(self) -> Iterator[str]:
        agent, venv = self._reading.agent, self._reading.venv
        installed = Installed.from_answer(agent.call("record.survey", root=venv), self.name)
        capture = self._reading.spec.capture
        ignore = (*(capture.ignore if capture else ()), *self._stale(installed))
        results = self._results()
        files = [file for each in results for file in each.files]
        removed: dict[str, str | None] = {path: None for each in results for path in each.removed}
        applied = {file.path: file.sha256 for file in files} | removed
        changed = {file.path: file.sha256 for file in files if file.sha256 != file.pristine_sha256} | removed
        yield from drift_of_handmade(
            installed,
            wheels={entry.name: entry.version for entry in self.inputs.wheels},
            overlays=self.inputs.overlays,
            applied=changed,
            ignore=ignore,
        )
        yield from self._drift_of_modes(files)
        for overlay in self.inputs.overlays:
            names = [each.name for each in overlay.distributions]
            answer = agent.call("overlay.take", root=venv, names=names, paths=[])
            found = overlay_of(answer, name=overlay.name, host=self.name, venv=venv, why=None)
            there = {file.path: file for file in found.files}
            for file in overlay.files:
                if file.dist in names and not _lies_there(file, there.get(file.path), applied):
                    yield f"overlay  {file.path} is not what overlays/{overlay.name} has"

    def _stale(self, installed: Installed) -> Iterator[str]:
        """Return patterns of nobody's bytecode that Python compiles anew: no target needs it."""
        compiled = {path for path in installed.unowned if path.endswith(".pyc")}
        yield from map(glob.escape, compiled - self.environment.run_regardless(compiled))

    def _drift_of_modes(self, files: Sequence[ResultFile]) -> Iterator[str]:
        """Say which of a series' files are executable there and should not be, or the other way round."""
        if not files:
            return
        there, site = self.environment.manifest(self._session.listener).entries, self.environment.look.site
        for file in files:
            entry = there.get(f"{site}/{file.path}")
            if entry and bool(entry.mode & 0o111) != bool(file.mode & 0o111):
                yield f"mode     {file.path} is {entry.mode:o}, and the series makes it {file.mode:o}"

    def _results(self) -> tuple[SeriesResult, ...]:
        """Return what the series make, computed on the locked wheels and the overlays."""
        from hostenv.steps.fetch import wheel_of  # noqa: PLC0415  only where a reference is hand-made
        from hostenv.steps.patched import compute_all, touched_by  # noqa: PLC0415

        inputs, payload = self.inputs, self._session.payload
        entries = inputs.lock.by_name
        wanted = [entries[each.dist] for each in inputs.series if not inputs.overlay_with(each.dist)]
        depot, listener = self._session.depot, self._session.listener
        depot.fill(
            self.inputs.lock,
            wanted,
            on_start=lambda size: listener.phase(self.name, "fetch here", size),
            on_progress=lambda done: listener.advance(self.name, done),
        )
        touched = touched_by(inputs)
        payload.bring(self.source, inputs.overlays, touched, on_progress=lambda _: None)
        wheels = {entry.name: depot.path(wheel_of(entry)) for entry in wanted}
        return compute_all(inputs, wheels, payload.folder)

    def require_same_inputs(self, host: OpenHost, inputs: BuildInputs) -> None:
        """Raise :class:`RefusedError` where a target's spec leaves out, or adds, what must be equal."""
        said = host.spec.reference
        layers = frozenset(said.equal) if said and said.host == self.name else frozenset(Layer)
        own, other = self.inputs.describe(), inputs.describe()
        problems = []
        if Layer.PATCHES in layers and own["series"] != other["series"]:
            names = (f"{dist}-{version}" for dist, version, _ in own["series"])
            theirs = (f"{dist}-{version}" for dist, version, _ in other["series"])
            problems.append(f"series: {self.name} has {_words(names)}, {host.spec.name} {_words(theirs)}")
        if Layer.OVERLAYS in layers and own["overlays"] != other["overlays"]:
            names = (overlay.name for overlay in self.inputs.overlays)
            theirs = (overlay.name for overlay in inputs.overlays)
            problems.append(f"overlays: {self.name} has {_words(names)}, {host.spec.name} {_words(theirs)}")
        if Layer.LOCK in layers and own["wheels"] != other["wheels"]:
            ours = {(name, version, digest) for name, version, digest in own["wheels"]}
            different = sorted({each[0] for each in ours ^ {tuple(each) for each in other["wheels"]}})
            problems.append(f"lock: {_words(different[:_SHOWN])} differ")
        if problems:
            raise RefusedError(
                f"{host.spec.name}: its spec does not make what {self.name}'s makes:\n" + "\n".join(problems),
                hint="let both specs name the same, or say in the target's [reference] what may differ",
            )

    def prove(self, host: OpenHost, build: str, *, looked: Environment | None = None) -> tuple[str, ...]:
        """Hold a target's build against the reference, file by file; say how they are equal.

        ``looked``: what this session has looked at there and not touched since; of another build it is no
        use. Raises :class:`CheckError` that names what must be equal and is not.
        """
        if looked is not None and looked.look.build == build:
            target = looked
        else:
            place = Place(spec=host.spec, path=build)
            target = Environment(place, host.reach, Memory(), contextlib.ExitStack())
            target.read(self._session.listener)
        ours, theirs = self.environment.tree.fingerprint, target.tree.fingerprint
        if ours is not None and ours == theirs:
            return (f"equal to {self.name} in every file, as read there at {self._read}: {ours[:16]}…",)
        compared, demands = self._compare(target)
        if compared.outcome not in {Outcome.EQUAL, Outcome.ALLOWED}:
            lines = _lines(compared, demanded=True)
            raise CheckError(
                f"{host.spec.name}: build {build} is not what {self.name} has:\n" + "\n".join(lines),
                hint=f"nothing was switched; nox -s match -- {self.name} {host.spec.name}:{build} shows all",
            )
        layers = ", ".join(layer for layer in Layer if layer in demands.layers)
        allowed = _lines(compared, demanded=False)
        if self.environment.look.build is None:
            layers += " (not compared: scripts, stale bytecode, and the permissions that a umask decides)"
        if not allowed:
            return (f"equal to {self.name} in {layers}, as read there at {self._read}",)
        return (
            f"equal to {self.name} in {layers}, as read there at {self._read}; what may differ, and does:",
            *allowed,
        )

    def _compare(self, target: Environment) -> tuple[Comparison, Demands]:
        listener = self._session.listener
        demands = demands_of(self.environment, self.environment.place.spec, target)
        theirs = target.manifest(listener)  # at its own pace: nobody waits for the reference meanwhile
        with self._turn:
            differences = self.environment.manifest(listener).differences(theirs)
            demands = besides(demands, self.environment, target, differences)
            paths = {each.path for each in differences}
            side = side_of(self.environment, paths)
        unread = (
            *comparison.unread("reference", self.environment.tree.problems, demands),
            *comparison.unread("target", target.tree.problems, demands),
        )
        other = side_of(target, paths)
        return comparison.compare(side, other, differences, unread, demands), demands


def _lies_there(file: OverlayFile, found: OverlayFile | None, applied: Mapping[str, str | None]) -> bool:
    """Tell whether a file of an overlay is there, as a series over it leaves it."""
    if file.path not in applied:
        return found == file
    return (found.sha256 if found else None) == applied[file.path]


def _lines(compared: Comparison, *, demanded: bool) -> list[str]:
    lines = [
        f"{each.cause:<8} {each.path}" + (f" ({each.detail})" if each.detail else "")
        for group in compared.groups
        for each in group.differing
        if each.demanded is demanded
    ]
    if demanded:
        lines += [f"unread   {each.side}: {each.path}: {each.reason}" for each in compared.unread]
    rest = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"and {rest} more"] if rest > 0 else lines


def _words(names: Iterator[str] | list[str]) -> str:
    return ", ".join(names) or "none"
