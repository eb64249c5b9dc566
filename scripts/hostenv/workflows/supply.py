"""How the wheels of a lock reach a host's wheelhouse."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from hostenv.machine import uv
from hostenv.steps import fetch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.spec.lock import Lock, LockEntry
    from hostenv.workflows.events import Listener
    from hostenv.workflows.host import OpenHost


class Supply:
    """The wheels that one host lacks, on this machine. ``remember``: see :func:`hostenv.steps.fetch.plan`."""

    def __init__(self, host: OpenHost, lock: Lock, *, remember: bool = True) -> None:
        self._host = host
        self._lock = lock
        self._wheelhouse = pathlib.Path(host.state.root, "wheelhouse")
        self._plan = fetch.plan(lock, self._wheelhouse, remember=remember)

    def plan(self) -> tuple[str, ...]:
        """Say what will be brought."""
        return self._plan.lines()

    def bring(self, listener: Listener) -> Mapping[str, str]:
        """Bring what is missing; return where each wheel lies on the host, by sha256."""
        name = self._host.spec.name
        if self._plan.missing:
            listener.phase(name, "fetch", self._plan.size)
            fetch.apply(self._plan, on_progress=lambda progress: listener.advance(name, progress.bytes_done))
        paths = fetch.paths(self._lock, self._wheelhouse)
        return {entry.sha256: str(path) for entry, path in zip(self._lock.entries, paths, strict=True)}

    def local_wheel(self, entry: LockEntry) -> pathlib.Path:
        """Return a wheel's path on this machine: a series is computed on the controller."""
        one = fetch.paths(self._lock, self._wheelhouse)[self._lock.entries.index(entry)]
        return pathlib.Path(one)


def uv_on(host: OpenHost) -> str:
    """Return the uv that makes builds on a host: on this machine the environment's own."""
    del host
    return str(uv.binary())
