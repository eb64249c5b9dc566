"""Taking an overlay: whole distributions of a reference host become a description, a list, and contents."""

from __future__ import annotations

import contextlib
import datetime as dt
import pathlib
import posixpath
import re
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.agent.amounts import counted, megabytes
from hostenv.agent.files import write_file
from hostenv.errors import InputError, RefusedError
from hostenv.machine.reach import Reach
from hostenv.spec.overlay import (
    LONGEST_NAME,
    Binary,
    Origin,
    OverlaidDistribution,
    Overlay,
    check_rendered,
    load_overlay,
    path_of,
    render,
    stated_why,
)
from hostenv.spec.overlaylist import NOBODY, PREFIX, OverlayFile
from hostenv.spec.overlaylist import render as render_list
from hostenv.spec.series import OVERLAY
from hostenv.steps.identity import Seen, require_identity
from hostenv.steps.payload import Source
from hostenv.workflows.events import HostResult
from hostenv.workflows.host import read_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostenv.facts.root import RootState
    from hostenv.machine.agent import Agent
    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.session import Session

_LEAST = 3
"""Words of ``overlay``: a host, a name, and at least one distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A host that is only read: reached, proven to be the one meant, its environment found."""

    spec: Spec
    reach: Reach
    state: RootState
    venv: str

    @property
    def agent(self) -> Agent:
        """The agent there."""
        return self.reach.agent

    @property
    def source(self) -> Source:
        """Where the contents of overlays can be had there."""
        return Source(self.reach, root=self.state.root, environments=(self.venv,))


@contextlib.contextmanager
def open_for_reading(fleet: Fleet, spec: Spec, turn: Turn, venv: str | None = None) -> Iterator[Reading]:
    """Reach a host whose environment is read: ``venv``, ``capture.venv`` of its spec, or the current build.

    Raises :class:`RefusedError` where it is another machine than the spec says, or has no environment.
    """
    reach = Reach(spec, specs=fleet.specs.values())
    turn.ends_with(reach.close)
    with reach:
        state = read_state(reach.agent, spec)
        if spec.identity:
            seen = Seen(machine_id=state.machine_id, host_key=reach.host_key)
            require_identity(spec.as_managed(), seen, fleet.specs.values())
        yield Reading(spec=spec, reach=reach, state=state, venv=_venv(spec, state, venv))


def _venv(spec: Spec, state: RootState, given: str | None) -> str:
    if given:
        if not posixpath.isabs(given):
            raise InputError(f"--venv {given}: must be absolute")
        return given
    if spec.capture and spec.capture.venv:
        return str(spec.capture.venv)
    if state.current_build:
        return f"{state.root}/builds/{state.current_build}"
    if state.astray:
        raise RefusedError(f"{spec.name}: {state.astray}", hint=f"nox -s build_env -- {spec.name} mends it")
    raise RefusedError(
        f"{spec.name}: nothing is current under {state.root}, and the spec has no capture.venv",
        hint="--venv PATH names an environment made otherwise",
    )


def take_overlay(session: Session) -> tuple[HostResult, ...]:
    """Write ``overlays/NAME`` from what a host has, and keep the contents in the controller's store.

    Words after the name are distributions (patterns), or loose files below site-packages (``./FILE``,
    ``./FOLDER/``).
    """
    words = session.request.hosts
    if len(words) < _LEAST:
        raise InputError(
            "a host, a name and distributions are needed", hint="nox -s overlay -- HOST NAME DIST..."
        )
    host, name, *wanted = words
    names = [word for word in wanted if not word.startswith("./")]
    paths = [word for word in wanted if word.startswith("./")]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > LONGEST_NAME:
        shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
        raise InputError(
            f'"{shown}" is no name for an overlay: letters, digits, dots, dashes, underscores, '
            f"at most {LONGEST_NAME}"
        )

    def work(session: Session, spec: Spec, turn: Turn) -> HostResult:
        with open_for_reading(session.fleet, spec, turn, session.request.venv) as reading:
            session.listener.phase(spec.name, "read")
            why = session.request.why or stated_why(_folder(session), name)
            overlay = read_overlay(reading, name, names, why=why, paths=paths)
            return keep_overlay(session, reading, overlay)

    return session.run(work, session.fleet.select([host]))


def _folder(session: Session) -> pathlib.Path:
    return session.fleet.folder.parent / "overlays"


def _digest(folder: pathlib.Path, name: str) -> str | None:
    """Return the digest of the overlay that is there; ``None`` without one, or where it cannot be read."""
    with contextlib.suppress(InputError):
        return load_overlay(folder, name).digest
    return None


def read_overlay(
    reading: Reading, name: str, names: Sequence[str], *, why: str | None, paths: Sequence[str] = ()
) -> Overlay:
    """Read distributions (patterns) and loose files (paths in the environment) into an overlay.

    Raises :class:`RefusedError` for what no build would take from the files that it becomes.
    """
    answer = reading.agent.call("overlay.take", root=reading.venv, names=list(names), paths=list(paths))
    overlay = overlay_of(answer, name=name, host=reading.spec.name, venv=reading.venv, why=why)
    try:
        check_rendered(overlay)
    except InputError as error:
        message = f"{reading.spec.name}: no build could lay what would be written:\n{error.message}"
        raise RefusedError(message, hint=f"mend it in {reading.venv} there, or leave it out") from error
    return overlay


