"""glibc's loader, simulated: which files a name leads to, and what is mapped when an object is opened.

Pure: files come through :class:`Files`, the machine's settings through :class:`System`. The rules are those
of glibc's ``elf/dl-load.c`` (search), ``dl-deps.c`` (order) and ``dl-version.c`` (versions).
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

from hostenv.agent.elfmodel import DT_AUXILIARY, DT_NEEDED
from hostenv.agent.loaderchecks import objection
from hostenv.agent.loadermodel import NO_FILE, File, Files, Identity, LoadError, Map, Refusal, System
from hostenv.agent.loadersearch import Search


class Process:
    """The objects of a running process, and the rules by which it finds and maps more.

    ``parent`` is a process whose objects are all here already (a fork of it): it is never changed.
    """

    def __init__(self, system: System, files: Files, parent: Optional[Process] = None) -> None:
        self.system = system
        self.files = files
        self.search: Search = parent.search if parent else Search(system, files)
        self._parent = parent
        self._by_name: Dict[str, Map] = {}
        self._by_identity: Dict[Identity, Map] = {}
        self._aliases: Dict[int, Set[str]] = {}
        self.maps: List[Map] = []
        self.global_scope: List[Map] = list(parent.global_scope) if parent else []

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
        self.search.begin(main)
        self._add(main)
        interpreter = opened.elf.interpreter
        if interpreter:
            loader = self.files.open(interpreter)
            if isinstance(loader, Refusal):
                raise LoadError(f"{interpreter}: {loader.message}", library=interpreter)
            self._add(Map(interpreter, interpreter, loader, main, os.path.dirname(interpreter)))
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
        """Return the object that was asked for by ``name``; its SONAME alone is not enough."""
        known = self.lookup(name)
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
        if not name or self.search.main is None:
            return None
        try:
            return self._object(name, self.search.main)
        except LoadError:
            return None  # the loader prints an error and goes on

    def lookup(self, name: str) -> Optional[Map]:
        """Return the first object that has ``name`` as a name it was asked for, or as its SONAME."""
        known = self._parent.lookup(name) if self._parent else None
        return known or self._by_name.get(name)

    def identical(self, identity: Identity) -> Optional[Map]:
        """Return the object that was mapped from the file ``identity``."""
        known = self._parent.identical(identity) if self._parent else None
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
        known = self.lookup(name)
        if known is not None:
            return self._alias(known, name)
        if "/" in name:
            path: Optional[str] = self.search.expand(name, loader or self.search.main)
            opened = self._open(path) if path else Refusal(NO_FILE)
        else:
            path, opened = self._search(name, loader)
        if isinstance(opened, Refusal):
            raise _refusal(name, path, opened, loader)
        known = self.identical(opened.identity)
        if known is not None:
            return self._alias(known, name)
        path = path or name
        main = self.search.main
        said = objection(self.system, main.elf if main else None, opened.elf)
        if said:
            raise LoadError(f"{name}: {said}", library=path)
        item = Map(path, name, opened, loader, os.path.dirname(self.search.absolute(path)))
        self._add(item)
        return item

    def _open(self, path: str) -> Union[File, Refusal]:
        """Open ``path`` as ``open_verify`` does: one for another machine counts as absent."""
        opened = self.files.open(self.search.absolute(path))
        machine = opened.elf.machine if isinstance(opened, File) else opened.machine
        return opened if machine in {None, self.system.machine} else Refusal(NO_FILE)

    def _search(self, name: str, loader: Optional[Map]) -> Tuple[Optional[str], Union[File, Refusal]]:
        # Where no folder is left to look in, no system call has failed: the message gives no reason.
        result = Refusal(NO_FILE if self.search.has_folders(loader) else "")
        for path in self.search.candidates(name, loader):
            opened = self._open(path)
            if isinstance(opened, File) or opened.fatal:
                return path, opened
            if opened.other_class:
                result = opened
        return None, result

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
        expanded = self.search.expand(name, current)
        if expanded is None and tag == DT_AUXILIARY:
            return None
        try:
            return self._object(expanded or name, current)
        except LoadError:
            if tag == DT_AUXILIARY:
                return None
            raise

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
    return LoadError(f"{name}: cannot open shared object file{reason}", library=name, requirer=requirer)


def _put_before(order: List[Map], current: Map, item: Map) -> None:
    """Put an auxiliary object before ``current``, from behind it where it is listed there."""
    place = order.index(current)
    if item in order[:place]:
        return
    if item in order:
        order.remove(item)
    order.insert(place, item)
