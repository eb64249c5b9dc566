"""glibc's loader, simulated: which files a name leads to, and what is mapped when an object is opened.

Pure: files come through :class:`Files`, the machine's settings through :class:`System`. The rules are those
of glibc's ``elf/dl-load.c`` (search), ``dl-deps.c`` (order) and ``dl-version.c`` (versions).
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from hostenv.agent.elf import (
    DF_1_NODEFLIB,
    DF_1_NOOPEN,
    DF_1_PIE,
    DT_AUXILIARY,
    DT_NEEDED,
    ET_EXEC,
    PF_X,
    Elf,
)

NO_FILE = "No such file or directory"


class System(NamedTuple):
    """What the loader takes from its machine and its environment.

    ``folders`` are the default folders compiled into the interpreter's own loader; ``cache`` the file of
    each library name in ``/etc/ld.so.cache``; ``subfolders`` what is tried below every search folder, best
    first (``glibc-hwcaps/x86-64-v3``), the folder itself last; ``isa`` the bits of the x86 levels that the
    processor has; ``library_path`` and ``preload`` are LD_LIBRARY_PATH and LD_PRELOAD.
    """

    machine: int
    folders: Tuple[str, ...]
    cache: Dict[str, str]
    glibc: Tuple[int, int]
    subfolders: Tuple[str, ...] = ("",)
    page_size: int = 4096
    isa: int = 0xF
    library_path: str = ""
    preload: str = ""
    lib: str = "lib"
    platform: str = ""
    cwd: str = "/"


class File(NamedTuple):
    """A file that the loader can map: ``identity`` is equal for two paths of one inode."""

    identity: Tuple[int, ...]
    elf: Elf


class Refusal(NamedTuple):
    """A path that gives no file. ``fatal``: the loader gives up there, unless the file is for another
    ``machine`` (where that is given); else its search goes on.
    """

    message: str
    fatal: bool = False
    other_class: bool = False
    machine: Optional[int] = None


class Files:
    """The file system as the loader sees it. A subclass reads a real one, or saved facts."""

    def open(self, path: str) -> Union[File, Refusal]:
        """Return the file at an absolute path."""
        raise NotImplementedError

    def has(self, folder: str, name: str) -> bool:
        """Say whether ``folder`` (absolute) has an entry ``name``, which may be a relative path."""
        raise NotImplementedError


class LoadError(Exception):
    """The loader's refusal. ``text`` is what ``dlerror`` says; the rest names its parts.

    ``library``: a name that leads to no usable file. ``symbol``, ``version``: what no object defines.
    ``requirer``: the path of the object that asked.
    """

    def __init__(
        self,
        text: str,
        *,
        library: Optional[str] = None,
        symbol: Optional[bytes] = None,
        version: Optional[str] = None,
        requirer: Optional[str] = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.library = library
        self.symbol = symbol
        self.version = version
        self.requirer = requirer


class Map:
    """A mapped object. ``name`` is the path that was opened; ``names`` those it was asked for by."""

    __slots__ = (
        "direct",
        "elf",
        "identity",
        "loader",
        "main",
        "name",
        "names",
        "origin",
        "scope",
        "searches",
    )

    def __init__(self, name: str, asked: str, file: File, loader: Optional[Map], origin: str) -> None:
        self.name = name
        self.names = {asked}
        self.elf = file.elf
        self.identity = file.identity
        self.loader = loader
        self.origin = origin
        self.main = False
        self.direct: Optional[List[Map]] = None
        self.scope: List[Map] = []
        self.searches: Dict[str, Tuple[str, ...]] = {}


_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Z_]))")


class Process:
    """The objects of a running process, and the rules by which it finds and maps more.

    ``parent`` is a process whose objects are all here already (a fork of it): it is never changed.
    """

    def __init__(self, system: System, files: Files, parent: Optional[Process] = None) -> None:
        self.system = system
        self.files = files
        self._parent = parent
        self._by_name: Dict[str, Map] = {}
        self._by_identity: Dict[Tuple[int, ...], Map] = {}
        self._aliases: Dict[int, Set[str]] = {}
        self.maps: List[Map] = []
        self.main: Optional[Map] = parent.main if parent else None
        self.global_scope: List[Map] = list(parent.global_scope) if parent else []
        self._library_path: Optional[Tuple[str, ...]] = parent._library_path if parent else None
        self._folders = tuple(_with_slash(folder) for folder in system.folders)
        self.found: Dict[str, Tuple[str, str]] = {}

    def fork(self) -> Process:
        """Return a process that continues from here, leaving this one as it is."""
        return Process(self.system, self.files, self)

    def start(self, path: str) -> Map:
        """Map the main program and all that it needs, as the kernel and ``ld.so`` do at its start."""
        opened = self.files.open(path)
        if isinstance(opened, Refusal):
            raise LoadError(f"{path}: {opened.message}", library=path)
        main = Map("", "", opened, None, os.path.dirname(path))
        main.main = True
        self.main = main
        self._add(main)
        interpreter = opened.elf.interpreter
        if interpreter:
            loader = self.files.open(interpreter)
            if isinstance(loader, Refusal):
                raise LoadError(f"{interpreter}: {loader.message}", library=interpreter)
            self._add(Map(interpreter, interpreter, loader, main, os.path.dirname(interpreter)))
        if self.system.library_path:
            self._library_path = self._split(self.system.library_path, main, ":;")
        preloads = [entry for entry in map(self._preload, re.split("[ :]", self.system.preload)) if entry]
        main.scope = self._dependencies(main, preloads)
        self._check_versions(main.scope)
        self.global_scope = list(main.scope)
        return main

    def open(self, path: str, *, everyone: bool = False) -> Map:
        """Map the object at ``path`` and all that it needs; ``everyone`` is RTLD_GLOBAL.

        Symbols are not looked at. Raises :class:`LoadError`; what was mapped until then stays mapped, so a
        process whose open failed is thrown away.
        """
        opened = self._object(path, None)
        if not opened.scope:
            opened.scope = self._dependencies(opened, [])
            self._check_versions(opened.scope)
            self._check_processor(opened.scope)
        if everyone:
            known = set(map(id, self.global_scope))
            self.global_scope += [item for item in opened.scope if id(item) not in known]
        return opened

    def is_new(self, item: Map) -> bool:
        """Say whether ``item`` was mapped by this process, not by the one it was forked from."""
        return self._by_identity.get(item.identity) is item

    def answers_to(self, item: Map, name: str) -> bool:
        """Say whether ``item`` is known under ``name`` (``_dl_name_match_p``)."""
        if name == item.name or name in item.names or name in self._aliases.get(id(item), ()):
            return True
        return self._parent is not None and self._parent.answers_to(item, name)

    def named(self, name: str) -> Optional[Map]:
        """Return the object that is known under ``name``: by a name it was asked for, not yet by its SONAME."""
        known = self._lookup(name)
        if known is None or self.answers_to(known, name):
            return known
        return next((item for item in self.everything() if self.answers_to(item, name)), None)

    def initialization(self, root: Map) -> List[Map]:
        """Return the objects of ``root``'s scope sorted by dependency (``_dl_sort_maps``, glibc >= 2.35).

        The loader relocates them in the reverse of this order.
        """
        inside = set(map(id, root.scope))
        done: Set[int] = set()
        order: List[Map] = []
        for top in reversed(root.scope):
            stack: List[Tuple[Map, Iterator[Map]]] = []
            if id(top) not in done:
                done.add(id(top))
                stack.append((top, iter(() if top is root else top.direct or ())))
            while stack:
                current, remaining = stack[-1]
                for dependency in remaining:
                    if id(dependency) in inside and id(dependency) not in done and not dependency.main:
                        done.add(id(dependency))
                        children = () if dependency is root else dependency.direct or ()
                        stack.append((dependency, iter(children)))
                        break
                else:
                    order.append(current)
                    stack.pop()
        order.reverse()
        order.remove(root)
        return [root, *order]

    def _preload(self, name: str) -> Optional[Map]:
        if not name or self.main is None:
            return None
        try:
            return self._object(name, self.main)
        except LoadError:
            return None  # the loader prints an error and goes on

    def _lookup(self, name: str) -> Optional[Map]:
        known = self._parent._lookup(name) if self._parent else None
        return known or self._by_name.get(name)

    def _identical(self, identity: Tuple[int, ...]) -> Optional[Map]:
        known = self._parent._identical(identity) if self._parent else None
        return known or self._by_identity.get(identity)

    def _add(self, item: Map) -> None:
        self.maps.append(item)
        self._by_identity.setdefault(item.identity, item)
        for name in (item.name, *item.names, item.elf.soname):
            if name is not None:
                self._by_name.setdefault(name, item)

    def _alias(self, item: Map, name: str) -> Map:
        self._by_name.setdefault(name, item)
        self._aliases.setdefault(id(item), set()).add(name)
        return item

    def _object(self, name: str, loader: Optional[Map]) -> Map:
        """Return the object that ``name`` leads to, mapping it where it is not yet (``_dl_map_object``)."""
        known = self._lookup(name)
        if known is not None:
            return self._alias(known, name)
        if "/" in name:
            path: Optional[str] = self._expand(name, loader or self.main)
            opened = self._open(path) if path else Refusal(NO_FILE)
        else:
            path, opened = self._search(name, loader)
        if isinstance(opened, Refusal):
            raise _refusal(name, path, opened, loader)
        known = self._identical(opened.identity)
        if known is not None:
            return self._alias(known, name)
        path = path or name
        self._check_mappable(name, path, opened.elf)
        item = Map(path, name, opened, loader, os.path.dirname(self._absolute(path)))
        self._add(item)
        return item

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.system.cwd.rstrip('/')}/{path}"

    def _open(self, path: str) -> Union[File, Refusal]:
        """Open ``path`` as ``open_verify`` does: one for another machine counts as absent."""
        opened = self.files.open(self._absolute(path))
        machine = opened.elf.machine if isinstance(opened, File) else opened.machine
        return opened if machine in {None, self.system.machine} else Refusal(NO_FILE)

    def _search(self, name: str, loader: Optional[Map]) -> Tuple[Optional[str], Union[File, Refusal]]:
        # Where no folder is left to look in, no system call has failed: the message gives no reason.
        result = Refusal(NO_FILE if self._has_folders(loader) else "")
        for path in self._candidates(name, loader):
            opened = self._open(path)
            if isinstance(opened, File) or opened.fatal:
                return path, opened
            if opened.other_class:
                result = opened
        return None, result

    def _candidates(self, name: str, loader: Optional[Map]) -> Iterator[str]:
        """Yield the paths where ``name`` exists, in the order in which the loader tries them."""
        asking = loader or self.main
        if loader is None or loader.elf.runpath is None:
            seen_main = False
            item = loader
            while item is not None:
                yield from self._below(self._paths(item, "rpath"), name)
                seen_main = seen_main or item.main
                item = item.loader
            if not seen_main and self.main is not None:
                yield from self._below(self._paths(self.main, "rpath"), name)
        yield from self._below(self._library_path or (), name)
        if loader is not None:
            yield from self._below(self._paths(loader, "runpath"), name)
        defaults = asking is None or not asking.elf.flags_1 & DF_1_NODEFLIB
        cached = self.system.cache.get(name)
        if cached is not None and (defaults or not cached.startswith(self._folders)):
            yield cached
        if defaults:
            yield from self._below(self._folders, name)

    def _has_folders(self, loader: Optional[Map]) -> bool:
        """Say whether a search on behalf of ``loader`` tries any folder at all."""
        asking = loader or self.main
        chain: List[Map] = []
        while loader is not None:
            chain.append(loader)
            loader = loader.loader
        return bool(
            asking is None
            or not asking.elf.flags_1 & DF_1_NODEFLIB
            or self._library_path
            or self._paths(asking, "runpath")
            or any(self._paths(item, "rpath") for item in chain)
        )

    def _below(self, folders: Sequence[str], name: str) -> Iterator[str]:
        for folder in folders:
            for sub in self.system.subfolders:
                place = folder + sub
                if self.files.has(self._absolute(place) if place else self.system.cwd, name):
                    yield place + name

    def _paths(self, item: Map, kind: str) -> Tuple[str, ...]:
        """Return the folders of an object's RPATH or RUNPATH, each with its slash."""
        if kind not in item.searches:
            value = item.elf.rpath if kind == "rpath" else item.elf.runpath
            item.searches[kind] = self._split(value, item, ":") if value else ()
        return item.searches[kind]

    def _split(self, value: str, item: Map, separators: str) -> Tuple[str, ...]:
        """Return the folders of a path list (``fillin_rpath``). An empty element is the working folder."""
        found: List[str] = []
        for element in re.split(f"[{separators}]", value):
            folder: Optional[str] = ""
            if element:
                folder = self._expand(element, item)
                if not folder:
                    continue
                folder = _with_slash(folder)
            if folder not in found:
                found.append(folder or "")
        return tuple(found)

    def _expand(self, value: str, item: Optional[Map]) -> Optional[str]:
        """Replace ``$ORIGIN``, ``$LIB`` and ``$PLATFORM``; ``None`` where a value is not known."""
        if "$" not in value:
            return value
        values = {"ORIGIN": item.origin if item else "", "LIB": self.system.lib}
        values["PLATFORM"] = self.system.platform
        names = [match.group(1) or match.group(2) for match in _TOKEN.finditer(value)]
        if not all(values[name] for name in names):
            return None
        return _TOKEN.sub(lambda match: values[match.group(1) or match.group(2)], value)

    def _dependencies(self, root: Map, preloads: List[Map]) -> List[Map]:
        """Return ``root``'s scope: breadth first, auxiliary objects before the one that names them."""
        order: List[Map] = [root]
        order += [item for item in preloads if item not in order]
        listed: Set[int] = set(map(id, order))
        done: Set[int] = set()
        position = 0
        while position < len(order):
            current = order[position]
            if id(current) in done:
                position += 1
                continue
            done.add(id(current))
            direct: List[Map] = []
            for tag, name in current.elf.dependencies:
                item = self._dependency(current, tag, name)
                if item is None:
                    continue
                direct.append(item)
                if tag == DT_NEEDED:
                    if id(item) not in listed:
                        order.append(item)
                else:
                    _put_before(order, current, item)
                listed.add(id(item))
            if current.direct is None:
                current.direct = direct
        return order

    def _dependency(self, current: Map, tag: int, name: str) -> Optional[Map]:
        expanded = self._expand(name, current)
        if expanded is None and tag == DT_AUXILIARY:
            return None
        try:
            return self._object(expanded or name, current)
        except LoadError:
            if tag == DT_AUXILIARY:
                return None
            raise

    def _check_mappable(self, name: str, path: str, elf: Elf) -> None:
        """Raise what ``_dl_map_object_from_fd`` says of a file that it has opened by ``name``."""
        message = self._misaligned(elf)
        if message is None and not elf.segments:
            message = "object file has no loadable segments"
        for wrong, said in (
            (elf.type == ET_EXEC, "cannot dynamically load executable"),
            (elf.dies, f"the file is cut short by {elf.short} bytes: the process dies of SIGBUS"),
            (not elf.dynamic, "object file has no dynamic section"),
            (elf.flags_1 & DF_1_PIE, "cannot dynamically load position-independent executable"),
            (elf.flags_1 & DF_1_NOOPEN, "shared object cannot be dlopen()ed"),
        ):
            if message is None and wrong:
                message = said
        if message is None and self.system.glibc >= (2, 41) and self._wants_stack(elf):
            message = "cannot enable executable stack as shared object requires: Invalid argument"
        if message:
            raise LoadError(f"{name}: {message}", library=path)

    def _misaligned(self, elf: Elf) -> Optional[str]:
        """Return glibc's complaint about a segment's alignment: another one since 2.35 (BZ #28676)."""
        page = self.system.page_size
        if self.system.glibc >= (2, 35):
            if any((segment.address - segment.offset) & (page - 1) for segment in elf.segments):
                return "ELF load command address/offset not page-aligned"
            return None
        if any(segment.alignment & (page - 1) for segment in elf.segments):
            return "ELF load command alignment not page-aligned"
        if any((s.address - s.offset) & ((s.alignment or 1) - 1) for s in elf.segments):
            return "ELF load command address/offset not properly aligned"
        return None

    def _wants_stack(self, elf: Elf) -> bool:
        """Say whether an object needs an executable stack that the program has not (missing counts)."""
        mine = self.main.elf.stack if self.main else None
        return (elf.stack is None or bool(elf.stack & PF_X)) and mine is not None and not mine & PF_X

    def _check_versions(self, scope: Sequence[Map]) -> None:
        """Raise for the first version that an object needs and its provider does not define."""
        for item in scope:
            if self._parent is not None and not self.is_new(item):
                continue
            for need in item.elf.version_needs:
                provider = self.named(need.file)
                if provider is None:
                    text = f"{item.name}: needs versions of {need.file}, which is not loaded"
                    raise LoadError(text, library=need.file, requirer=item.name)
                if provider.elf.definitions is None:
                    continue
                defined = provider.elf.definitions.values()
                for version in need.versions:
                    if not version.weak and version.name not in defined:
                        raise LoadError(
                            f"{provider.name}: version `{version.name}' not found (required by {item.name})",
                            version=version.name,
                            library=provider.name,
                            requirer=item.name,
                        )

    def _check_processor(self, scope: Sequence[Map]) -> None:
        for item in scope:
            if item.elf.isa_needed & ~self.system.isa:
                raise LoadError(f"{item.name}: CPU ISA level is lower than required", requirer=item.name)

    def everything(self) -> Iterator[Map]:
        """Yield all mapped objects in the order in which they were mapped."""
        if self._parent is not None:
            yield from self._parent.everything()
        yield from self.maps


def _refusal(name: str, path: Optional[str], opened: Refusal, loader: Optional[Map]) -> LoadError:
    """Return the loader's message about a name that leads to no usable file."""
    requirer = loader.name if loader else None
    if opened.fatal:
        return LoadError(f"{path}: {opened.message}", library=path, requirer=requirer)
    if opened.other_class:
        return LoadError(f"{name}: {opened.message}", library=name, requirer=requirer)
    reason = f": {opened.message}" if opened.message else ""
    return LoadError(
        f"{name}: cannot open shared object file{reason}", library=name, requirer=requirer
    )


def _with_slash(folder: str) -> str:
    return folder.rstrip("/") + "/"


def _put_before(order: List[Map], current: Map, item: Map) -> None:
    """Put an auxiliary object before ``current``, from behind it where it is listed there."""
    place = order.index(current)
    if item in order[:place]:
        return
    if item in order:
        order.remove(item)
    order.insert(place, item)
