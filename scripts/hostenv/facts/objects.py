"""Whether the shared objects of an environment load, as the agent judged it on the host."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.document import (
    anything,
    flag,
    integer,
    list_of,
    mapping_of,
    natural,
    optional,
    read,
    table_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Node, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """The loader's answer to one ``dlopen(path, RTLD_NOW)``.

    ``loads`` is ``None`` where a fact is missing (``unknown`` says which). ``text`` is what ``dlerror``
    says. ``library``: a name that leads to no usable file, or the file that lacks ``version``; ``symbol``
    (mangled): what no object defines, under ``version`` where one is asked for. ``requirer``: the path of
    the object that asked, where it is not the program.
    """

    loads: bool | None
    text: str | None = None
    library: str | None = None
    symbol: str | None = None
    version: str | None = None
    requirer: str | None = None
    unknown: str | None = None

    @classmethod
    def from_table(cls, table: Table) -> Load:
        """Read one verdict."""
        return cls(
            loads=table.get("loads", _loads),
            text=table.get("error", optional(text), None),
            library=table.get("library", optional(text), None),
            symbol=table.get("symbol", optional(text), None),
            version=table.get("version", optional(text), None),
            requirer=table.get("requirer", optional(text), None),
            unknown=table.get("unknown", optional(text), None),
        )

    @property
    def missing_library(self) -> str | None:
        """The library that cannot be had; ``None`` where one is there and lacks a version or a symbol."""
        return self.library if self.version is None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedObject:
    """One shared object. ``path`` is relative to site-packages.

    ``alone`` is its verdict in the bare interpreter, ``after`` that after the preload, ``used`` that where
    its package opens others first. ``machine`` is ELF's e_machine, ``None`` for a 32-bit file. ``short`` are
    the bytes that its segments name beyond its end: it may load all the same, and die when they are used.
    ``static_tls`` are the bytes that it needs in the thread's static block (DF_STATIC_TLS).
    """

    path: str
    alone: Load
    after: Load
    used: Load | None = None
    machine: int | None = None
    needed: tuple[str, ...] = ()
    soname: str | None = None
    short: int = 0
    static_tls: int = 0

    @property
    def verdict(self) -> Load:
        """The verdict that counts: as its package opens it, else after the preload."""
        return self.used or self.after

    @property
    def name(self) -> str:
        """The name by which other objects need it."""
        return self.soname or posixpath.basename(self.path)

    @classmethod
    def from_table(cls, table: Table) -> SharedObject:
        """Read one entry of the agent's answer."""
        load = table_of(Load.from_table)
        return cls(
            path=table.get("path", text),
            alone=table.get("alone", load),
            after=table.get("after", load),
            used=table.get("used", optional(load), None),
            machine=table.get("machine", optional(integer), None),
            needed=table.get("needed", list_of(text), ()),
            soname=table.get("soname", optional(text), None),
            short=table.get("short", natural, 0),
            static_tls=table.get("static_tls", natural, 0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFacts:
    """What ``abi.objects`` answers.

    ``preload`` is the verdict on ``import PACKAGE`` itself, ``None`` where the package is not installed.
    ``not_objects``: path → why a file of such a name is none. ``owners``: path → ``name-version`` of the
    distribution that brought an object that does not load; ``built_for``: that → the version of the
    package that it names, and where it says so. ``installed``: normalised name → version.
    """

    site: str
    interpreter: str
    glibc: str
    package: str
    cuda: str | None
    preload: Load | None
    objects: tuple[SharedObject, ...]
    not_objects: Mapping[str, str]
    owners: Mapping[str, str]
    built_for: Mapping[str, tuple[str, ...]]
    installed: Mapping[str, str]

    @classmethod
    def from_dict(cls, answer: Any, *, name: str = "the agent's answer to abi.objects") -> LoadFacts:
        """Type an answer; :class:`~hostenv.document.DocumentError` where it is damaged."""
        return read(answer, table_of(cls._from_table), document=name)

    @classmethod
    def _from_table(cls, table: Table) -> LoadFacts:
        for kept_apart in ("gpu_code", "cached", "seconds"):
            table.get(kept_apart, anything, None)
        return cls(
            site=table.get("site", text),
            interpreter=table.get("interpreter", text),
            glibc=table.get("glibc", text),
            package=table.get("package", text),
            cuda=table.get("cuda", optional(text)),
            preload=table.get("preload", optional(table_of(Load.from_table))),
            objects=table.get("objects", list_of(table_of(SharedObject.from_table))),
            not_objects=table.get("not_objects", mapping_of(text)),
            owners=table.get("owners", mapping_of(text)),
            built_for=table.get("built_for", mapping_of(list_of(text))),
            installed=table.get("installed", mapping_of(text)),
        )


def described(item: SharedObject) -> dict[str, object]:
    """Return an object as the JSON of ``verify_abi`` has it, GPU code apart.

    ``loads_after_preload`` and what is missing belong to the process that has imported the package.
    """
    entry: dict[str, object] = {
        "path": item.path,
        "loads_alone": item.alone.loads,
        "loads_after_preload": item.after.loads,
        "missing_library": item.after.missing_library,
        "undefined_symbol": item.after.symbol,
        "missing_version": None if item.after.symbol else item.after.version,
        "error": item.after.text,
        "alone": {
            "missing_library": item.alone.missing_library,
            "undefined_symbol": item.alone.symbol,
            "missing_version": None if item.alone.symbol else item.alone.version,
            "error": item.alone.text,
        },
    }
    if item.used is not None:
        entry["loads_as_used"] = item.used.loads
    return entry


def _loads(node: Node) -> bool | None:
    return optional(flag)(node)
