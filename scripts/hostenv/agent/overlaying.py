"""Laying overlays into an unfinished build: whole distributions, from the store, after the wheels.

An overlay is, as in its request, ``name``, ``distributions`` (name and version), ``files`` (path, owner,
mode, size, sha256) and ``links`` (path, target). An owner is a distribution's normalised name, or ``-``.
Paths are relative to site-packages, or to the environment after ``{prefix}/``.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import io
import os
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from hostenv.agent import bytecode, distinfo, recordfile, venv
from hostenv.agent.copying import lay
from hostenv.agent.files import write_file
from hostenv.agent.folders import Folders
from hostenv.agent.scripts import entry_point_scripts, relocate
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.store import Store

PREFIX = "{prefix}/"
NOBODY = "-"
_NOTES = frozenset({"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
_INSTALLER = b"hostenv\n"
_SHOWN = 8

Laid = Dict[str, Optional[str]]
"""Path in site-packages → sha256, of what differs from the RECORD that came along; ``None``: not there."""


def check_paths(overlays: Sequence[Dict[str, Any]], wheels: Sequence[Dict[str, Any]]) -> None:
    """Refuse overlays that share a path with a wheel, or with one another, and have other bytes there.

    One's file where the other has a folder is such a path, too.
    What wheels own is read from their RECORDs: before anything is installed. Raises :class:`AgentError`.
    """
    owned: Dict[str, Tuple[str, str]] = {}
    problems: List[str] = []
    for overlay in overlays:
        for path, _, _, _, sha256 in overlay["files"]:
            owner, digest = owned.setdefault(path, (f"overlay {overlay['name']}", sha256))
            if digest != sha256:
                problems.append(f"{path}: {owner} and overlay {overlay['name']}")
        for path, target in overlay["links"]:
            owned.setdefault(path, (f"overlay {overlay['name']}", f"=> {target}"))
    folders = {folder: owner for path, (owner, _) in owned.items() for folder in _above(path)}
    for wheel in wheels if owned else ():
        name = f"{wheel['name']} {wheel['version']}"
        for path, digest in _wheel_files(wheel["path"]):
            if path in owned and owned[path][1] != digest:
                problems.append(f"{path}: {owned[path][0]} and {name}")
            elif path in folders:
                problems.append(f"{path}: a folder in {folders[path]}, a file in {name}")
            problems += [
                f"{above}: no folder in {owned[above][0]}, a folder in {name}"
                for above in _above(path)
                if above in owned
            ]
    problems = list(dict.fromkeys(problems))
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        message = "own one path with different bytes:\n" + "\n".join([*problems[:_SHOWN], *more])
        hint = "env.excludes in the spec leaves the wheel out, or take the overlay again without it"
        raise AgentError(message, hint=hint, outcome="refused")


def _above(path: str) -> List[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _wheel_files(wheel: str) -> Iterator[Tuple[str, str]]:
    """Yield the paths that a wheel installs below site-packages, and their sha256 by its RECORD.

    A row that states no sha256 gives an empty one, which no overlay's file has.
    """
    rows, problems = recordfile.of_wheel(wheel)
    if problems:
        raise AgentError(f"{wheel}: RECORD {problems[0]}", hint="take another release of it")
    for row in rows:
        if len(row) > 1 and row[1]:
            path = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", row[0])
            path = re.sub(r"^[^/]+\.data/(data|scripts)/", _out_of_site, path)
            yield path, (recordfile.sha256(row[1]) or b"").hex()


def _out_of_site(found: re.Match[str]) -> str:
    return PREFIX + ("bin/" if found.group(1) == "scripts" else "")


def lay_overlays(path: str, overlays: Sequence[Dict[str, Any]], store: Store, *, clone: bool) -> Laid:
    """Lay every overlay into the environment ``path``; return what differs from their own RECORDs.

    Every file's bytes are hashed as they are laid. Raises :class:`AgentError` for a content that the store
    lacks or that is not what its name says (it is then removed, to be sent again), and for a path that is
    taken by something else.
    """
    laying = _Laying(path, store, clone=clone)
    try:
        for overlay in overlays:
            laying.files(overlay)
        for overlay in overlays:
            for each in overlay["distributions"]:
                laying.distribution(each, overlay)
        laying.note_links()
    finally:
        laying.close()
    return laying.differing


class _Laying:
    """One environment while overlays are laid into it."""

    def __init__(self, path: str, store: Store, *, clone: bool) -> None:
        self.differing: Laid = {}
        self._root = path
        self._site = os.path.relpath(venv.site_packages(path), path)
        self._store = store
        self._clone = clone
        self._folders = Folders(path)
        self._digests: Dict[str, str] = {}
        """Path relative to the environment → sha256 of what was laid."""
        self._links: Dict[str, str] = {}
        self._recorded: Set[str] = set()

    def close(self) -> None:
        """Close the descriptors."""
        self._folders.close()

    def files(self, overlay: Mapping[str, Any]) -> None:
        """Lay the files and links of an overlay, RECORDs aside."""
        for path, owner, mode, _, sha256 in overlay["files"]:
            place = self._place(path)
            if not place.endswith(".dist-info/RECORD"):
                with self._named(place):
                    self._file(place, mode, sha256)
            self._digests.setdefault(place, sha256)
            if owner == NOBODY:
                self.differing[self._within(place)] = self._digests[place]
        for path, target in overlay["links"]:
            place = self._place(path)
            self._links[place] = target
            with self._named(place):
                self._link(place, target)

    @contextlib.contextmanager
    def _named(self, place: str) -> Iterator[None]:
        """Name the whole path in what the system refuses: calls by descriptor know its last part."""
        try:
            yield
        except OSError as error:
            if isinstance(error.filename, str) and os.path.isabs(error.filename):
                raise
            raise OSError(error.errno, error.strerror, os.path.join(self._root, place)) from error

    def _link(self, place: str, target: str) -> None:
        folder, name = self._folders.locate(place, make=True)
        try:
            os.symlink(target, name, dir_fd=folder)
        except FileExistsError:
            if not _is_link(name, folder, target):
                raise self._taken(place) from None

    def _file(self, place: str, mode: int, sha256: str) -> None:
        folder, name = self._folders.locate(place, make=True)
        try:
            descriptor = os.open(
                name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            self._require_same(folder, name, place, sha256)
            return
        try:
            self._fill(descriptor, place, sha256)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def _fill(self, descriptor: int, place: str, sha256: str) -> None:
        source = self._store.path(sha256)
        try:
            found = lay(source, descriptor, clone=self._clone)
        except FileNotFoundError as error:
            message = f"{place}: the store does not hold {sha256}"
            raise AgentError(message, hint="run again: it is sent then") from error
        if found != sha256:
            os.unlink(source)
            message = f"{place}: the store's file has sha256 {found}, expected {sha256}; it was removed"
            raise AgentError(message, hint="run again: it is sent then")
        if place.startswith("bin/"):
            os.lseek(descriptor, 0, os.SEEK_SET)
            with open(source, "rb") as file:
                self._digests[place] = relocate(file, descriptor) or sha256

    def _require_same(self, folder: int, name: str, place: str, sha256: str) -> None:
        """Let a path be shared where both have the same bytes."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(name, flags, dir_fd=folder), "rb") as file:
                found = hashlib.sha256(file.read()).hexdigest()
        except OSError:  # a link, or a folder
            found = ""
        if found != sha256:
            raise self._taken(place)

    def distribution(self, each: Mapping[str, Any], overlay: Mapping[str, Any]) -> None:
        """Make a distribution's scripts and its RECORD, and note what differs from the one it came with."""
        info = self._info(each, overlay)
        found = distinfo.read(self._root, os.fsencode(f"{self._site}/{info}"))
        if (distinfo.normalised(found.name), found.version) != (each["name"], each["version"]):
            message = f"overlay {overlay['name']}: {info}/METADATA is of {found.name} {found.version}"
            hint = f"the overlay says {each['name']} {each['version']}: take it again"
            raise AgentError(message, hint=hint, outcome="input")
        made = entry_point_scripts(found.entry_points, f"{self._site}/{info}/entry_points.txt")
        for name, content in made.items():
            target = os.path.join(self._root, "bin", name)
            if os.path.lexists(target) and not _has_content(target, content):
                raise self._taken(f"{PREFIX}bin/{name}")
            write_file(target, content, 0o755)
            self._digests[f"bin/{name}"] = hashlib.sha256(content).hexdigest()
        write_file(os.path.join(self._root, self._site, info, "INSTALLER"), _INSTALLER)
        own = {self._place(path) for path, owner, *_ in overlay["files"] if owner == each["name"]}
        self._write_record(info, overlay, own | {f"bin/{name}" for name in made})

    def note_links(self) -> None:
        """Note the links that no RECORD names."""
        for place, target in self._links.items():
            if place not in self._recorded:
                self.differing[self._within(place)] = f"=> {target}"

    def _info(self, each: Mapping[str, Any], overlay: Mapping[str, Any]) -> str:
        """Return the folder of a distribution's own METADATA, of its version's where it has several."""
        found = [
            str(path[: -len("/METADATA")])
            for path, owner, *_ in overlay["files"]
            if owner == each["name"] and path.endswith(".dist-info/METADATA") and path.count("/") == 1
        ]
        if found:
            return max(found, key=lambda folder: folder.endswith(f"-{each['version']}.dist-info"))
        message = f"overlay {overlay['name']}: {each['name']} has no .dist-info with METADATA"
        raise AgentError(message, hint="take it again", outcome="input")

    def _write_record(self, info: str, overlay: Mapping[str, Any], own: Set[str]) -> None:
        """Write RECORD as it came, less what was left out, plus what was made; note what differs from it."""
        record = f"{self._site}/{info}/RECORD"
        rows = self._record_rows(record, overlay)
        recorded: Dict[str, str] = {}
        lines: List[List[str]] = []
        for row in rows:
            place = os.path.normpath(os.path.join(self._site, row[0]))
            if place.startswith("..") or _is_dropped(place) or (place.startswith("bin/") and place in own):
                continue
            if place != record:
                recorded[place] = row[1]
                self._recorded.add(place)
                lines.append(row)
        for place in sorted(name for name in own if name.startswith("bin/")):
            lines.append(self._row(place, self._digests[place]))
            recorded[place] = _encoded(self._digests[place])
        installer = f"{self._site}/{info}/INSTALLER"
        lines.append(self._row(installer, hashlib.sha256(_INSTALLER).hexdigest()))
        lines.append([self._within(record), "", ""])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(sorted(lines))
        write_file(os.path.join(self._root, record), text.getvalue().encode("utf-8", "surrogateescape"))
        self._note_differing(own - {record}, recorded)

    def _note_differing(self, own: Set[str], recorded: Mapping[str, str]) -> None:
        for place in own:
            stated = recorded.get(place)
            if stated is None or (stated and stated != _encoded(self._digests[place])):
                self.differing[self._within(place)] = self._digests[place]
        for place in recorded:
            if not os.path.lexists(os.path.join(self._root, place)):
                self.differing[self._within(place)] = None

    def _record_rows(self, record: str, overlay: Mapping[str, Any]) -> List[List[str]]:
        """Return the rows of the RECORD that an overlay brings; none where it brings none."""
        for path, _, _, _, sha256 in overlay["files"]:
            if self._place(path) == record:
                with open(self._store.path(sha256), "rb") as file:
                    content = file.read()
                if hashlib.sha256(content).hexdigest() != sha256:
                    os.unlink(self._store.path(sha256))
                    raise AgentError(
                        f"{record}: the store's file is damaged", hint="run again: it is sent then"
                    )
                rows, problems = recordfile.fields(content.decode("utf-8", "surrogateescape"))
                if problems:
                    message = f"overlay {overlay['name']}: {path} {problems[0]}"
                    raise AgentError(message, hint="mend it where it was taken, and take it again")
                return [row for row in rows if len(row) > 1]
        return []

    def _row(self, place: str, sha256: str) -> List[str]:
        size = os.stat(os.path.join(self._root, place)).st_size
        return [self._within(place), _encoded(sha256), str(size)]

    def _within(self, place: str) -> str:
        return os.path.relpath(place, self._site)

    def _place(self, path: str) -> str:
        """Return a path relative to the environment."""
        return path[len(PREFIX) :] if path.startswith(PREFIX) else f"{self._site}/{path}"

    def _taken(self, path: str) -> AgentError:
        message = f"{path}: an overlay would lay it, and something else lies there already"
        hint = "env.excludes in the spec leaves a wheel out that owns it, too"
        return AgentError(message, hint=hint, outcome="refused")


def _is_dropped(place: str) -> bool:
    folder, _, name = place.rpartition("/")
    return bytecode.source_of(place.encode("utf-8", "surrogateescape")) is not None or (
        name in _NOTES and folder.endswith(".dist-info")
    )


def _encoded(sha256: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode("ascii")


def _is_link(name: str, folder: int, target: str) -> bool:
    try:
        return os.readlink(name, dir_fd=folder) == target
    except OSError:
        return False


def _has_content(path: str, content: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(content) + 1) == content
    except OSError:
        return False
