"""What somebody edited by hand in a host's current build: found, shown, and saved before it is given up."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.agent.store import relative
from hostenv.errors import HostError, RefusedError
from hostenv.facts.manifest import Change
from hostenv.machine.bulk import File
from hostenv.machine.memory import Memory
from hostenv.spec.patchapply import FileState
from hostenv.spec.patchwrite import LARGEST_TEXT, header, is_text, write_change
from hostenv.workflows.environment import Environment, Place

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Iterator, Mapping

    from hostenv.facts.manifest import Difference, Entry, TreeProblem
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.session import Session

FOLDER = ".hostenv/discarded"
"""Below the repository: where edits are kept that an operator gave up."""

_SHOWN = 12
_NOT_A_FILE = ("is ", "links out ")
"""How the reasons begin of what holds no bytes that could be saved: a pipe, a link that leaves the tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edits:
    """How a host's current build differs from what was built; ``site`` is its site-packages, relative."""

    build: str
    path: str
    site: str
    differences: tuple[Difference, ...]
    problems: tuple[TreeProblem, ...]

    def lines(self) -> tuple[str, ...]:
        """Say what was edited, a line each."""
        lines = [f"{each.change:<8} {each.path}" for each in self.differences]
        lines += [f"{each.path} {each.reason}" for each in self.problems]
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        return (*lines[:_SHOWN], *more)

    def refusal(self, host: str) -> RefusedError:
        """Return the error that shows them."""
        count = len(self.differences) + len(self.problems)
        return RefusedError(
            f"{host}: {counted(count, 'file')} of its current build {self.build} "
            f"{'was' if count == 1 else 'were'} edited by hand:\n" + "\n".join(self.lines()),
            hint="--discard-edits saves them as a patch and goes on; a wanted one belongs into patches/",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A build of which nobody can say whether it was edited: that is not the same as no edits."""

    path: str
    why: str

    def refusal(self, host: str) -> RefusedError:
        """Return the error that says so: what cannot be told apart cannot be saved either."""
        return RefusedError(
            f"{host}: whether its current build was edited by hand is unknown: {self.why}",
            hint=f"nox -s build_env -- {host} --remake makes it anew; what is wanted of {self.path} "
            "has to be copied aside before",
        )


def find_edits(session: Session, host: OpenHost, build: str | None) -> Edits | Unknown | None:
    """Hold a build, or the current one, against the manifest of its making; ``None``: nothing was edited.

    One walk where nothing was touched.
    """
    environment = look_at(session, host, build)
    return None if environment is None else edits_in(session, environment)


def look_at(session: Session, host: OpenHost, build: str | None = None) -> Environment | None:
    """Look at a build, or the current one; ``None`` where there is none."""
    build = build or host.state.current_build
    if build is None:
        return None
    place = Place(spec=host.spec, path=build)
    environment = Environment(place, host.reach, Memory(), contextlib.ExitStack())
    environment.read(session.listener)
    return environment


def edits_in(session: Session, environment: Environment) -> Edits | Unknown | None:
    """Hold a build that was looked at against the manifest of its making; ``None``: nothing was edited."""
    build, path = environment.look.build, environment.look.path
    kept, tree = environment.look.kept, environment.tree
    if build is None:
        return Unknown(path=path, why=f"{path} is no build of hostenv")
    if kept is None:
        return Unknown(path=path, why=f"{path} keeps nothing of its making to compare with")
    if tree.fingerprint is not None and tree.fingerprint == kept.fingerprint:
        return None
    return Edits(
        build=build,
        path=path,
        site=environment.look.site or "",
        differences=environment.kept_manifest().differences(environment.manifest(session.listener)),
        problems=tree.problems,
    )


def save_edits(session: Session, host: OpenHost, edits: Edits, who: Mapping[str, str]) -> pathlib.Path:
    """Keep edits below the repository: every edited file as it is, and a patch of the text files.

    Where a link was made or changed leads, ``links.txt`` says. Returns the folder. Raises
    :class:`HostError` where a file cannot be had, or is no longer the one that was looked at: nothing is
    given up then.
    """
    unread = [each for each in edits.problems if not each.reason.startswith(_NOT_A_FILE)]
    if unread:
        raise _not_saved(host, [f"{each.path} {each.reason}" for each in unread])
    files = [
        File(path=each.path, size=each.target.size, sha256=_digest(each.path, each.target))
        for each in edits.differences
        if each.target and each.target.target is None and each.change is not Change.MODE
    ]
    files = _with_real_sizes(host, edits, files)
    folder = _free_folder(session.fleet.folder.parent / FOLDER, f"{host.spec.name}-{edits.build}")
    folder.mkdir(parents=True)
    if files:
        host.reach.receive_files(edits.path, folder / "files", files)
    links = [each for each in edits.differences if each.target and each.target.target is not None]
    if links:
        lines = [f"{each.path} -> {each.target.target}\n" for each in links if each.target]
        (folder / "links.txt").write_bytes("".join(lines).encode("utf-8", "surrogateescape"))
    told = tuple(_for_patch(edits, folder))
    originals = _originals(host, told, folder, who)
    (folder / "edits.patch").write_bytes(_patch(host, edits, told, folder, originals))
    return folder


def _not_saved(host: OpenHost, lines: Iterable[str]) -> HostError:
    return HostError(
        f"{host.spec.name}: cannot be saved, so nothing is discarded:\n" + "\n".join(lines),
        hint="run it again when nothing writes there",
    )


def _with_real_sizes(host: OpenHost, edits: Edits, files: list[File]) -> list[File]:
    """Give each file its own size, which the stream takes; raises where one is gone meanwhile."""
    found = host.agent.call("store.present", folder=edits.path, paths=[file.path for file in files])
    gone = [file.path for file, size in zip(files, found, strict=True) if size is None]
    if gone:
        raise _not_saved(host, [f"{path} is gone since it was looked at" for path in gone])
    return [
        File(path=file.path, size=size, sha256=file.sha256) for file, size in zip(files, found, strict=True)
    ]


def _digest(path: str, entry: Entry) -> str | None:
    """Return a file's digest; ``None`` where a manifest has another one, of the file's normal form."""
    return None if path.startswith(("bin/", "pyvenv.cfg")) or path.endswith("/RECORD") else entry.sha256


def _free_folder(parent: pathlib.Path, stem: str) -> pathlib.Path:
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, 1000))
    return next(parent / name for name in names if not (parent / name).exists())


def _for_patch(edits: Edits, folder: pathlib.Path) -> Iterator[Difference]:
    """Yield what a patch can say: files of text below site-packages that somebody would read."""
    for each in edits.differences:
        sides = [side for side in (each.reference, each.target) if side]
        if (
            each.path.startswith(f"{edits.site}/")
            and all(side.target is None and side.size <= LARGEST_TEXT for side in sides)
            and is_text(_after(each, None, folder))
        ):
            yield each


def _after(each: Difference, before: FileState | None, folder: pathlib.Path) -> FileState | None:
    """Return the file as it is now: kept in ``folder``, but for one of which only the mode is another."""
    if each.target is None:
        return None
    executable = bool(each.target.mode & 0o111)
    if each.change is Change.MODE:
        return FileState(content=before.content if before else b"", executable=executable)
    return FileState(content=(folder / "files" / each.path).read_bytes(), executable=executable)


def _originals(
    host: OpenHost, told: Iterable[Difference], folder: pathlib.Path, who: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the bytes that files had, as far as wheels and builds there hold them."""
    wanted = {each.reference.sha256: each.reference.size for each in told if each.reference}
    if not wanted:
        return {}
    absent = host.agent.call("store.gather", root=host.state.root, who=dict(who), contents=wanted)
    files = [
        File(path=relative(sha256), size=size, sha256=sha256)
        for sha256, size in wanted.items()
        if sha256 not in absent
    ]
    if not files:
        return {}
    landing = folder / "originals"
    host.reach.receive_files(f"{host.state.root}/store", landing, files)
    return {file.sha256: (landing / file.path).read_bytes() for file in files if file.sha256}


def _patch(
    host: OpenHost,
    edits: Edits,
    told: Iterable[Difference],
    folder: pathlib.Path,
    originals: Mapping[str, bytes],
) -> bytes:
    fields = {
        "Description": f"Edited by hand on {host.spec.name}, in build {edits.build}",
        "Origin": f"{host.spec.name}, saved when the edits were discarded",
        "Forwarded": "no",
    }
    parts = [header(fields)]
    for each in told:
        before = None
        if each.reference:
            if each.reference.sha256 not in originals:
                continue  # its text as built is nowhere at hand: the file itself is kept
            before = FileState(
                content=originals[each.reference.sha256], executable=bool(each.reference.mode & 0o111)
            )
        if is_text(before):
            after = _after(each, before, folder)
            parts.append(write_change(each.path.removeprefix(f"{edits.site}/"), before, after))
    return b"".join(parts)
