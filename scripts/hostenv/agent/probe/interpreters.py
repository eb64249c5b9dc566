"""The Python interpreters of the host, asked by absolute path without running any start-up file."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from hostenv.agent.probe.command import Command
from hostenv.agent.probe.fact import Json, UnknownError, known, unknown

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/*/bin",
    "/opt/python/*/bin",
    "/usr/local/python*/bin",
    "~/.pyenv/versions/*/bin",
    "~/.local/bin",
    "~/.local/share/uv/python/*/bin",
    "~/miniconda3/bin",
    "~/miniforge3/bin",
    "~/anaconda3/bin",
    "/root/.local/share/uv/python/*/bin",
)
_NAME = re.compile(r"python3(\.\d+)?\Z")
MOST = 40

# python -I -S -B: no site, no .pth, no bytecode written. Runs on every python3, so no new syntax.
_ASK = """\
import json, os, sys, sysconfig
values = sysconfig.get_config_vars()
paths = sysconfig.get_paths()
version = '.'.join(map(str, sys.version_info[:3]))
if sys.version_info[3] != 'final':
    version += {'alpha': 'a', 'beta': 'b', 'candidate': 'rc'}[sys.version_info[3]] + str(sys.version_info[4])
print(json.dumps({
    'version': version,
    'implementation': sys.implementation.name,
    'soabi': values.get('SOABI'),
    'prefix': sys.prefix,
    'virtual': sys.prefix != sys.base_prefix,
    'include': paths.get('include'),
    'headers': os.path.exists(os.path.join(paths.get('include') or '', 'Python.h')),
    'externally_managed': os.path.exists(os.path.join(paths['stdlib'], 'EXTERNALLY-MANAGED')),
    'sites': [path for path in sorted({paths['purelib'], paths['platlib']}) if os.path.isdir(path)],
}))
"""


class Interpreters:
    """All candidates, started side by side."""

    def __init__(self, path: str, tree: Tree) -> None:
        self._asked: List[Tuple[str, Any]] = []
        for candidate in candidates(path, tree):
            try:
                asked: Any = Command((candidate, "-I", "-S", "-B", "-c", _ASK), {})
            except UnknownError as error:
                asked = error
            self._asked.append((candidate, asked))

    def read(self, timeout: float) -> List[Json]:
        """Return one fact an interpreter."""
        found = []
        for path, asked in self._asked:
            how = f"{path} -I -S -B"
            try:
                if isinstance(asked, UnknownError):
                    raise asked
                found.append(known(dict(_understood(asked.result(timeout)), path=path), how))
            except UnknownError as error:
                found.append(unknown(error.reason, how))
        return found


def candidates(path: str, tree: Tree) -> List[str]:
    """Return the interpreters found, one path each: names that lead to one file count once.

    A shim that is a script (pyenv's) answers for another interpreter and is left out.
    """
    folders = [folder for folder in path.split(":") if folder.startswith("/")]
    for place in _PLACES:
        folders += tree.glob(os.path.expanduser(place))
    found: Dict[Tuple[int, int], str] = {}
    for folder in dict.fromkeys(folders):
        for name in sorted(_names(tree, folder), key=lambda name: (len(name), name)):
            candidate = os.path.join(folder, name)
            key = _executable(tree, candidate)
            if key is not None and not tree.exists(os.path.join(os.path.dirname(folder), "pyvenv.cfg")):
                found.setdefault(key, candidate)
    return list(found.values())[:MOST]


def _names(tree: Tree, folder: str) -> List[str]:
    try:
        return [name for name in tree.names(folder) if _NAME.match(name)]
    except OSError:
        return []


def _executable(tree: Tree, path: str) -> Optional[Tuple[int, int]]:
    try:
        with open(tree.path(path), "rb") as file:
            if file.read(4) != b"\x7fELF" or not os.access(path, os.X_OK):
                return None
            state = os.fstat(file.fileno())
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _understood(text: str) -> Json:
    try:
        answer = json.loads(text)
    except ValueError:
        raise UnknownError(f"answered: {text.strip()[:200]!r}") from None
    if not isinstance(answer, dict):
        raise UnknownError(f"answered: {text.strip()[:200]!r}")
    return answer
