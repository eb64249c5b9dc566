"""What lies in an environment beside what its distributions say: paths, links, scripts, leftovers.

Every function takes what a walk saw and returns what JSON can hold; paths are relative to the environment.
Nothing is judged here.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import struct
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Set

from hostenv.agent import bytecode, pyvenv, regular
from hostenv.agent.tree import text

if TYPE_CHECKING:
    from hostenv.agent.walk import File, Walked

OBJECT_NAME = re.compile(rb"\.so(?:[.~_-][^/]*)?\Z|\.so[^/]*\.(?:bak|orig|new|old|tmp|partial|swp)\Z")
"""Names that hold ``.so`` as a part: an object, or a copy of one under another name."""
_TOOLS = frozenset(
    name.encode()
    for name in (
        "ptxas",
        "ptxas-blackwell",
        "ninja",
        "nvcc",
        "cicc",
        "fatbinary",
        "nvlink",
        "cudafe++",
        "bin2c",
    )
)
_BINARY = (b".so", b".cubin", b".bc", b".ltoir", b".a", b".safetensors", b".fatbin")
_POINTER = b"version https://git-lfs.github.com/spec/"
_SMALLEST_HEAD = 1024
_LARGEST_TEXT = 1 << 20
_ACTIVATE = re.compile(r"^\s*(?:export )?VIRTUAL_ENV=['\"]?([^'\"\n\0]+)", re.MULTILINE)
_FINDER = re.compile(r"^MAPPING(?:\s*:[^=]*)?\s*=\s*(\{.*\})", re.MULTILINE)
_PAIR = re.compile(r"['\"]([^'\"]+)['\"]\s*:\s*['\"]([^'\"]+)['\"]")
SHOWN = 8
"""Names of many that are told."""


def objects(walked: Walked, owners: Mapping[bytes, List[str]]) -> List[Dict[str, Any]]:
    """Return every file with an object's name, or nearly one: whose it is, and its size in bytes."""
    return [
        {"path": text(path), "owners": owners.get(path, []), "size": walked.files[path].size}
        for path in sorted([path for path in walked.files if b".so" in path])
        if OBJECT_NAME.search(path)
    ]


def lost_bits(walked: Walked) -> List[str]:
    """Return programs that nobody may run: scripts in ``bin``, compilers and assemblers of wheels."""
    return [
        text(path)
        for path in sorted([path for path in walked.files if b"bin/" in path])
        if not walked.files[path].mode & 0o111 and (_is_script(path) or _is_tool(path))
    ]


def pointers(root: bytes, walked: Walked) -> List[str]:
    """Return binary files that are pointers of Git LFS: text in the place of bytes."""
    return [
        text(path)
        for path in sorted([path for path, file in walked.files.items() if file.size < _SMALLEST_HEAD])
        if (path.endswith(_BINARY) or b".so." in path) and beginning(root, path, len(_POINTER)) == _POINTER
    ]


def dangling(root: bytes, walked: Walked) -> List[str]:
    """Return links that lead to nothing."""
    return [text(path) for path in sorted(walked.links) if not os.path.exists(os.path.join(root, path))]


def may_not_run(root: str) -> bool:
    """Tell whether the environment lies on a filesystem mounted noexec, mount(8)."""
    return bool(os.statvfs(root).f_flag & os.ST_NOEXEC)


def hard_links(root: bytes, walked: Walked, changed: Iterable[str]) -> Dict[str, Any]:
    """Return how many files share their inode with another name, of how many, and which of ``changed`` do."""
    return {
        "shared": walked.shared,
        "of": len(walked.files),
        "changed": sorted(path for path in set(changed) if _is_shared(os.fsdecode(root) + "/" + path)),
    }


def _is_shared(path: str) -> bool:
    try:
        return os.lstat(path).st_nlink > 1
    except OSError:
        return False


