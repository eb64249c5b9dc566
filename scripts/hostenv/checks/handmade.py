"""What a hand-made environment has in a form of its own, so that it makes no build another one."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING

from hostenv.facts.manifest import Change

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hostenv.facts.manifest import Difference

_EXECUTABLE = 0o111


def aside(differences: Sequence[Difference], run_regardless: Collection[str]) -> tuple[str, ...]:
    """Return patterns of paths that need not be equal where one side was made by hand, the other by hostenv.

    Scripts look as the installer makes them; who may read or write a file is its umask's: only whether it is
    executable counts; bytecode as in :func:`stale`.
    """
    paths = [each.path for each in differences if _differs_by_umask(each)]
    return ("bin/*", *map(glob.escape, paths), *stale(differences, run_regardless))


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
    one, other = difference.reference, difference.target
    if difference.change is not Change.MODE or one is None or other is None:
        return False
    return bool(one.mode & _EXECUTABLE) == bool(other.mode & _EXECUTABLE)
