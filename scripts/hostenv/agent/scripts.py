"""Scripts of ``bin/``, as uv writes them into a relocatable environment (seen with 0.13.9, 2026-12-01)."""

from __future__ import annotations

import hashlib
import os
import re
from typing import BinaryIO, Dict, Mapping, Optional, Sequence

from hostenv.agent.wire import AgentError

_HEAD = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
"""
_BODY = """# -*- coding: utf-8 -*-
import sys
from {module} import {imported}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
"""
_ENTRY = re.compile(
    r"(?P<name>[^=\[\]/\s\0][^=\[\]/\0]*?)\s*=\s*(?P<module>[\w.]+)\s*:\s*(?P<function>[\w.]+)\s*(\[[^\]]*\])?"
)
_SHEBANG = re.compile(rb"#![^\n]*python[0-9.]*w?[^\n]*\n")
_TRAMPOLINE = re.compile(rb"#!/bin/sh\n'''exec' [^\n]*python[^\n]*\n' '''\n")
_LONGEST_HEAD = 64 << 10
"""Bytes of a script in which its head ends, if it has one that names an interpreter."""
_PIECE = 1 << 20
_LONGEST_NAME = 255
_SHOWN = 60
_GROUPS = ("console_scripts", "gui_scripts")


def entry_point_scripts(entry_points: Mapping[str, Sequence[str]], document: str) -> Dict[str, bytes]:
    """Return name → content of the scripts that an installer makes (the entry-points specification).

    Raises :class:`AgentError` for a line of ``document`` that is none, and for a name that no file can
    have: one with a folder in it would leave ``bin/``.
    """
    made = {}
    for group in _GROUPS:
        for line in entry_points.get(group, ()):
            match = _ENTRY.fullmatch(line)
            if not match or match.group("name") in {".", ".."}:
                message = f"{document}: {line[:_SHOWN]!r} is not 'name = module:function'"
                raise AgentError(message, hint="mend it where it was taken", outcome="input")
            if len(os.fsencode(match.group("name"))) > _LONGEST_NAME:
                message = f"{document}: {line[:_SHOWN]!r}… is longer than a file's name can be"
                raise AgentError(message, hint="mend it where it was taken", outcome="input")
            function = match.group("function")
            body = _BODY.format(
                module=match.group("module"), imported=function.split(".")[0], function=function
            )
            made[match.group("name")] = _HEAD + body.encode()
    return made


def relocate(source: BinaryIO, target: int) -> Optional[str]:
    """Fill the open file ``target`` with a script of some Python, so that it runs by the one beside it.

    Only its head differs from ``source``: the rest is copied, whatever its size. Returns the sha256 of what
    was written, and ``None`` where ``source`` is no such script, or is one already: ``target`` is then
    untouched.
    """
    start = source.read(_LONGEST_HEAD)
    found = _TRAMPOLINE.match(start) or _SHEBANG.match(start)
    if not found or found.group() == _HEAD:
        return None
    content = hashlib.sha256()
    os.ftruncate(target, 0)
    source.seek(found.end())
    with open(target, "wb", closefd=False) as file:
        piece = _HEAD
        while piece:
            content.update(piece)
            file.write(piece)
            piece = source.read(_PIECE)
    return content.hexdigest()
