"""What an operator asked of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What an operator asked of a session. ``hosts`` are the words as typed: names, ``@tag``, ``@all``."""

    session: str
    hosts: tuple[str, ...]
    json: pathlib.Path | None = None
    dry_run: bool = False
    jobs: int = 8
    stage: bool = False
    relock: bool = False
    remake: bool = False
    """Make the build anew though it is there."""
    upgrade: tuple[str, ...] | None = None
    """``None``: keep every locked version; an empty name: upgrade all; else the named distributions."""
    venv: str | None = None
    """Another environment on the host, built by anyone."""
    facts: pathlib.Path | None = None
    """Saved facts to judge against, instead of the host's own."""
    suggest: bool = False
    """Look for the smallest change that makes a failing environment pass."""
    reference: str | None = None
    """An environment that works, from which whole distributions may be taken: HOST, HOST:PATH, or a path."""
    save: bool = False
    discard_edits: bool = False
    """Save what was edited by hand on a target as a patch, and go on."""
    from_drift: bool = False
    """Capture a reference that is not what its spec says, first."""
    from_git: tuple[str, str] | None = None
    """A checkout on the host, and BASE..BRANCH in it, that a distribution's changes come from."""
    strip: str | None = None
    replace: bool = False
    """Let a capture replace its class although somebody edited it, or it is another environment's."""
    python: str | None = None
    """A minor version to lock for, where the spec allows several."""
    despite_running: bool = False
    despite_unknown: bool = False
    """Prune although some processes cannot be looked into."""
    rehash: bool = False
    manifest: pathlib.Path | None = None
    """A manifest that a capture wrote, to hold environments against."""
    diff: bool = False
    wheels: bool = False
    adopt_link: bool = False
    build: str | None = None
    why: str | None = None
    serial: int | None = None
    """This many hosts at a time, instead of ``jobs``."""
    max_fail: int | None = None
    """Start no further host once more than these have failed; ``None``: all are worked on."""
