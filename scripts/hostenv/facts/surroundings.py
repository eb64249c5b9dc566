"""What surrounds an environment on its host: toolkits, compile caches, the loader's settings, the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hostenv.document import (
    flag,
    integer,
    list_of,
    mapping_of,
    natural,
    number,
    optional,
    read,
    table_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSettings:
    """What the spec says of the process that will run: its variables and arguments, placeholders filled in.

    ``stated``: the spec has a ``[service]``; otherwise nothing is known and the login's variables are judged.
    ``offline``: the host reaches no index and no hub.
    """

    stated: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    args: tuple[str, ...] = ()
    offline: bool = False

    @property
    def states_path(self) -> bool:
        """Whether commands are looked up as the service will do it."""
        return self.stated and "PATH" in self.env

    def option(self, *names: str) -> str | None:
        """Return the value of the last of these options (``--x v`` or ``--x=v``); ``None``: not given."""
        found = None
        for place, argument in enumerate(self.args):
            name, equals, value = argument.partition("=")
            if name not in names:
                continue
            if equals:
                found = value
            elif place + 1 < len(self.args):
                found = self.args[place + 1]
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerToolkit:
    """A CUDA toolkit that compiles at run time.

    ``origin``: ``environment`` (wheels), else the variable or rule that leads to it. ``nvcc`` is its version,
    ``unknown`` where it is there and does not tell. ``headers`` is what
    CUDART_VERSION says (``13.0``); ``newest_gcc`` the newest GCC that its headers let through; ``cccl``: the
    folder of the C++ core libraries is there. ``None``: the part is not there, or does not tell.
    """

    home: str
    origin: str
    nvcc: str | None
    headers: str | None
    newest_gcc: int | None
    cccl: bool

    @classmethod
    def from_table(cls, table: Table) -> CompilerToolkit:
        """Read a toolkit."""
        return cls(
            home=table.get("home", text),
            origin=table.get("origin", text),
            nvcc=table.get("nvcc", optional(text)),
            headers=table.get("headers", optional(text)),
            newest_gcc=table.get("newest_gcc", optional(natural)),
            cccl=table.get("cccl", flag),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembler:
    """A ``ptxas`` that Triton calls; ``variable`` leads to it (``TRITON_PTXAS_PATH``), else it came along.

    ``targets`` are the names in its own list (``90a``); ``problem`` says why it cannot be run or read.
    """

    tool: str
    path: str
    variable: str | None
    version: str | None
    targets: frozenset[str]
    problem: str | None

    @classmethod
    def from_table(cls, table: Table) -> Assembler:
        """Read an assembler."""
        return cls(
            tool=table.get("tool", text),
            path=table.get("path", text),
            variable=table.get("variable", optional(text)),
            version=table.get("version", optional(text)),
            targets=frozenset(table.get("targets", list_of(text))),
            problem=table.get("problem", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedObject:
    """A shared object in a compile cache.

    ``needed`` are its SONAMEs, ``needs_glibc`` and ``needs_glibcxx`` the newest versions that it asks for,
    ``built_for`` the environment whose headers it was compiled with.
    """

    path: str
    needed: tuple[str, ...]
    needs_glibc: str | None
    needs_glibcxx: str | None
    built_for: str | None
    modified: float
    problem: str | None

    @classmethod
    def from_table(cls, table: Table) -> CachedObject:
        """Read an object."""
        return cls(
            path=table.get("path", text),
            needed=table.get("needed", list_of(text)),
            needs_glibc=table.get("needs_glibc", optional(text)),
            needs_glibcxx=table.get("needs_glibcxx", optional(text)),
            built_for=table.get("built_for", optional(text)),
            modified=table.get("modified", number),
            problem=table.get("problem", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileCache:
    """A folder in which kernels compiled at run time are kept.

    ``variable`` names the folder, ``None``: the default below the home. ``usable``: the agent's user may
    write there (or make it). ``objects`` are at most as many as the agent reads: ``complete`` says so.
    """

    name: str
    path: str
    variable: str | None
    exists: bool
    usable: bool
    owner: str | None
    filesystem: str | None
    noexec: bool
    complete: bool
    objects: tuple[CachedObject, ...]

    @classmethod
    def from_table(cls, table: Table) -> CompileCache:
        """Read a cache."""
        return cls(
            name=table.get("name", text),
            path=table.get("path", text),
            variable=table.get("variable", optional(text)),
            exists=table.get("exists", flag),
            usable=table.get("usable", flag),
            owner=table.get("owner", optional(text)),
            filesystem=table.get("filesystem", optional(text)),
            noexec=table.get("noexec", flag),
            complete=table.get("complete", flag),
            objects=table.get("objects", list_of(table_of(CachedObject.from_table))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryFolder:
    """A folder that the loader is told of: its libraries, and who tells (``LD_LIBRARY_PATH``, or a file)."""

    path: str
    told_by: str
    libraries: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> LibraryFolder:
        """Read a folder."""
        return cls(
            path=table.get("path", text),
            told_by=table.get("told_by", text),
            libraries=table.get("libraries", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleFile:
    """A kernel module of the driver on the disk, for the running kernel: what a reboot would load."""

    path: str
    version: str | None
    open: bool | None

    @classmethod
    def from_table(cls, table: Table) -> ModuleFile:
        """Read a module."""
        return cls(
            path=table.get("path", text),
            version=table.get("version", optional(text)),
            open=table.get("open", optional(flag)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSurroundings:
    """The part that only the host itself can tell.

    ``majors``: device numbers of the driver as /proc/devices has them, ``None`` where it does not tell;
    ``preloaded``: what /etc/ld.so.preload forces into every process; ``nccl``: files that set NCCL up;
    ``rocm``: a ROCm lies beside, which some compilers take for the GPU's.
    """

    caches: tuple[CompileCache, ...]
    folders: tuple[LibraryFolder, ...]
    preloaded: tuple[str, ...]
    nccl: tuple[str, ...]
    majors: Mapping[str, int] | None
    modules: tuple[ModuleFile, ...]
    rocm: bool

    @classmethod
    def from_table(cls, table: Table) -> HostSurroundings:
        """Read the host's part."""
        return cls(
            caches=table.get("caches", list_of(table_of(CompileCache.from_table))),
            folders=table.get("folders", list_of(table_of(LibraryFolder.from_table))),
            preloaded=table.get("preloaded", list_of(text)),
            nccl=table.get("nccl", list_of(text)),
            majors=table.get("majors", optional(mapping_of(integer))),
            modules=table.get("modules", list_of(table_of(ModuleFile.from_table))),
            rocm=table.get("rocm", flag),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What ``abi.surroundings`` answers. ``host`` is ``None`` where another machine's facts are judged.

    ``python_headers``: the folder in which Python.h is looked for, and ``has_python_headers`` whether it is
    there; ``ninja``: the environment's own, ``None`` where it has none.
    """

    venv: str
    toolkits: tuple[CompilerToolkit, ...]
    assemblers: tuple[Assembler, ...]
    python_headers: str
    has_python_headers: bool
    ninja: str | None
    host: HostSurroundings | None

    @classmethod
    def from_dict(
        cls, answer: object, *, name: str = "the agent's answer to abi.surroundings"
    ) -> Surroundings:
        """Type an answer; :class:`~hostenv.document.DocumentError` where it is damaged."""
        return read(answer, table_of(cls.from_table), document=name)

    @classmethod
    def from_table(cls, table: Table) -> Surroundings:
        """Read the whole answer."""
        table.get("seconds", number, None)
        return cls(
            venv=table.get("venv", text),
            toolkits=table.get("toolkits", list_of(table_of(CompilerToolkit.from_table))),
            assemblers=table.get("assemblers", list_of(table_of(Assembler.from_table))),
            python_headers=table.get("python_headers", text),
            has_python_headers=table.get("has_python_headers", flag),
            ninja=table.get("ninja", optional(text)),
            host=table.get("host", optional(table_of(HostSurroundings.from_table))),
        )
