"""The folders in which kernels compiled at run time are kept, and the shared objects in them."""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import pwd
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hostenv.agent.elf import read_elf
from hostenv.agent.elfmodel import ElfError
from hostenv.agent.probe import disks
from hostenv.agent.probe.fact import UnknownError
from hostenv.agent.probe.tree import Tree

if TYPE_CHECKING:
    from hostenv.agent.elfmodel import Elf

_MOST_OBJECTS = 2000
_MOST_FOLDERS = 20_000
_BUILT_FOR = re.compile(r"(/[^\s:]+?)/lib/python3\.\d+/site-packages/")
_BUILD_FILE = "build.ninja"
_BUILD_FILE_LIMIT = 1 << 18


class Account(NamedTuple):
    """Whose caches are looked at: a login name, and its home."""

    name: str
    home: str


def account(user: Optional[str], environment: Mapping[str, str]) -> Account:
    """Return whose caches are used: ``user``'s, else the agent's own; HOME of the service counts."""
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = user or str(os.geteuid()), os.path.expanduser("~")
    return Account(name, environment.get("HOME") or home)


def caches(environment: Mapping[str, str], who: Account) -> List[Dict[str, Any]]:
    """Return every cache that the service's variables name, and every default one that is there."""
    try:
        mounts = disks.mounts(Tree())
    except OSError:
        mounts = []
    found = []
    data = pkgutil.get_data("hostenv.agent", "data/jitcaches.json")
    for entry in json.loads(data or b'{"caches": []}')["caches"]:
        path, variable = _place(entry, environment, who)
        if variable or os.path.isdir(path):
            found.append(_cache(entry["name"], path, variable, mounts))
    return found


def _place(
    entry: Mapping[str, Any], environment: Mapping[str, str], who: Account
) -> Tuple[str, Optional[str]]:
    for variable, below in entry["variables"]:
        if environment.get(variable):
            path = os.path.join(_at_home(environment[variable], who), below)
            return os.path.normpath(path), variable
    return _at_home(entry["default"].replace("{user}", who.name), who), None


def _at_home(path: str, who: Account) -> str:
    return who.home + path[1:] if path == "~" or path.startswith("~/") else path


def _cache(name: str, path: str, variable: Optional[str], mounts: Sequence[Any]) -> Dict[str, Any]:
    exists = os.path.isdir(path)
    nearest = _nearest(path)
    mount = _mount(mounts, nearest)
    paths, complete = _objects(path) if exists else ([], True)
    return {
        "name": name,
        "path": path,
        "variable": variable,
        "exists": exists,
        "usable": os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK),
        "owner": _owner(path) if exists else None,
        "filesystem": mount.kind if mount else None,
        "noexec": bool(mount and "noexec" in mount.options),
        "complete": complete,
        "objects": [_object(path, each) for each in paths],
    }


def _mount(mounts: Sequence[Any], path: str) -> Any:
    try:
        return disks.mount_of(list(mounts), os.path.realpath(path))
    except UnknownError:
        return None


def _nearest(path: str) -> str:
    """Return the path, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _owner(path: str) -> Optional[str]:
    number = os.stat(path).st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _objects(root: str) -> Tuple[List[str], bool]:
    """Return the paths of the shared objects below ``root``, and whether those are all."""
    found: List[str] = []
    folders = [root]
    for folder in folders:
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.name.endswith(".so"):
                found.append(entry.path)
        if len(found) > _MOST_OBJECTS or len(folders) > _MOST_FOLDERS:
            return sorted(found)[:_MOST_OBJECTS], False
    return sorted(found), True


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return


def _object(root: str, path: str) -> Dict[str, Any]:
    told: Dict[str, Any] = {
        "path": os.path.relpath(path, root),
        "needed": [],
        "needs_glibc": None,
        "needs_glibcxx": None,
        "built_for": _built_for(os.path.dirname(path)),
        "modified": 0.0,
        "problem": None,
    }
    try:
        told["modified"] = os.stat(path).st_mtime
        elf = read_elf(path)
    except (ElfError, OSError) as error:
        told["problem"] = str(error)
    else:
        told["needed"] = list(elf.needed)
        told["needs_glibc"] = _newest(elf, "GLIBC")
        told["needs_glibcxx"] = _newest(elf, "GLIBCXX")
    return told


def _newest(elf: Elf, prefix: str) -> Optional[str]:
    names = [version.name for need in elf.version_needs for version in need.versions]
    matches = [re.match(prefix + r"_(\d+(?:\.\d+)+)\Z", name) for name in names]
    numbers = [match.group(1) for match in matches if match]
    return max(numbers, key=lambda number: [int(part) for part in number.split(".")], default=None)


@functools.lru_cache(maxsize=_MOST_FOLDERS)
def _built_for(folder: str) -> Optional[str]:
    """Return the environment whose headers a folder's objects were compiled with, by their build file."""
    try:
        with open(os.path.join(folder, _BUILD_FILE), encoding="utf-8", errors="replace") as file:
            match = _BUILT_FOR.search(file.read(_BUILD_FILE_LIMIT))
    except OSError:
        return None
    return match.group(1) if match else None
