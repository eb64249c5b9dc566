"""The normal form of the few files whose bytes name a folder, a machine or an installer.

Two builds of one lock differ in them although nothing that runs differs; everything else is hashed as is.
"""

from __future__ import annotations

import os
import re
from typing import List

from hostenv.agent import recordfile

_DIST_INFO_LEFT_OUT = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_INTERPRETER = re.compile(rb"#![^\S\n]*(/[^\n]*?)/bin/python[0-9.]*[^\S\n]*\n")
_TRAMPOLINE = re.compile(rb"#!/bin/sh\n'''exec' [\"']?(/[^\n\"']*?)/bin/python[0-9.]*[\"']? ")
LARGEST_SCRIPT = 1 << 20


def pyvenv(content: bytes) -> bytes:
    """Keep of ``pyvenv.cfg`` the one key that changes what is imported.

    ``home`` and the version name the interpreter, which is reported beside the fingerprint; the rest is
    the tool's own.
    """
    for line in content.decode("utf-8", "surrogateescape").splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "include-system-site-packages":
            return b"include-system-site-packages = %s\n" % value.strip().lower().encode(
                "utf-8", "surrogateescape"
            )
    return b"include-system-site-packages = false\n"


def record(content: bytes) -> bytes:
    """Return a RECORD without what depends on installer, folder and bytecode, its lines sorted.

    Lines of left-out files and of bytecode go; scripts keep their line without hash and size, for they may
    hold the folder's path, and their own bytes are in the manifest. Installers write any order. What is no
    CSV is returned as it is.
    """
    rows, problems = recordfile.fields(content.decode("utf-8", "surrogateescape"))
    if problems:
        return content
    kept = sorted(",".join(_quoted(field) for field in _plain(row)) for row in rows if _is_kept(row[0]))
    return "".join(line + "\n" for line in kept).encode("utf-8", "surrogateescape")


def script(content: bytes, root: bytes) -> bytes:
    """Return a script with the environment's own path in its first lines replaced by ``{env}``.

    Any path that leads to ``root`` counts (a link that people use); one that leads elsewhere, or nowhere,
    stays: such a script runs another environment, or none.
    """
    for pattern in (_INTERPRETER, _TRAMPOLINE):
        found = pattern.match(content)
        if found and _is_same(found.group(1), root):
            return content[: found.start(1)] + b"{env}" + content[found.end(1) :]
    return content


def _is_same(one: bytes, other: bytes) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _is_kept(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return not name.endswith(".pyc") and not (name in _DIST_INFO_LEFT_OUT and folder.endswith(".dist-info"))


def _plain(row: List[str]) -> List[str]:
    return [row[0], "", ""] if row[0].startswith("../") and "/bin/" in row[0] else row


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if any(mark in field for mark in ',"\n\r') else field
