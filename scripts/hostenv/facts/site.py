"""What an environment's files say beside its distributions' RECORDs, as ``site.look`` read it on a host."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import flag, integer, list_of, mapping_of, natural, optional, read, table_of, text
from hostenv.facts.operators import Operators

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectFile:
    """A file with an object's name, or nearly one; ``owners`` as ``name==version``, none: nobody's."""

    path: str
    owners: tuple[str, ...]
    size: int

    @classmethod
    def from_table(cls, table: Table) -> ObjectFile:
        """Read one."""
        return cls(
            path=table.get("path", text),
            owners=table.get("owners", list_of(text)),
            size=table.get("size", natural),
        )

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class HardLinks:
    """Files that share their inode with another name: how many ``of`` all, and which changed ones."""

    shared: int
    of: int
    changed: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> HardLinks:
        """Read the counts."""
        return cls(
            shared=table.get("shared", natural),
            of=table.get("of", natural),
            changed=table.get("changed", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptInterpreter:
    """An absolute interpreter that scripts begin with; ``here``: it is this environment's own."""

    interpreter: str
    exists: bool
    here: bool
    scripts: tuple[str, ...]
    count: int

    @classmethod
    def from_table(cls, table: Table) -> ScriptInterpreter:
        """Read one."""
        return cls(
            interpreter=table.get("interpreter", text),
            exists=table.get("exists", flag),
            here=table.get("here", flag),
            scripts=table.get("scripts", list_of(text)),
            count=table.get("count", natural),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PathFile:
    """A ``.pth`` file: its code, and the folders that it adds to ``sys.path``.

    A folder → the names that it offers for import, ``None`` where it is not there.
    """

    path: str
    owners: tuple[str, ...]
    folders: Mapping[str, tuple[str, ...] | None]
    code: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> PathFile:
        """Read one."""
        return cls(
            path=table.get("path", text),
            owners=table.get("owners", list_of(text)),
            folders=table.get("folders", mapping_of(optional(list_of(text)))),
            code=table.get("code", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shadow:
    """A module that import finds, and the one of the same name that it hides."""

    found: str
    hidden: str

    @classmethod
    def from_table(cls, table: Table) -> Shadow:
        """Read one."""
        return cls(found=table.get("found", text), hidden=table.get("hidden", text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A folder of ``site-packages`` of which nobody owns a file. ``regular``: it has an ``__init__``."""

    folder: str
    files: int
    regular: bool

    @classmethod
    def from_table(cls, table: Table) -> Orphan:
        """Read one."""
        return cls(
            folder=table.get("folder", text),
            files=table.get("files", natural),
            regular=table.get("regular", flag),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bytecode:
    """Bytecode that Python runs whatever its source says.

    ``unchecked``: path → whether it is no longer its source's image (``None``: not known); ``alone``: no
    source lies where it is found.
    """

    files: int
    unchecked: Mapping[str, bool | None]
    alone: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Bytecode:
        """Read the part ``bytecode``."""
        table.get("repeating", natural, 0)
        entries = table.get("unchecked", list_of(table_of(_unchecked)))
        return cls(
            files=table.get("files", natural),
            unchecked=dict(entries),
            alone=table.get("alone", list_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFacts:
    """What an environment's files say. Paths are relative to the environment; ``path``: its site-packages."""

    path: str
    objects: tuple[ObjectFile, ...]
    lost_bits: tuple[str, ...]
    pointers: tuple[str, ...]
    dangling: tuple[str, ...]
    hard_links: HardLinks
    scripts: tuple[ScriptInterpreter, ...]
    path_files: tuple[PathFile, ...]
    finders: Mapping[str, str]
    top_levels: Mapping[str, str]
    shadows: tuple[Shadow, ...]
    orphans: tuple[Orphan, ...]
    bytecode: Bytecode
    operators: Operators

    @classmethod
    def from_answer(cls, answer: object, host: str) -> SiteFacts:
        """Type the part ``site`` of an answer; :class:`~hostenv.document.DocumentError` where damaged."""
        return read(answer, table_of(cls.from_table), document=f"{host}: site")

    @classmethod
    def from_table(cls, table: Table) -> SiteFacts:
        """Read the part ``site``."""
        return cls(
            path=table.get("path", text),
            objects=table.get("objects", list_of(table_of(ObjectFile.from_table))),
            lost_bits=table.get("lost_bits", list_of(text)),
            pointers=table.get("pointers", list_of(text)),
            dangling=table.get("dangling", list_of(text)),
            hard_links=table.get("hard_links", table_of(HardLinks.from_table)),
            scripts=table.get("scripts", list_of(table_of(ScriptInterpreter.from_table))),
            path_files=table.get("path_files", list_of(table_of(PathFile.from_table))),
            finders=table.get("finders", mapping_of(text)),
            top_levels=table.get("top_levels", mapping_of(text)),
            shadows=table.get("shadows", list_of(table_of(Shadow.from_table))),
            orphans=table.get("orphans", list_of(table_of(Orphan.from_table))),
            bytecode=table.get("bytecode", table_of(Bytecode.from_table)),
            operators=table.get("operators", table_of(Operators.from_table)),
        )

    def within(self, path: str) -> str:
        """Return a path relative to ``site-packages``, as findings name it."""
        return posixpath.relpath(path or ".", self.path or ".")


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteInterpreter:
    """What leads to the interpreter. ``program`` is where ``bin/python`` leads (``None``: not there)."""

    program: str | None
    works: bool
    home: str | None
    home_exists: bool
    version: str | None
    system_site: bool
    relocatable: bool
    activate: str | None

    @classmethod
    def from_table(cls, table: Table) -> SiteInterpreter:
        """Read the part ``interpreter``."""
        return cls(
            program=table.get("program", optional(text)),
            works=table.get("works", flag),
            home=table.get("home", optional(text)),
            home_exists=table.get("home_exists", flag),
            version=table.get("version", optional(text)),
            system_site=table.get("system_site", flag),
            relocatable=table.get("relocatable", flag),
            activate=table.get("activate", optional(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleProcess:
    """A process that still maps files which were replaced: ``count`` of them, the first ``paths``."""

    pid: int
    name: str
    paths: tuple[str, ...]
    count: int

    @classmethod
    def from_table(cls, table: Table) -> StaleProcess:
        """Read one."""
        return cls(
            pid=table.get("pid", natural),
            name=table.get("name", text),
            paths=table.get("paths", list_of(text)),
            count=table.get("count", natural),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveFacts:
    """What no file's stat tells of an environment: its interpreter, mount and processes, the user's own site.

    ``user_site`` is a path and what is installed there, normalised name → version; ``hidden`` counts
    processes that may not be looked into.
    """

    venv: str
    interpreter: SiteInterpreter
    noexec: bool
    user_site: str
    user_installed: Mapping[str, str]
    processes: tuple[StaleProcess, ...]
    hidden: int

    @classmethod
    def from_answer(cls, answer: object, host: str, venv: str) -> LiveFacts:
        """Type the part ``live`` of an answer; :class:`~hostenv.document.DocumentError` where damaged."""

        def from_table(table: Table) -> LiveFacts:
            return cls._from_table(table, venv)

        return read(answer, table_of(from_table), document=f"{host}: live")

    @classmethod
    def _from_table(cls, table: Table, venv: str) -> LiveFacts:
        user = table.get("user_site", table_of(_user_site))
        mapped = table.get("mapped", table_of(_mapped))
        return cls(
            venv=venv,
            interpreter=table.get("interpreter", table_of(SiteInterpreter.from_table)),
            noexec=table.get("noexec", flag),
            user_site=user[0],
            user_installed=user[1],
            processes=mapped[0],
            hidden=mapped[1],
        )


def _unchecked(table: Table) -> tuple[str, bool | None]:
    return table.get("path", text), table.get("stale", optional(flag))


def _user_site(table: Table) -> tuple[str, Mapping[str, str]]:
    return table.get("path", text), table.get("installed", mapping_of(text))


def _mapped(table: Table) -> tuple[tuple[StaleProcess, ...], int]:
    table.get("using", integer)
    return table.get("processes", list_of(table_of(StaleProcess.from_table))), table.get("hidden", natural)
