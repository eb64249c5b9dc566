"""``capture``: an environment that works becomes pins, series and overlays, proven file by file.

The host is only read. What is installed becomes a class, ``envspecs/classes/<host>-captured.toml``, since the
host and its targets share one lock and one build by extending it; ``envspecs/<host>.toml`` does so at once
where it says nothing else of what is built, or is not there. A manifest, ``envspecs/manifests/<host>.json``,
keeps what the environment was when its machine is gone.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.agent.amounts import counted
from hostenv.errors import RefusedError
from hostenv.facts.distributions import Installed
from hostenv.machine.bulk import File
from hostenv.machine.memory import Memory
from hostenv.spec.lockplatform import LockPlatform
from hostenv.spec.overlay import load_overlay
from hostenv.spec.patchapply import FileState
from hostenv.spec.patchwrite import LARGEST_TEXT
from hostenv.spec.series import load_series
from hostenv.steps import lockfile
from hostenv.steps.captured import CapturedClass, Change, ExpectedFile, changes_of, expected_of, overlay_path
from hostenv.steps.fetch import wheel_of
from hostenv.steps.pins import lock_pins, not_there
from hostenv.steps.pristine import PristineWheel
from hostenv.steps.series import compute
from hostenv.steps.serieswrite import SeriesText, check_series, planned_series, write_series
from hostenv.steps.wheelfiles import wheel_files
from hostenv.workflows.captureclass import ClassFile
from hostenv.workflows.capturefiles import (
    Description,
    require_new_machine,
    saved_manifest,
    with_new_hosts,
)
from hostenv.workflows.captureproof import Proof, as_overlaid, laid_besides
from hostenv.workflows.checkouts import read_checkouts
from hostenv.workflows.environment import Environment, Place
from hostenv.workflows.events import HostResult
from hostenv.workflows.taking import keep_overlay, open_for_reading, read_overlay, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.utils import NormalizedName

    from hostenv.facts.manifest import Entry
    from hostenv.machine.fleet import Turn
    from hostenv.spec.overlay import Overlay
    from hostenv.spec.spec import Spec
    from hostenv.steps.pins import Pinned
    from hostenv.workflows.session import Session
    from hostenv.workflows.taking import Reading


def capture(session: Session) -> tuple[HostResult, ...]:
    """Capture the environment of each host that the request names.

    With ``--venv``, a word that no spec has as its name is an SSH alias: its spec is written, too.
    """
    session = with_new_hosts(session)

    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        with open_for_reading(session.fleet, spec, turn, session.request.venv) as reading:
            if not spec.path.exists():
                require_new_machine(session.fleet, reading)
            return _Capture(session, reading).carry_out()

    return session.run(work)


@dataclass(slots=True)
class _Found:
    """What was decided: which distributions overlays bring, and what series make of the others."""

    overlaid: set[NormalizedName] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)
    series: dict[str, SeriesText] = field(default_factory=dict)


class _Capture:
    """One host's capture."""

    def __init__(self, session: Session, reading: Reading) -> None:
        self._session = session
        self._reading = reading
        self._name = reading.spec.name
        self._repository = session.fleet.folder.parent
        self._found = _Found()
        self._phase("look")
        place = Place(spec=reading.spec, path=reading.venv)
        environment = Environment(place, reading.reach, Memory(), contextlib.ExitStack())
        environment.read(session.listener)
        self._manifest = environment.manifest(session.listener)
        self._tree = environment.tree
        self._built = environment.look.build is not None
        answer = reading.agent.call("record.survey", root=reading.venv)
        self._installed = Installed.from_answer(answer, self._name)
        self._site = self._installed.site or ""
        self._proof = Proof(
            installed=self._installed,
            ignore=reading.spec.capture.ignore if reading.spec.capture else (),
            run_regardless=environment.run_regardless(self._manifest.entries),
        )
        self._checkouts = read_checkouts(session, reading, self._installed)
        self._description = Description(
            session.fleet.folder,
            reading,
            class_name=self._overlay_name,
            saved=saved_manifest(environment, self._manifest, self._proof.run_regardless),
        )

    @property
    def _overlay_name(self) -> str:
        return f"{self._name}-captured"

    def carry_out(self) -> HostResult:
        """Decide, show, write, prove."""
        self._refuse_unread()
        self._refuse_editable()
        pinned = self._pin()
        self._fetch(pinned)
        self._compare(pinned)
        if self._found.overlaid & {entry.name for entry in pinned.lock.entries}:
            pinned = self._pin()
        overlay = self._overlay()
        written = self._class(pinned, overlay)
        lines = self._plan(written, overlay)
        self._session.listener.plan(self._name, lines)
        if not self._session.request.replace:
            written.require_replaceable()
        patches = self._repository / "patches"
        for each in self._found.series.values():
            check_series(patches, each)
        if self._session.request.dry_run:
            with tempfile.TemporaryDirectory(prefix="hostenv-capture-") as folder:
                patches = pathlib.Path(folder)
                for each in self._found.series.values():
                    write_series(patches, each)
                left = self._unexplained(pinned, overlay, patches)
            headline = "dry run: nothing was changed"
            return HostResult(
                host=self._name,
                headline=headline,
                error=self._proof.error(left, self._name, self._session.request.venv),
            )
        self._write(pinned, overlay, written)
        return self._result(self._unexplained(pinned, overlay, patches))

    def _phase(self, name: str, total: int | None = None) -> None:
        self._session.listener.phase(self._name, name, total)

    def _refuse_unread(self) -> None:
        if lines := self._proof.unread((*self._tree.problems, *self._installed.tree.problems)):
            raise RefusedError(
                f"{self._name}: what cannot be captured:\n" + "\n".join(lines),
                hint="run it again when nothing writes there; capture.ignore in the spec leaves paths aside",
            )

    def _refuse_editable(self) -> None:
        editable = [
            each
            for each in self._installed.distributions
            if each.editable and each.key not in self._checkouts
        ]
        if editable:
            lines = [f"{each.name} {each.version}: {(each.direct_url or {}).get('url')}" for each in editable]
            raise RefusedError(
                f"{self._name}: editable installations; their code lies elsewhere:\n" + "\n".join(lines),
                hint="--from-git DIR BASE..BRANCH [--strip FOLDER/] makes a series of a checkout's commits",
            )

    def _pin(self) -> Pinned:
        """Lock what is installed. Local builds (``direct_url``) and what no index serves are overlaid."""
        self._phase("resolve")
        state, interpreter = self._reading.state, self._tree.interpreter
        platform = LockPlatform(
            python=interpreter.python or "", arch=state.arch, glibc=state.glibc or interpreter.glibc or "2.17"
        )
        for each in self._installed.distributions:
            url = str((each.direct_url or {}).get("url", ""))
            if url and each.key not in self._checkouts:
                self._found.overlaid.add(each.key)
                self._found.why[each.key] = f"was installed from {url.partition(':')[0]}:…"
        pins = {each.key: each.version for each in self._installed.distributions}
        pins |= {name: checkout.version for name, checkout in self._checkouts.items()}
        left_out = self._found.overlaid | not_there(self._installed)
        pinned = lock_pins(self._overlay_name, pins, platform, left_out=left_out, like=self._reading.spec.env)
        for name in pinned.unserved:
            self._found.overlaid.add(name)
            self._found.why[name] = f"no index serves {pins[name]}"
        return pinned

    def _fetch(self, pinned: Pinned) -> None:
        self._phase("fetch here")
        self._session.depot.fill(
            pinned.lock,
            pinned.lock.entries,
            on_start=lambda size: self._phase("fetch here", size),
            on_progress=lambda done: self._session.listener.advance(self._name, done),
        )

    def _wheel(self, pinned: Pinned, name: str) -> pathlib.Path:
        return self._session.depot.path(wheel_of(pinned.lock.by_name[name]))

    def _there(self) -> dict[str, Entry]:
        """Return the host's files by path in site-packages, or after ``{prefix}/`` in the environment."""
        return {overlay_path(path, self._site): entry for path, entry in self._manifest.entries.items()}

    def _compare(self, pinned: Pinned) -> None:
        """Hold each distribution against its pristine wheel: what differs is a series, or overlays it."""
        there = self._there()
        beside = {
            overlay_path(path, self._site): owner
            for path, owner in self._reading.agent.call(
                "environment.claims", path=self._reading.venv, paths=list(self._installed.unowned)
            )["beside"].items()
        }
        for entry in pinned.lock.entries:
            if entry.name in self._checkouts:
                self._found.series[entry.name] = SeriesText(
                    dist=entry.name,
                    version=entry.version,
                    host=self._name,
                    commits=self._checkouts[canonicalize_name(entry.name)].commits,
                )
                continue
            pristine = wheel_files(self._wheel(pinned, entry.name))
            added = [path for path, owner in beside.items() if owner == entry.name]
            changes = changes_of(pristine, there, added)
            if changes:
                self._decide(entry.name, entry.version, self._wheel(pinned, entry.name), changes)

    def _decide(self, name: str, version: str, wheel: pathlib.Path, changes: tuple[Change, ...]) -> None:
        """Make a series of text changes; anything else makes an overlay of the whole distribution."""
        contents = self._contents([each for each in changes if each.is_there])
        with PristineWheel(wheel, dist=name, version=version) as pristine:
            text = SeriesText(dist=name, version=version, host=self._name)
            why = text.take(changes, contents, pristine, LARGEST_TEXT)
        if why:
            self._found.overlaid.add(canonicalize_name(name))
            self._found.why[name] = why
        else:
            self._found.series[name] = text

    def _contents(self, changes: list[Change]) -> Mapping[str, FileState]:
        """Receive changed files of the host; large ones are not looked into."""
        wanted = {
            each.environment_path(self._site): each for each in changes if 0 < each.size <= LARGEST_TEXT
        }
        found = {each.path: FileState(content=b"", executable=each.executable) for each in changes}
        if not wanted:
            return found
        with tempfile.TemporaryDirectory(prefix="hostenv-capture-") as folder:
            files = [
                File(path=path, size=each.size, sha256=each.sha256) for path, each in sorted(wanted.items())
            ]
            self._reading.reach.receive_files(self._reading.venv, pathlib.Path(folder), files)
            for path, each in wanted.items():
                content = pathlib.Path(folder, path).read_bytes()
                found[each.path] = FileState(content=content, executable=each.executable)
        return found

    def _overlay(self) -> Overlay | None:
        """Take what is overlaid, and loose files that nobody owns and no other overlay lays."""
        others = {f"{self._site}/{path}" for path in self._others()}
        loose = [
            path
            for path in self._installed.unowned
            if path.startswith(f"{self._site}/")
            and path.count("/") == self._site.count("/") + 1
            and not path.endswith(".pyc")
            and path not in others
        ]
        if not (self._found.overlaid or loose):
            return None
        why = "; ".join(f"{name}: {why}" for name, why in sorted(self._found.why.items()))
        names = sorted(self._found.overlaid)
        return read_overlay(self._reading, self._overlay_name, names, why=why or None, paths=loose)

    def _plan(self, written: ClassFile, overlay: Overlay | None) -> list[str]:
        lines = [written.plan(), *self._description.plan()]
        patches = self._repository / "patches"
        lines += [planned_series(patches, each) for each in self._found.series.values()]
        lines += [f"overlay  overlays/{overlay.name}.toml: {told(overlay)}"] if overlay else []
        lines += [f"         {name}: {why}" for name, why in sorted(self._found.why.items())]
        return lines

    def _class(self, pinned: Pinned, overlay: Overlay | None) -> ClassFile:
        made = CapturedClass(
            name=self._overlay_name,
            host=self._name,
            env=pinned.env,
            platform=pinned.lock.platform,
            series=tuple(sorted(each.name for each in self._found.series.values())),
            overlay=overlay.name if overlay else None,
            fingerprint=self._tree.fingerprint,
        )
        path = self._session.fleet.folder / "classes" / f"{made.name}.toml"
        origin = f"{self._name}'s build" if self._built else self._reading.venv
        return ClassFile(path, made, origin)

    def _write(self, pinned: Pinned, overlay: Overlay | None, written: ClassFile) -> None:
        """Write contents, overlay, series, lock and class; the class last: it names the others."""
        if overlay:
            keep_overlay(self._session, self._reading, overlay)
        for each in self._found.series.values():
            write_series(self._repository / "patches", each)
        name = f"{self._overlay_name}.{pinned.lock.platform.name}.txt"
        lock = replace(pinned.lock, name=self._overlay_name)
        lockfile.store(lock, self._session.fleet.folder / "locks" / name)
        written.write()
        self._description.write()

    def _unexplained(self, pinned: Pinned, overlay: Overlay | None, patches: pathlib.Path) -> list[str]:
        """Return what pristine wheels, series and overlays, as they were written, do not make of the host."""
        expected = self._others()
        for locked in pinned.lock.entries:
            if locked.name not in self._found.overlaid:
                wheel = self._wheel(pinned, locked.name)
                result = None
                if locked.name in self._found.series:
                    result = compute(load_series(patches / self._found.series[locked.name].name), wheel)
                expected |= expected_of(wheel_files(wheel), result, locked.name)
        expected = {path: each for path, each in expected.items() if each.owner not in self._proof.editable}
        if overlay:
            kept = overlay
            if not self._session.request.dry_run:
                kept = load_overlay(self._repository / "overlays", overlay.name)
            expected |= {file.path: as_overlaid(file) for file in kept.files}
        return self._proof.unexplained(self._there(), expected)

    def _others(self) -> dict[str, ExpectedFile]:
        return laid_besides(self._repository / "overlays", self._reading.spec, self._overlay_name)

    def _result(self, left: list[str]) -> HostResult:
        files = len(self._manifest.entries)
        notes = [*self._description.notes(self._overlay_name), *self._proof.idle(self._manifest.entries)]
        if self._proof.bytecode:
            count = counted(len(self._proof.bytecode), "file")
            notes.append(
                f"not captured: {count} of bytecode that its source has outgrown: {self._proof.bytecode[0]}"
            )
        headline = f"captured: all of {files} files are explained"
        headline = f"captured, {len(left)} of {files} files aside" if left else headline
        return HostResult(
            host=self._name,
            headline=headline,
            changed=True,
            path=self._reading.venv,
            fingerprint=self._tree.fingerprint,
            error=self._proof.error(left, self._name, self._session.request.venv),
            notes=tuple(notes),
        )
