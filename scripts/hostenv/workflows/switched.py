"""What an operator must know after a switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def notes_of(adopted: str | None, running: tuple[Mapping[str, Any], ...]) -> tuple[str, ...]:
    """Say what an operator must know after a switch."""
    moved = (f"what stood at the link is now {adopted}",) if adopted else ()
    return moved + tuple(
        f"pid {each['pid']} {each['name']} still runs through the link: restart it" for each in running
    )