def interpreter(root: str) -> Dict[str, Any]:
    """Return what leads to the interpreter: ``bin/python``, ``pyvenv.cfg`` and ``bin/activate``."""
    program = os.path.join(root, "bin", "python")
    settings = pyvenv.read(root)
    activate = read(os.path.join(root, "bin", "activate")) or ""
    stated = _ACTIVATE.search(activate)
    return {
        "program": os.path.realpath(program) if os.path.lexists(program) else None,
        "works": os.access(program, os.X_OK),
        "home": settings.get("home"),
        "home_exists": os.path.isdir(settings.get("home", "")),
        "version": settings.get("version_info") or settings.get("version"),
        "system_site": settings.get("include-system-site-packages", "false").lower() == "true",
        "relocatable": settings.get("relocatable", "false").lower() == "true",
        "activate": os.path.realpath(stated.group(1)) if stated and stated.group(1)[0] == "/" else None,
    }


def finders(root: bytes, walked: Walked) -> Dict[str, str]:
    """Return top-level name → place of setuptools' editable finders (``__editable___NAME_finder.py``)."""
    found: Dict[str, str] = {}
    for path in sorted([path for path in walked.files if path.endswith(b"_finder.py")]):
        if posixpath.basename(path).startswith(b"__editable___"):
            mapping = _FINDER.search(read(os.path.join(root, path)) or "")
            found.update(_PAIR.findall(mapping.group(1)) if mapping else ())
    return found


def top_levels(site: bytes, walked: Walked) -> Dict[str, str]:
    """Return what ``site-packages`` itself offers: name → ``package``, ``module`` or ``folder``."""
    prefix = site + b"/"
    start = len(prefix)
    modules: Set[bytes] = set()
    folders: Set[bytes] = set()
    for path in walked.files:
        if path.startswith(prefix):
            end = path.find(b"/", start)
            if end > 0:
                folders.add(path[start:end])
            elif path.endswith(b".py"):
                modules.add(path[start:-3])
    found: Dict[str, str] = {}
    for name in sorted(folders):
        if prefix + name + b"/__init__.py" in walked.files:
            found[text(name)] = "package"
        elif name.decode("ascii", "replace").isidentifier() and name not in modules:
            found[text(name)] = "folder"
    found.update({text(name): "module" for name in sorted(modules) if text(name) not in found})
    return found


def shadows(walked: Walked) -> List[Dict[str, str]]:
    """Return modules that hide another of the same name beside them, as ``FileFinder`` looks for them.

    A folder with ``__init__`` comes before an extension, that before source, that before bytecode alone
    (importlib's ``_get_supported_file_loaders``).
    """
    packages = {path[: path.rindex(b"/")] for path in walked.files if path.endswith(b"/__init__.py")}
    extensions: Dict[bytes, bytes] = {}
    sources: Dict[bytes, bytes] = {}
    for path in walked.files:
        if path.endswith(b".py"):
            sources[path[:-3]] = path
        elif path.endswith(b".so"):
            folder, _, name = path.rpartition(b"/")
            extensions[(folder + b"/" if folder else b"") + name.split(b".")[0]] = path
    found = []
    for stem in sorted(
        (packages & (sources.keys() | extensions.keys())) | (extensions.keys() & sources.keys())
    ):
        ranked = [stem + b"/__init__.py"] if stem in packages else []
        ranked += [table[stem] for table in (extensions, sources) if stem in table]
        found += [{"found": text(ranked[0]), "hidden": text(each)} for each in ranked[1:]]
    return found


