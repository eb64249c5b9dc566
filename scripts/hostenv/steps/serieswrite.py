"""A series made of what differs on a host, one patch a folder, or of the commits of a checkout there."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.agent.files import write_file
from hostenv.errors import RefusedError
from hostenv.spec.patchwrite import header, is_text, write_change
from hostenv.spec.series import SERIES, load_series

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping

    from hostenv.spec.patchapply import FileState
    from hostenv.steps.captured import Change
    from hostenv.steps.pristine import PristineWheel


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit of a checkout; ``diff`` is git's, its paths relative to what is installed."""

    commit: str
    author: str
    subject: str
    body: str
    diff: bytes

    @classmethod
    def from_answer(cls, answer: Mapping[str, str]) -> Commit:
        """Read one entry of the operation ``checkout.commits``."""
        return cls(
            commit=answer["commit"],
            author=answer["author"],
            subject=answer["subject"],
            body=answer["body"],
            diff=answer["diff"].encode("latin-1"),
        )

    def patch(self, host: str) -> bytes:
        """Return it as a patch of a series."""
        body = "\n".join(line for line in self.body.splitlines() if line.strip())
        told = {
            "Description": f"{self.subject}\n{body}".strip() or self.commit,
            "Origin": f"commit {self.commit}, in a checkout on {host}",
            "Author": self.author,
            "Forwarded": "no",
        }
        return header(told) + self.diff


@dataclass(kw_only=True, slots=True)
class SeriesText:
    """The patches of one distribution, gathered."""

    dist: str
    version: str
    host: str
    groups: dict[str, list[bytes]] = field(default_factory=dict)
    commits: tuple[Commit, ...] = ()
    files: int = 0

    @property
    def name(self) -> str:
        """The folder's name below ``patches/``."""
        return f"{self.dist}-{self.version}"

    @property
    def told(self) -> str:
        """Say how much it is."""
        if self.commits:
            return counted(len(self.commits), "commit")
        return f"{counted(self.files, 'file')} in {counted(len(self.groups), 'patch', 'patches')}"

    def patches(self) -> dict[str, bytes]:
        """Return the patches, name → content, in their order."""
        made: dict[str, bytes] = {}
        for number, commit in enumerate(self.commits, 1):
            made[f"{number:04}-{_slug(commit.subject)}.patch"] = commit.patch(self.host)
        for number, (group, parts) in enumerate(sorted(self.groups.items()), len(made) + 1):
            told = {
                "Description": f"Changes below {group}, as they work on {self.host}",
                "Origin": f"captured from {self.host}, {dt.datetime.now(dt.UTC).date()}",
                "Forwarded": "no",
            }
            made[f"{number:02}-{_slug(group)}.patch"] = header(told) + b"".join(parts)
        return made

    def take(
        self,
        changes: Iterable[Change],
        contents: Mapping[str, FileState],
        pristine: PristineWheel,
        largest: int,
    ) -> str | None:
        """Take the changes as patches; return why they cannot be, if so: then nothing of them counts."""
        for change in changes:
            before = pristine.read(change.path) if change.shipped else None
            after = contents.get(change.path) if change.is_there else None
            why = _hindrance(change, before, after, largest)
            if why:
                return f"{change.path} {why}"
            self.files += 1
            group = change.path.rpartition("/")[0] or self.dist
            self.groups.setdefault(group, []).append(write_change(change.path, before, after))
        return None


def _hindrance(change: Change, before: FileState | None, after: FileState | None, largest: int) -> str | None:
    top = change.path.partition("/")[0]
    if change.link:
        return "is a symbolic link there"
    if top.startswith("{") or top.endswith((".dist-info", ".data")):
        return "lies outside of what a series may change"
    if change.shipped and before is None:
        return "is installed from the wheel's *.data"
    if change.size > largest:
        return "is too large for a patch"
    if not (is_text(before) and is_text(after)):
        return "is binary and was changed" if change.shipped else "is binary and was added"
    return None


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60] or "change"


def check_series(patches: pathlib.Path, text: SeriesText) -> None:
    """Raise :class:`RefusedError` where the series' folder says something else, and is no capture's."""
    folder = patches / text.name
    if folder.exists() and not (_is_same(folder, text) or _is_captured(folder)):
        raise RefusedError(
            f"patches/{folder.name} is there and says something else than what differs on the host",
            hint="somebody wrote or edited it: move it away and capture again, then compare the two",
        )


def planned_series(patches: pathlib.Path, text: SeriesText) -> str:
    """Say what becomes of the series' folder."""
    folder = patches / text.name
    if folder.exists() and not _is_same(folder, text):
        was = counted(len(load_series(folder).patches), "patch", "patches")
        return f"series   replaces patches/{text.name}: {text.told} (was: {was})"
    return f"series   patches/{text.name}: {text.told}"


def write_series(patches: pathlib.Path, text: SeriesText) -> None:
    """Write a series' folder. One that is there is replaced where a capture wrote it, and nobody since.

    Raises :class:`RefusedError` where somebody did and it says something else.
    """
    check_series(patches, text)
    folder = patches / text.name
    if folder.exists() and _is_same(folder, text):
        return
    contents = {name: _sealed(content) for name, content in text.patches().items()}
    contents[SERIES] = "".join(f"{name}\n" for name in contents).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(str(folder / name), content)
    for path in folder.iterdir():
        if path.name not in contents:
            path.unlink()
    load_series(folder)


def _is_same(folder: pathlib.Path, text: SeriesText) -> bool:
    there = load_series(folder)
    wanted = [content.partition(b"\n\n")[2] for _, content in sorted(text.patches().items())]
    return wanted == [(folder / patch.name).read_bytes().partition(b"\n\n")[2] for patch in there.patches]


def _sealed(content: bytes) -> bytes:
    """Note in a patch's header the digest of all else of it, so that an edit by hand shows."""
    return content.replace(b"\nForwarded: no\n", _seal(content) + b"\nForwarded: no\n", 1)


def _seal(content: bytes) -> bytes:
    return b"\nCaptured: sha256 " + hashlib.sha256(content).hexdigest().encode()


def _is_captured(folder: pathlib.Path) -> bool:
    """Tell whether a folder is as a capture left it: each patch with its seal, and nothing beside them."""
    names = [patch.name for patch in load_series(folder).patches]
    if {path.name for path in folder.iterdir()} != {*names, SERIES}:
        return False
    return all(_is_sealed((folder / name).read_bytes()) for name in names)


def _is_sealed(content: bytes) -> bool:
    found = re.search(rb"\nCaptured: sha256 [0-9a-f]{64}", content.partition(b"\n\n")[0])
    return found is not None and _seal(content.replace(found[0], b"", 1)) == found[0]
