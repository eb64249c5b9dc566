"""How files are put right: a build of hostenv's is made anew, any other environment by its own installer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.metadata import Wanted

if TYPE_CHECKING:
    from hostenv.checks.judge import Facts

REMAKE = "nox -s build_env -- HOST --remake makes the build anew"
"""``--remake``: without it a build that is there is nothing to do."""


def anew(facts: Facts, *, otherwise: str, also: str = "") -> str:
    """Return the fix for a build of the spec, with ``also`` after it, or for any other environment."""
    return REMAKE + also if facts.get(Wanted) else otherwise


def reinstalled(*pins: str) -> str:
    """Return the command that lays the files of releases (``name==version``) again, in any environment."""
    return f"uv pip install --reinstall --no-deps {' '.join(pins)}, with that environment active"
