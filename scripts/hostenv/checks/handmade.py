"""What a hand-made environment has in a form of its own, so that it makes no build another one."""

from __future__ import annotations

import glob
import hashlib
import re
from typing import TYPE_CHECKING

from hostenv.facts.manifest import Change

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hostenv.facts.manifest import Difference

_EXECUTABLE = 0o111
_HEADS = (
    re.compile(r"#!/bin/sh\n'''exec' [^\n]*python[^\n]*\n' '''\n"),
    re.compile(r"#![^\n]*python[^\n]*\n"),
)
"""How a script names its interpreter, also where the path is too long for the kernel or relative."""

_STARTER = re.compile(
    r"""(?:\s+|\#[^\n]*\n|import\ (?:re|sys)\n|if\ __name__\ ==\ ['"]__main__['"]:\n
        |(?:el)?if\ sys\.argv\[0\]\.endswith\([^()\n]*\):\n|sys\.argv\[0\]\ =\ sys\.argv\[0\]\[:-\d+\]\n
        |sys\.argv\[0\]\ =\ sys\.argv\[0\]\.removesuffix\([^()\n]*\)\n
        |sys\.argv\[0\]\ =\ re\.sub\(r'[^'\n]*',\ '',\ sys\.argv\[0\]\)\n
        |from\ (?P<module>[\w.]+)\ import\ \w+\n|sys\.exit\((?P<function>[\w.]+)\(\)\)\n)+""",
    re.VERBOSE,
)
"""All that pip, uv, distlib and hostenv write for an entry point, and nothing else."""

_PIP = re.compile(r"bin/pip\d[\d.]*")
_STARTS_PIP = "pip._internal.cli.main:main"
"""The name that pip gives itself beside the entry points of its wheel, and what it starts."""


def script_form(text: str) -> str | None:
    """Return what a Python script is, however it names its interpreter and whoever wrote it.

    ``module:function`` of an entry point's script that does nothing else, the sha256 of what follows the
    first line of any other; ``None`` for what is no Python script.
    """
    head = next((found for pattern in _HEADS if (found := pattern.match(text))), None)
    if head is None:
        return None
    body = text[head.end() :]
    started = _STARTER.fullmatch(body if body.endswith("\n") else f"{body}\n")
    if started and started["module"] and started["function"]:
        return f"{started['module']}:{started['function']}"
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()


def is_script(path: str) -> bool:
    """Tell whether a path is where scripts lie. So do programs, which wheels bring (ninja, uv)."""
    return path.startswith("bin/") and path.count("/") == 1


def aside(
    differences: Sequence[Difference],
    run_regardless: Collection[str],
    reference: Mapping[str, str],
    target: Mapping[str, str],
) -> tuple[str, ...]:
    """Return patterns of paths that need not be equal where one side was made by hand, the other by hostenv.

    Scripts look as the installer makes them: ``reference`` and ``target`` are path → :func:`script_form`.
    Who may read or write a file is its umask's: only whether it is executable counts; bytecode as in
    :func:`stale`.
    """
    paths = [
        each.path
        for each in differences
        if _differs_by_umask(each) or _differs_by_installer(each, reference, target)
    ]
    return (*map(glob.escape, paths), *stale(differences, run_regardless))


def stale(differences: Sequence[Difference], run_regardless: Collection[str]) -> tuple[str, ...]:
    """Return patterns of bytecode that need not be equal where a side was made by hand.

    What matches no source is compiled anew by whoever imports it, unless Python runs it all the same
    (``run_regardless``, of both sides).
    """
    return tuple(
        glob.escape(each.path)
        for each in differences
        if each.path.endswith(".pyc") and each.path not in run_regardless
    )


def _differs_by_umask(difference: Difference) -> bool:
    return difference.change is Change.MODE and _are_alike_executable(difference)


def _differs_by_installer(
    difference: Difference, reference: Mapping[str, str], target: Mapping[str, str]
) -> bool:
    """Tell whether two scripts are one, or the only one is a further name of pip's."""
    one, other = reference.get(difference.path), target.get(difference.path)
    if difference.change in {Change.MISSING, Change.EXTRA}:
        return bool(_PIP.fullmatch(difference.path)) and _STARTS_PIP in {one, other}
    is_one = one is not None and one == other
    return difference.change is Change.CONTENT and is_one and _are_alike_executable(difference)


def _are_alike_executable(difference: Difference) -> bool:
    one, other = difference.reference, difference.target
    if one is None or other is None:
        return False
    return bool(one.mode & _EXECUTABLE) == bool(other.mode & _EXECUTABLE)
