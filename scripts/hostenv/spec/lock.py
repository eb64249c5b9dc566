"""The lock: every wheel of an environment for one platform, as a text file that git compares well.

It is a requirements file with hashes, which pip and uv read too; what hostenv adds stands in comments::

    # hostenv lock 1, made by `nox -s lock`; do not edit
    # name: local
    # platform: cp312 x86_64 glibc 2.34
    # input: env.requires: numpy
    # inputs: sha256:5d0e…
    # packages: 1
    numpy===2.4.1 --hash=sha256:8f2e…  # numpy-2.4.1-cp312-cp312-manylinux_2_27_x86_64.whl, 16600000

``===``: with ``==`` a visible local version (``2.4.1+cu130``) would be taken, whose hash is not here. No line
names an index: where a wheel lies is asked when it is fetched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from hostenv.document import Problems
from hostenv.spec.inputs import changes, digest_of
from hostenv.spec.lockplatform import LockPlatform

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = 1
LARGEST_WHEEL = 1 << 40
"""Bytes. A size above it is a mistake or an attack on the disk."""

_TITLE = f"# hostenv lock {FORMAT}, made by `nox -s lock`; do not edit"
_TITLE_LINE = re.compile(r"# hostenv lock (\d{1,4}),.*")
_COMMENT = re.compile(r"# (name|platform|input|inputs|packages): (.*)")
_PLATFORM = re.compile(r"cp3([0-9]{1,2}) (\S+) glibc (\S+)", re.ASCII)
_ENTRY = re.compile(r"([^\s=]+)===(\S+) --hash=sha256:(\S+)  # (\S+), (\S+)")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockEntry:
    """One wheel: ``name`` normalised (PEP 503), ``version`` normalised (PEP 440), ``size`` in bytes."""

    name: str
    version: str
    sha256: str
    filename: str
    size: int

    def problems(self) -> tuple[str, ...]:
        """Say what of this entry cannot be true, or would lead out of a wheelhouse."""
        found = []
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256, re.ASCII):
            found.append(f'bad hash "{self.sha256}": must be 64 lower-case hexadecimal digits')
        if not 0 < self.size <= LARGEST_WHEEL:
            found.append(f"bad size {self.size}: must be between 1 and {LARGEST_WHEEL} bytes")
        return (*found, *self._name_problems())

    def line(self) -> str:
        """Return the entry as the lock writes it."""
        pin = f"{self.name}==={self.version}"
        return f"{pin} --hash=sha256:{self.sha256}  # {self.filename}, {self.size}"

    def _name_problems(self) -> Iterable[str]:
        try:
            version = Version(self.version)
        except ValueError:  # InvalidVersion, or more digits than int() takes
            return (f'bad version "{self.version[:60]}"',)
        if not _FILENAME.fullmatch(self.filename):
            return (f'bad file name "{self.filename}": must be the plain name of a wheel',)
        try:
            name_there, version_there, _, _ = parse_wheel_filename(self.filename)
        except (InvalidWheelFilename, InvalidVersion):
            return (f'bad file name "{self.filename}": not a wheel\'s name',)
        found = []
        if canonicalize_name(self.name) != self.name:
            found.append(f'bad name "{self.name}": its normalised form is "{canonicalize_name(self.name)}"')
        if str(version) != self.version:
            found.append(f'bad version "{self.version}": its normalised form is "{version}"')
        if (name_there, version_there) != (canonicalize_name(self.name), version):
            found.append(f"{self.filename} is {name_there} {version_there}, not {self.name} {self.version}")
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The wheels of an environment. ``name`` is the class or host it was made for.

    ``inputs`` are the lines of :func:`hostenv.spec.inputs.input_lines` that it answers; ``entries`` are
    sorted by name and hold each name once.
    """

    name: str
    platform: LockPlatform
    inputs: tuple[str, ...]
    entries: tuple[LockEntry, ...]

    @property
    def size(self) -> int:
        """Bytes of all wheels together."""
        return sum(entry.size for entry in self.entries)

    @property
    def inputs_digest(self) -> str:
        """sha256 of the resolver's inputs, in hex."""
        return digest_of(self.inputs)

    @property
    def by_name(self) -> Mapping[str, LockEntry]:
        """The entries by normalised name."""
        return {entry.name: entry for entry in self.entries}

    @property
    def indexes(self) -> tuple[str, ...]:
        """The names of the indexes that it was resolved from."""
        return tuple(name for value in self._inputs_of("env.indexes") for name in value.split())

    @property
    def torch_backend(self) -> str | None:
        """Uv's word for the PyTorch index that it was resolved from, if any."""
        return next(iter(self._inputs_of("env.torch-backend")), None)

    def _inputs_of(self, key: str) -> list[str]:
        return [line.removeprefix(f"{key}: ") for line in self.inputs if line.startswith(f"{key}: ")]

    def stale(self, inputs: Iterable[str]) -> tuple[str, ...]:
        """Say what changed since the lock was made; nothing if it still answers ``inputs``."""
        return changes(self.inputs, inputs)

    def render(self) -> str:
        """Return the lock's text: the same bytes for the same value."""
        python = self.platform.python.replace(".", "")
        head = (
            _TITLE,
            f"# name: {self.name}",
            f"# platform: cp{python} {self.platform.arch} glibc {self.platform.glibc}",
            *(f"# input: {line}" for line in self.inputs),
            f"# inputs: sha256:{self.inputs_digest}",
            f"# packages: {len(self.entries)}",
        )
        entries = sorted(self.entries, key=lambda entry: entry.name)
        return "".join(f"{line}\n" for line in (*head, *(entry.line() for entry in entries)))

    @classmethod
    def parse(cls, text: str, *, document: str) -> Lock:
        """Read a lock; raise :class:`~hostenv.document.DocumentError` with every problem and its line.

        Whatever a line says, the entries that are returned have file names without a path, sizes that are
        positive, and wheels that the lock's platform takes.
        """
        problems = Problems()
        reader = _Reader(document, problems)
        for number, line in enumerate(text.split("\n"), 1):
            reader.take(number, line)
        reader.finish()
        problems.raise_any()
        return cls(
            name=reader.name,
            platform=reader.platform,
            inputs=tuple(reader.inputs),
            entries=tuple(reader.entries[name] for name in sorted(reader.entries)),
        )


