"""Making a build current, staging it, holding a host where it is."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Any, Dict, List, Optional

from hostenv.agent import running
from hostenv.agent.amounts import counted
from hostenv.agent.files import put_in_place, remove, replace_link, sync_folder, write_json
from hostenv.agent.layout import Layout, read_json
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer

_ASIDE = ".before-hostenv-"
_NAMED = 8
"""Processes that a refusal names."""


def activate(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire,
    *,
    root: str,
    build: str,
    receipt: Dict[str, Any],
    who: Dict[str, Any],
    link: Optional[str] = None,
    adopt_link: bool = False,
    despite_running: bool = False,
    hold: Optional[Dict[str, Any]] = None,
    seen: Dict[str, Any],
) -> Dict[str, Any]:
    """Point ``current`` at a new generation of ``build``: the moment that changes the environment.

    ``seen`` is what the session planned from, ``generation`` and ``hold`` (its ``since``): refused where
    another session moved one of them since, so that nobody's rollback is undone by a build that began before.

    The generation, with its receipt inside, is complete and durable before the pointer moves; a build that
    is current already gets no other one, unless what leads to it is broken. ``hold`` becomes the host's hold,
    before the pointer moves, so that a rollback cut short is not undone by the next build; ``None`` lifts it,
    after. Returns the generation's number, the previous one, and the processes that ran through ``link``.
    """
    del wire
    layout = Layout(root)
    with sole_writer(layout, who):
        if build not in layout.sound_builds():
            raise AgentError(f"there is no finished build {build} under {layout.builds}", outcome="refused")
        before = layout.current_number()
        _check_seen(layout, before, seen)
        _sweep(layout)
        receipt_now = (layout.receipt(before) or {}) if before is not None else {}
        mends = layout.astray() is not None and receipt_now.get("build") == build
        moves = mends or receipt_now.get("build") != build
        through = _running_through(layout, link) if before is not None and moves else []
        if through and not despite_running:
            raise _RunningError(through)
        if not adopt_link:
            _check_link(layout, link)
        if hold:
            write_json(layout.hold, {**hold, "since": time.time()})
        left = receipt_now.get("previous") if mends else before  # what is mended is nothing to go back to
        number = _move(layout, left, build, {**receipt, "activated": who}) if moves else before
        _forget(layout.staged)
        if not hold:
            _forget(layout.hold)
        adopted = _make_link(layout, link)
        made = layout.receipt(number or 1) or {}
    return {
        "generation": number,
        "previous": made.get("previous"),
        "running": through,
        "adopted": adopted,
    }


def require_idle(wire: Wire, *, root: str, link: Optional[str] = None) -> None:
    """Raise where :func:`activate` would refuse to move on for processes that run through the link."""
    del wire
    through = _running_through(Layout(root), link)
    if through:
        raise _RunningError(through)


def stage(
    wire: Wire, *, root: str, build: str, receipt: Dict[str, Any], who: Dict[str, Any]
) -> Dict[str, Any]:
    """Record ``build`` as the one that the next switch takes, with the receipt it will get."""
    del wire
    layout = Layout(root)
    with sole_writer(layout, who):
        if build not in layout.sound_builds():
            raise AgentError(f"there is no finished build {build} under {layout.builds}", outcome="refused")
        staged = {"build": build, "receipt": receipt, "staged": time.time(), **who}
        write_json(layout.staged, staged)
    return staged


def history(wire: Wire, *, root: str) -> List[Dict[str, Any]]:
    """Return every generation's receipt, oldest first."""
    del wire
    layout = Layout(root)
    receipts = (layout.receipt(number) for number in layout.generation_numbers())
    return [receipt for receipt in receipts if receipt]


def _move(layout: Layout, before: Optional[int], build: str, receipt: Dict[str, Any]) -> int:
    """Write the next generation and point ``current`` at it."""
    number = max(layout.generation_numbers(), default=0) + 1
    _write_generation(layout, number, build, {**receipt, "previous": before, "made": time.time()})
    replace_link(layout.current, os.path.join("generations", str(number)))
    return number


class _RunningError(AgentError):
    """Processes would continue with other files than they started with."""

    def __init__(self, through: List[Dict[str, Any]]) -> None:
        named = "; ".join(f"pid {each['pid']} {each['name']} ({each['how']})" for each in through[:_NAMED])
        more = f"; and {len(through) - _NAMED} more" if len(through) > _NAMED else ""
        super().__init__(
            f"{counted(len(through), 'running process uses', 'running processes use')} the environment "
            f"through its link: {named}{more}",
            hint="their lazy imports would come from the new build; stop them, or pass --despite-running",
            outcome="refused",
        )


def _running_through(layout: Layout, link: Optional[str]) -> List[Dict[str, Any]]:
    return running.through(link, layout.current)


def _check_link(layout: Layout, link: Optional[str]) -> None:
    if link and os.path.lexists(link) and not _is_ours(layout, link):
        message = f"{link} exists and is not hostenv's link"
        hint = "--adopt-link moves it aside, to a name beside it, and puts the link in its place"
        raise AgentError(message, hint=hint, outcome="refused")


def _is_ours(layout: Layout, link: str) -> bool:
    return os.path.islink(link) and os.readlink(link) == os.path.join(layout.current, "env")


def _make_link(layout: Layout, link: Optional[str]) -> Optional[str]:
    """Create ``link`` where it is missing; what stands there is moved aside, and its new path returned.

    The new link is made under the name that the old thing will have, and the two change places: killed
    before that, it is a link of ours that the next one removes, and after it nothing is left to do.
    """
    if not link or _is_ours(layout, link):
        return None
    os.makedirs(os.path.dirname(link), exist_ok=True)
    for stray in glob.glob(f"{glob.escape(link)}{_ASIDE}*"):
        if _is_ours(layout, stray):
            os.unlink(stray)
    target = os.path.join(layout.current, "env")
    if not os.path.lexists(link):
        replace_link(link, target)
        return None
    aside = f"{link}{_ASIDE}{time.strftime('%Y%m%dT%H%M%S')}"
    while os.path.lexists(aside):
        aside += "-"
    os.symlink(target, aside)
    put_in_place(aside, link)
    sync_folder(os.path.dirname(link))
    return aside


def _write_generation(layout: Layout, number: int, build: str, receipt: Dict[str, Any]) -> None:
    os.makedirs(layout.generations, exist_ok=True)
    unfinished = os.path.join(layout.generations, f".tmp-{number}")
    os.mkdir(unfinished)
    os.symlink(os.path.join("..", "..", "builds", build), os.path.join(unfinished, "env"))
    write_json(os.path.join(unfinished, "receipt.json"), {**receipt, "generation": number, "build": build})
    os.rename(unfinished, layout.generation(number))
    sync_folder(layout.generations)


def _sweep(layout: Layout) -> None:
    """Remove what a killed activation left unfinished. What bears a number is whole, and stays."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(layout.generations):
            if name.startswith(".tmp-"):
                remove(os.path.join(layout.generations, name))


def _check_seen(layout: Layout, before: Optional[int], seen: Dict[str, Any]) -> None:
    held = (read_json(layout.hold) or {}).get("since")
    if (before, held) != (seen["generation"], seen["hold"]):
        message = "another session switched this host, or set or lifted its hold, since this one looked"
        hint = "run the session again: it plans from what is there now"
        raise AgentError(message, hint=hint, outcome="refused")


def _forget(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
