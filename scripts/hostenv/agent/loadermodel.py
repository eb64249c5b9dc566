"""The values of the loader's simulation: its machine, files, mapped objects, and its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple, Union

if TYPE_CHECKING:
    from hostenv.agent.elfmodel import Elf

Identity = Tuple[Any, ...]
"""What two paths of one file share: device and inode."""

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

    identity: Identity
    elf: Elf


class Refusal(NamedTuple):
    """A path that gives no file.

    ``fatal``: the loader gives up there, unless the file is for another ``machine`` (where that is given);
    else its search goes on.
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
