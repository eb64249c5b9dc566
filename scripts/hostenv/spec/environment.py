"""What a spec says about the environment: its requirements, the platform, supply, and how it is built."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from hostenv.document import InvalidValueError, choice, flag, list_of, moment, natural, parsed, table_of
from hostenv.spec import words

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import PurePosixPath

    from packaging.requirements import Requirement

    from hostenv.document import Node, Table

GIB = 2**30


class Prereleases(StrEnum):
    """When pre-releases may be chosen: the words of ``uv pip compile --prerelease``."""

    DISALLOW = "disallow"
    ALLOW = "allow"
    IF_NECESSARY = "if-necessary"
    EXPLICIT = "explicit"
    IF_NECESSARY_OR_EXPLICIT = "if-necessary-or-explicit"


class Arch(StrEnum):
    """CPU architectures, as ``uname -m`` and wheel tags call them."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class Activate(StrEnum):
    """Whether ``build_env`` switches to a build that passed (``auto``) or leaves it staged (``manual``)."""

    AUTO = "auto"
    MANUAL = "manual"


class LinkMode(StrEnum):
    """How files come from uv's cache into a build.

    ``auto``: reflink where the filesystem can, else copy. ``hardlink`` shares inodes with the cache, so
    that one edit in place changes every build: by choice only.
    """

    AUTO = "auto"
    COPY = "copy"
    CLONE = "clone"
    HARDLINK = "hardlink"


class Fetching(StrEnum):
    """Where wheels are fetched that a host with network lacks.

    ``auto``: on the host itself where it reaches the index, else on the controller, which sends them on.
    """

    AUTO = "auto"
    HOST = "host"
    CONTROLLER = "controller"


class Io(StrEnum):
    """How work beside a live server uses the disk; ``idle`` also means nice."""

    NORMAL = "normal"
    IDLE = "idle"


