"""What a host answers of its root, for tests that reach none."""

from __future__ import annotations

from typing import Any

from hostenv.facts.root import RootState

TB = 10**12


def root_state(*, arch: str = "x86_64", glibc: str | None = "2.34", free: int = TB) -> RootState:
    """Return the state of a bare host with a writable root."""
    answer: dict[str, Any] = {
        "root": "/srv/a",
        "machine": {"arch": arch, "glibc": glibc, "machine_id": "0" * 32},
        "free": free,
        "noexec": False,
        "unwritable": None,
        "builds": [],
        "unsound": [],
        "generation": None,
        "astray": None,
        "receipt": None,
        "generations": [],
        "staged": None,
        "hold": None,
        "link": None,
        "link_state": None,
    }
    return RootState.from_answer(answer, "a")