def orphans(site: bytes, walked: Walked, owners: Mapping[bytes, List[str]]) -> List[Dict[str, Any]]:
    """Return folders of ``site-packages`` of which nobody owns a file: import finds them as packages.

    Folders that hold neither Python nor an object, and those that begin with a dot, are left out.
    """
    prefix = site + b"/"
    start = len(prefix)
    owned: Set[bytes] = set()
    held: Dict[bytes, List[bytes]] = {}
    for path in walked.files:
        end = path.find(b"/", start)
        first = path[start:end]
        if end < 0 or first in owned or not path.startswith(prefix):
            continue
        if path in owners:
            owned.add(first)
        elif path.endswith((b".py", b".so", b".pyc")):
            held.setdefault(first, []).append(path)
    return [
        {
            "folder": text(folder),
            "files": len(paths),
            "regular": prefix + folder + b"/__init__.py" in walked.files,
        }
        for folder, paths in sorted(held.items())
        if folder not in owned and folder.decode("ascii", "replace").isidentifier()
    ]


def compiled(root: bytes, files: Mapping[bytes, File]) -> Dict[str, Any]:
    """Return what of bytecode Python would run although it is not its source's image, by why.

    ``unchecked``: never compared with its source (PEP 552), and whether it still is its hash; ``alone``:
    legacy bytecode that stands in for a source that is gone.
    """
    unchecked: List[Dict[str, Any]] = []
    alone: List[str] = []
    seen = 0
    repeating: Set[bytes] = set()
    for path in files:
        if not path.endswith(b".pyc"):
            continue
        seen += 1
        source = bytecode.source_of(path)
        if source is None:
            if path[:-1] not in files:
                alone.append(text(path))
            continue
        if source not in files:
            continue
        head = beginning(root, path, bytecode.HEADER.size)
        flags = struct.unpack_from("<I", head, 4)[0] if len(head) == bytecode.HEADER.size else -1
        if flags == bytecode.UNCHECKED_HASH:
            unchecked.append({"path": text(path), "stale": _is_stale(root, head, source)})
        elif _repeats(root, path, source):
            repeating.add(path)
    return {"files": seen, "unchecked": unchecked, "alone": sorted(alone), "repeating": repeating}


def user_site(python: Optional[str]) -> Dict[str, Any]:
    """Return the user site of the agent's user, and the distributions in it (PEP 370)."""
    folder = os.path.expanduser(f"~/.local/lib/python{python}/site-packages")
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    found = (name[: -len(".dist-info")].partition("-") for name in names if name.endswith(".dist-info"))
    return {
        "path": folder,
        "installed": {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in found},
    }


def _is_stale(root: bytes, head: bytes, source: bytes) -> Optional[bool]:
    try:
        with open(os.path.join(root, source), "rb") as file:
            content = file.read()
    except OSError:
        return None
    magic = struct.unpack_from("<I", head)[0]
    return head[8:] != bytecode.source_hash(magic, content)


def _repeats(root: bytes, path: bytes, source: bytes) -> bool:
    try:
        return bytecode.repeats(
            os.fsdecode(os.path.join(root, path)), os.fsdecode(os.path.join(root, source))
        )
    except OSError:
        return False


def _is_script(path: bytes) -> bool:
    return path.startswith(b"bin/") and path.count(b"/") == 1


def _is_tool(path: bytes) -> bool:
    return b"/bin/" in path and posixpath.basename(path) in _TOOLS


def beginning(root: bytes, path: bytes, size: int) -> bytes:
    """Return the first bytes of a regular file, none where it cannot be read; no link is followed."""
    try:
        descriptor = os.open(
            os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return b""
    try:
        return os.read(descriptor, size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def read(path: Any) -> Optional[str]:
    """Return the text of a small file, at most 1 MiB; ``None`` where it cannot be read."""
    try:
        return regular.read(path, _LARGEST_TEXT).decode("utf-8", "surrogateescape")
    except OSError:
        return None


def owners_of(distributions: Iterable[Any]) -> Dict[bytes, List[str]]:
    """Return path → the distributions (``name==version``) whose RECORD names it."""
    found: Dict[bytes, List[str]] = {}
    for each in distributions:
        key = each.key
        for path in each.rows:
            found.setdefault(path, []).append(key)
    return found