class Bytecode(StrEnum):
    """Whether a build holds compiled bytecode (checked-hash) or none."""

    NONE = "none"
    COMPILE = "compile"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesName:
    """A folder of ``patches/``: the patch series for exactly this release of this distribution."""

    distribution: NormalizedName
    version: Version
    folder: str

    @classmethod
    def parse(cls, value: str) -> SeriesName:
        """Parse ``sglang-0.5.15.post1``; raises ValueError."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", value):
            raise ValueError("must be the name of a folder in patches/")
        dist, dash, version = value.rpartition("-")
        if not dash or not dist:
            raise ValueError("must be DISTRIBUTION-VERSION")
        return cls(
            distribution=canonicalize_name(dist, validate=True), version=Version(version), folder=value
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Env:
    """What is resolved into a lock, and the patch series laid over it.

    ``excludes`` are distributions that the resolver leaves out wherever they are required (uv's
    ``--excludes``). ``indexes`` are names: their URLs and credentials come from uv's own settings or the
    environment. ``torch_backend`` is uv's word for PyTorch's index (``cu130``, ``cpu``).
    """

    requires: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    overrides: tuple[Requirement, ...] = ()
    excludes: tuple[NormalizedName, ...] = ()
    prereleases: Prereleases = Prereleases.IF_NECESSARY_OR_EXPLICIT
    exclude_newer: dt.datetime | None = None
    indexes: tuple[str, ...] = ("default",)
    torch_backend: str | None = None
    patches: tuple[SeriesName, ...] = ()

    @classmethod
    def from_table(cls, table: Table) -> Env:
        """Read ``[env]``."""
        env = cls(
            requires=table.get("requires", list_of(words.requirement), ()),
            constraints=table.get("constraints", list_of(words.requirement), ()),
            overrides=table.get("overrides", list_of(words.requirement), ()),
            excludes=table.get("excludes", list_of(words.distribution), ()),
            prereleases=table.get("prereleases", choice(Prereleases), Prereleases.IF_NECESSARY_OR_EXPLICIT),
            exclude_newer=table.get("exclude-newer", moment, None),
            indexes=table.get("indexes", list_of(words.name), ("default",)),
            torch_backend=table.get("torch-backend", _torch_backend, None),
            patches=table.get("patches", list_of(parsed(SeriesName.parse, "series")), ()),
        )
        if table.sound:
            env._check(table)
        return env

    def _check(self, table: Table) -> None:
        excluded = {*self.excludes}
        for index, requirement in enumerate(self.requires):
            if canonicalize_name(requirement.name) in excluded:
                table.problem("requires", f'"{requirement}" is also in excludes', index=index)
        seen: set[NormalizedName] = set()
        for index, series in enumerate(self.patches):
            if series.distribution in seen:
                table.problem("patches", f'a second series for "{series.distribution}"', index=index)
            seen.add(series.distribution)
            for requirement in (*self.requires, *self.constraints, *self.overrides):
                same = canonicalize_name(requirement.name) == series.distribution
                if same and not requirement.specifier.contains(series.version, prereleases=True):
                    table.problem(
                        "patches", f'is for {series.version}, but "{requirement}" is asked for', index=index
                    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """What the environment is resolved for. What is unset comes from the host's facts.

    ``glibc`` (major, minor) and ``driver_min`` are floors. ``python`` says which interpreters fit; an
    empty set fits all.
    """

    arch: Arch | None = None
    glibc: tuple[int, int] | None = None
    python: SpecifierSet = field(default_factory=SpecifierSet)
    driver_min: Version | None = None

    @classmethod
    def from_table(cls, table: Table) -> Platform:
        """Read ``[platform]``."""
        return cls(
            arch=table.get("arch", choice(Arch), None),
            glibc=table.get("glibc", words.glibc, None),
            python=table.get("python", words.pythons, SpecifierSet()),
            driver_min=table.get("driver-min", words.version, None),
        )

    @property
    def python_minor(self) -> str | None:
        """The one minor version that is asked for (``3.12``), or None where it is open."""
        match = re.fullmatch(r"==(3\.[0-9]+)\.\*", str(self.python))
        return match[1] if match else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonArchive:
    """An interpreter to bring along, by hash: a tar archive in python-build-standalone's layout.

    ``file`` is its name in the wheelhouse; ``url`` where else it can be had.
    """

    file: str
    sha256: str
    version: Version
    url: str | None

    @classmethod
    def from_table(cls, table: Table) -> PythonArchive:
        """Read ``[supply.python]``."""
        return cls(
            file=table.get(
                "file", words.matching(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.tar\.(gz|zst)", "a .tar.gz or .tar.zst")
            ),
            sha256=table.get("sha256", words.sha256),
            version=table.get("version", words.version),
            url=table.get(
                "url",
                words.matching(r"(https|file)://[^\s@]+", "an https or file URL without credentials"),
                None,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Supply:
    """How wheels reach the host.

    ``offline``: only SSH. ``wheelhouse``: a folder on the host that is already filled, read-only.
    ``via``: the SSH alias of a relay through which bytes travel instead of the controller. ``fetch`` has a
    meaning for a host that is neither offline nor behind a relay.
    """

    offline: bool = False
    fetch: Fetching = Fetching.AUTO
    wheelhouse: PurePosixPath | None = None
    via: str | None = None
    python: PythonArchive | None = None

    @classmethod
    def from_table(cls, table: Table) -> Supply:
        """Read ``[supply]``."""
        supply = cls(
            offline=table.get("offline", flag, default=False),
            fetch=table.get("fetch", choice(Fetching), Fetching.AUTO),
            wheelhouse=table.get("wheelhouse", words.host_path, None),
            via=table.get("via", words.alias, None),
            python=table.get("python", table_of(PythonArchive.from_table), None),
        )
        if table.sound and supply.fetch is Fetching.HOST and (supply.offline or supply.via):
            table.problem("fetch", 'cannot be "host" where offline or via says that the host has no network')
        return supply


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """How a build is made and kept. ``keep`` counts builds, ``min_free`` bytes that must stay free."""

    activate: Activate = Activate.AUTO
    keep: int = 3
    min_free: int = GIB
    link_mode: LinkMode = LinkMode.AUTO
    io: Io = Io.NORMAL
    bytecode: Bytecode = Bytecode.NONE

    @classmethod
    def from_table(cls, table: Table) -> Build:
        """Read ``[build]``."""
        return cls(
            activate=table.get("activate", choice(Activate), Activate.AUTO),
            keep=table.get("keep", _keep, 3),
            min_free=table.get("min-free", words.size, GIB),
            link_mode=table.get("link-mode", choice(LinkMode), LinkMode.AUTO),
            io=table.get("io", choice(Io), Io.NORMAL),
            bytecode=table.get("bytecode", choice(Bytecode), Bytecode.NONE),
        )


def _keep(node: Node) -> int:
    value = natural(node)
    if value < 2:  # noqa: PLR2004 - the current build and the one before it
        raise InvalidValueError(
            f"must be at least 2 (the current build and the one to go back to), is {value}"
        )
    return value


def _torch_backend(node: Node) -> str:
    if node.value == "auto":
        raise InvalidValueError('must not be "auto": it judges the machine that resolves, not the host')
    return words.matching(r"cpu|xpu|cu[0-9]{2,3}|rocm[0-9.]+", 'a backend like "cu130" or "cpu"')(node)
