"""The files of this machine as the loader's simulation sees them, each read once."""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Union

from hostenv.agent import elfshort, elfsymbols, gpucode
from hostenv.agent.elf import ElfFile
from hostenv.agent.elfmodel import (
    ElfError,
    OtherClassError,
)
from hostenv.agent.loadermodel import File, Identity, Refusal
from hostenv.agent.verdicts import SymbolFiles

Opened = Union[File, Refusal]


class HostFiles(SymbolFiles):
    """Files by path, with the symbols of each kept by inode.

    ``paths`` are all paths that were opened and ``folders`` all that were listed: what was learnt holds as
    long as none of them changes. ``gpu`` holds the GPU code of each inode where it is asked for. ``laid``: a
    path → the file that is seen there instead, ``None`` for none at all.
    """

    def __init__(self, *, gpu: bool = False) -> None:
        self.paths: Dict[str, Opened] = {}
        self.folders: Dict[str, FrozenSet[str]] = {}
        self.symbols: Dict[Identity, Union[elfsymbols.Symbols, str]] = {}
        self.files: Dict[Identity, Opened] = {}
        self.places: Dict[Identity, str] = {}
        self.gpu: Optional[Dict[Identity, Any]] = {} if gpu else None
        self.laid: Mapping[str, Optional[str]] = {}
        self._laid_folders: FrozenSet[str] = frozenset()

    def lay(self, laid: Mapping[str, Optional[str]]) -> None:
        """Have other files seen at some paths (see ``laid``), before any is opened."""
        self.laid = laid
        folders = {os.path.dirname(path) for path, real in laid.items() if real is not None}
        while folders - self._laid_folders:
            self._laid_folders |= folders
            folders = {os.path.dirname(folder) for folder in folders}

    def open(self, path: str) -> Opened:
        """Return the file at ``path``, reading its dynamic section and symbols at the first time."""
        if path not in self.paths:
            self.paths[path] = self._read(path)
        return self.paths[path]

    def has(self, folder: str, name: str) -> bool:
        """Say whether ``folder`` has an entry ``name``."""
        path = f"{folder}/{name}"
        if path in self.laid:
            return self.laid[path] is not None
        names = self.folders.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(folder or "/"))
            except PermissionError:
                return os.path.lexists(path)  # searchable, though not readable
            except OSError:
                names = frozenset()
            self.folders[folder] = names
        return name in names or path in self._laid_folders

    def names(self, folder: str) -> List[str]:
        """Return the entries of ``folder``; none where it cannot be listed."""
        try:
            found = os.listdir(folder)
        except OSError:
            found = []
        if not self.laid:
            return found
        beside = {os.path.basename(path) for path in self.laid if os.path.dirname(path) == folder}
        return [name for name in sorted({*found, *beside}) if self.real(f"{folder}/{name}") is not None]

    def real(self, path: str) -> Optional[str]:
        """Return the file that is seen at ``path``; ``None`` where it is to be seen as not there."""
        return self.laid.get(path, path)

    def symbols_of(self, identity: Identity) -> Union[elfsymbols.Symbols, str, None]:
        """Return an object's symbols, or why they cannot be read."""
        return self.symbols.get(identity)

    def used(self, identity: Identity) -> Optional[List[int]]:
        """Return the symbol indices that the relocations of an object use, in the loader's order."""
        return elfsymbols.used(self.places[identity])

    def _read(self, path: str) -> Opened:
        real = self.real(path)
        if real is None:
            return Refusal("No such file or directory")
        return self._opened(real)

    def _opened(self, path: str) -> Opened:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            return Refusal(error.strerror or str(error))
        try:
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            if identity not in self.files:
                self.places[identity] = path
                self.files[identity] = self._load(descriptor, identity, status.st_mode)
            return self.files[identity]
        finally:
            os.close(descriptor)

    def _load(self, descriptor: int, identity: Identity, mode: int) -> Opened:
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return Refusal("cannot read file data: not a regular file", fatal=True)
        try:
            file = ElfFile(descriptor)
        except OtherClassError as error:
            return Refusal(error.message, other_class=True)
        except ElfError as error:
            return Refusal(error.message, fatal=True, machine=error.machine)
        except OSError as error:
            return Refusal(f"cannot read file data: {error.strerror}", fatal=True)
        try:
            self.symbols[identity] = elfsymbols.read_symbols(file)
        except ElfError as error:
            self.symbols[identity] = error.message
        if self.gpu is not None:
            self.gpu[identity] = gpucode.read_descriptor(descriptor)
        elf = file.elf
        if elf.short > 0 and elf.dynamic and not elf.dies:
            elf = elf._replace(dies=elfshort.dies(file, os.sysconf("SC_PAGE_SIZE")))
        return File(identity, elf)
