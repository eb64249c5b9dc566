"""What an environment refers to beyond its own files: interpreters of scripts, folders of ``.pth`` files.

No stat of the environment's files tells when these change.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from hostenv.agent import pyvenv
from hostenv.agent.layout import OWN
from hostenv.agent.siteparts import SHOWN, beginning, read
from hostenv.agent.tree import text

if TYPE_CHECKING:
    from hostenv.agent.walk import Walked

_EXEC_LINE = re.compile(rb"\A#!\s*([^\s\0]+)")


def outside(real: str, walked: Walked) -> Dict[str, Any]:
    """Return what of the facts no stat of the environment's files tells: what lies elsewhere, or beside them.

    That is the interpreters of scripts, what ``.pth`` files add, the machine, and a build's own notes.
    """
    root = os.fsencode(real)
    notes = os.path.join(real, OWN, "facts.json")
    return {
        "scripts": scripts(root, walked),
        "path_files": path_files(root, walked, {}),
        "described": pyvenv.describe(real),
        "notes": hashlib.sha256((read(notes) or "").encode("utf-8", "surrogateescape")).hexdigest(),
    }


def scripts(root: bytes, walked: Walked) -> List[Dict[str, Any]]:
    """Return the absolute interpreters that scripts in ``bin`` begin with, and whether each is there."""
    found: Dict[str, List[str]] = {}
    for path in [b"bin/" + name for name in walked.names(b"bin")]:
        line = _EXEC_LINE.match(beginning(root, path, 512).split(b"\n", 1)[0])
        if line and b"python" in line.group(1):
            found.setdefault(os.fsdecode(line.group(1)), []).append(text(path))
    here = os.fsdecode(root) + "/"
    return [
        {
            "interpreter": interpreter,
            "exists": os.path.exists(interpreter),
            "here": interpreter.startswith(here)
            or os.path.realpath(os.path.dirname(interpreter)) + "/" == here + "bin/",
            "scripts": names[:SHOWN],
            "count": len(names),
        }
        for interpreter, names in sorted(found.items())
    ]


def path_files(root: bytes, walked: Walked, owners: Mapping[bytes, List[str]]) -> List[Dict[str, Any]]:
    """Return every ``.pth`` file of site-packages: the folders that it adds, and the lines that are code."""
    found = []
    sites = sorted(folder for folder in walked.digests if folder.count(b"/") == 2)  # noqa: PLR2004  lib/X/Y
    for path in [site + b"/" + name for site in sites for name in walked.names(site)]:
        if path.endswith(b".pth"):
            content = read(os.path.join(root, path)) or ""
            lines = [line.rstrip() for line in content.splitlines() if line.strip() and line[0] != "#"]
            added = [line for line in lines if not line.startswith(("import ", "import\t"))]
            site = os.path.dirname(os.path.join(os.fsdecode(root), text(path)))
            found.append(
                {
                    "path": text(path),
                    "owners": owners.get(path, []),
                    "folders": {line: _offers(os.path.join(site, line)) for line in added},
                    "code": [line for line in lines if line not in added][:SHOWN],
                }
            )
    return found


def _offers(folder: str) -> Optional[List[str]]:
    """Return the names that a folder on ``sys.path`` offers for import; ``None`` where it is not there."""
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):  # a zero byte in the line: no folder has that name
        return None
    found = {name.split(".")[0] for name in names if name.endswith((".py", ".so"))}
    found.update(name for name in names if os.path.exists(os.path.join(folder, name, "__init__.py")))
    return sorted(found)