def overlay_of(answer: Mapping[str, Any], *, name: str, host: str, venv: str, why: str | None) -> Overlay:
    """Return the overlay that the agent's answer describes."""
    site = answer["site"]
    files = [
        OverlayFile(path=_within(path, site), dist=owner, mode=mode, size=size, sha256=sha256)
        for path, owner, mode, size, sha256 in answer["files"]
    ]
    files += [
        OverlayFile(path=_within(path, site), dist=owner, target=target)
        for path, owner, target in answer["links"]
    ]
    return Overlay(
        name=name,
        why=why or f"as it works on {host}",
        origin=Origin(
            host=host,
            venv=venv,
            taken=dt.datetime.now(dt.UTC).date(),
            python=answer["python"],
            arch=answer["arch"],
        ),
        distributions=tuple(
            OverlaidDistribution(name=each["name"], version=each["version"])
            for each in answer["distributions"]
        ),
        binaries=tuple(
            Binary(
                path=_within(each["path"], site),
                machine=each["machine"],
                glibc=each["glibc"],
                needed=tuple(each["needed"]),
                gpu=tuple(each["gpu"]),
                problem=each["problem"],
                soname=each["soname"],
                versions=tuple(each["versions"]),
                search=tuple(each["search"]),
            )
            for each in answer["binaries"]
        ),
        files=tuple(files),
    )


def _within(path: str, site: str) -> str:
    return path.removeprefix(f"{site}/") if path.startswith(f"{site}/") else PREFIX + path


def keep_overlay(session: Session, reading: Reading, overlay: Overlay) -> HostResult:
    """Write an overlay's files, its contents first; nothing where the same is there."""
    folder = _folder(session)
    absent = session.payload.missing(overlay.contents)
    before = _digest(folder, overlay.name)
    same = before == overlay.digest
    host = reading.spec.name
    if same and not absent:
        return HostResult(
            host=host, headline=f"nothing to do: overlays/{overlay.name}.toml is what {host} has"
        )
    lines = [f"overlay  overlays/{overlay.name}.toml: {told(overlay)}, from {reading.venv}"]
    if absent:
        count = f"{counted(len(absent), 'file')}, {megabytes(sum(absent.values()))}"
        lines.append(f"receive  {count}, into {session.payload.folder}")
    ported = () if same else _to_be_ported(folder.parent / "patches", before)
    session.listener.plan(host, [*lines, *(f"series   {each}" for each in ported)])
    if session.request.dry_run:
        return HostResult(host=host, headline="dry run: nothing was changed")
    session.listener.phase(host, "receive", sum(absent.values()))
    done = [0]

    def advance(count: int) -> None:
        done[0] += count
        session.listener.advance(host, done[0])

    session.payload.bring(reading.source, (overlay,), absent, on_progress=advance)
    write(folder, overlay)
    use = f'[[overlays]] name = "{overlay.name}"'
    return HostResult(
        host=host,
        headline=f"overlays/{overlay.name}.toml: {told(overlay)}",
        changed=True,
        path=reading.venv,
        notes=(
            f"a spec takes it with {use}",
            f"digest {overlay.digest}: a series over it names it in patches/<dist>-<version>/overlay",
            *ported,
        ),
    )


def _to_be_ported(patches: pathlib.Path, before: str | None) -> tuple[str, ...]:
    """Say which series are for the overlay as it was, so that every build with them is refused."""
    named = [
        path for path in sorted(patches.glob(f"*/{OVERLAY}")) if path.read_bytes().strip() == _raw(before)
    ]
    return tuple(
        f"patches/{path.parent.name} is for the overlay as it was, and is refused until it is ported and "
        f"{path.parent.name}/{OVERLAY} holds the new digest"
        for path in named
    )


def _raw(digest: str | None) -> bytes | None:
    return digest.encode() if digest else None


def told(overlay: Overlay) -> str:
    """Say in a few words what an overlay holds."""
    loose = sum(file.dist == NOBODY for file in overlay.files)
    parts = [counted(len(overlay.distributions), "distribution")] if overlay.distributions else []
    parts += [counted(loose, "loose file")] if loose else []
    return f"{', '.join(parts)}, {counted(len(overlay.files), 'file')}, {megabytes(overlay.size)}"


def write(folder: pathlib.Path, overlay: Overlay) -> None:
    """Write an overlay's list and its description, both or neither: each beside, then renamed."""
    folder.mkdir(exist_ok=True)
    description = path_of(folder, overlay.name)
    texts = {description.with_suffix(".files"): render_list(overlay.files), description: render(overlay)}
    listed = next(iter(texts))
    old = listed.read_bytes() if listed.is_file() else None
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as beside:
        for path, text in texts.items():
            write_file(f"{beside}/{path.name}", text.encode())
        try:
            for path in texts:
                pathlib.Path(beside, path.name).replace(path)
        except OSError:
            if old is not None:
                write_file(str(listed), old)
            elif listed.is_file():
                listed.unlink()
            raise