class _Reader:
    """Takes a lock's lines in turn and notes what is wrong with them."""

    def __init__(self, document: str, problems: Problems) -> None:
        self.name = ""
        self.platform = LockPlatform(python="3.12", arch="x86_64", glibc="2.34")
        self.inputs: list[str] = []
        self.entries: dict[str, LockEntry] = {}
        self._document = document
        self._problems = problems
        self._count = 0
        self._lines: dict[str, int] = {}
        self._said: dict[str, str] = {}

    def take(self, number: int, line: str) -> None:
        """Read one line."""
        if number == 1:
            self._take_title(line)
        elif comment := _COMMENT.fullmatch(line):
            self._take_comment(number, comment[1], comment[2])
        elif entry := _ENTRY.fullmatch(line):
            self._take_entry(number, entry)
        elif line.strip():
            self._note(number, f'not a line of a lock: "{line[:60]}"')

    def finish(self) -> None:
        """Compare what the header says with what was read."""
        for key in ("name", "platform", "inputs", "packages"):
            if key not in self._said:
                self._problems.add(self._document, "", f'the line "# {key}: …" is missing')
        if self._said.get("packages", str(self._count)) != str(self._count):
            said = f"says {self._said['packages']} packages, has {self._count}: cut or edited"
            self._problems.add(self._document, "", said)
        digest = f"sha256:{digest_of(self.inputs)}"
        if self._said.get("inputs", digest) != digest:
            self._problems.add(self._document, "", "the inputs' digest is another: cut or edited")
        self._compare_platform()
        for entry in self.entries.values():
            tags = parse_wheel_filename(entry.filename)[3]
            if "platform" in self._said and self.platform.tag_ranks.keys().isdisjoint(tags):
                self._note(self._lines[entry.name], f"{entry.filename} does not fit {self._said['platform']}")

    def _compare_platform(self) -> None:
        """Note inputs that name another platform than the header: wheels are judged by the header's."""
        for key in ("python", "arch", "glibc") if "platform" in self._said else ():
            asked, here = f"platform.{key}: ", getattr(self.platform, key)
            for line in self.inputs:
                if line.startswith(asked) and line != f"{asked}{here}":
                    said = f'the platform "{self._said["platform"]}" is not that of "# input: {line}"'
                    self._problems.add(self._document, "", f"{said}: edited")

    def _note(self, number: int, message: str) -> None:
        self._problems.add(self._document, f"line {number}", message)

    def _take_title(self, line: str) -> None:
        title = _TITLE_LINE.fullmatch(line)
        if not title:
            self._note(1, f'not a lock: the first line must be "{_TITLE}"')
        elif int(title[1]) != FORMAT:
            self._note(1, f"lock format {title[1]}, this hostenv reads {FORMAT}: make the lock again")

    def _take_comment(self, number: int, key: str, value: str) -> None:
        if key == "input":
            self.inputs.append(value)
            return
        if key in self._said:
            self._note(number, f'"# {key}:" stands here twice')
        self._said[key] = value
        if key == "name":
            self.name = value
        if key == "platform":
            self._take_platform(number, value)

    def _take_platform(self, number: int, value: str) -> None:
        match = _PLATFORM.fullmatch(value)
        if not match:
            self._note(number, f'bad platform "{value}": must be like "cp312 x86_64 glibc 2.34"')
            return
        try:
            self.platform = LockPlatform(python=f"3.{match[1]}", arch=match[2], glibc=match[3])
        except ValueError as error:
            self._note(number, f"bad platform: {error}")

    def _take_entry(self, number: int, match: re.Match[str]) -> None:
        name, version, sha256, filename, size = match.groups()
        self._count += 1
        if not re.fullmatch(r"[0-9]{1,15}", size, re.ASCII):
            self._note(number, f'bad size "{size[:30]}": must be a number of bytes')
            return
        entry = LockEntry(name=name, version=version, sha256=sha256, filename=filename, size=int(size))
        wrong = entry.problems()
        for problem in wrong:
            self._note(number, problem)
        if canonicalize_name(name) in self._lines:
            self._note(number, f"{name} stands on line {self._lines[canonicalize_name(name)]} already")
        elif not wrong:
            self.entries[name] = entry
        self._lines[canonicalize_name(name)] = number
