"""Filling a wheelhouse with the wheels of a lock."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted, megabytes
from hostenv.agent.wheelhouse import Wheel, Wheelhouse
from hostenv.errors import RefusedError, SupplyError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from hostenv.index.fetch import Progress
    from hostenv.spec.lock import Lock, LockEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchPlan:
    """The wheels of a lock that a wheelhouse lacks. ``wrong`` lie there with other bytes and go first."""

    lock: Lock
    wheelhouse: pathlib.Path
    missing: tuple[LockEntry, ...]
    wrong: tuple[LockEntry, ...]
    free: int

    @property
    def size(self) -> int:
        """Bytes to be fetched."""
        return sum(entry.size for entry in self.missing)

    def lines(self) -> tuple[str, ...]:
        """Say what is about to happen, a line each; nothing where nothing is missing."""
        if not self.missing:
            return ()
        removed = tuple(
            f"  remove {entry.filename}: not the bytes that the lock names" for entry in self.wrong
        )
        count = f"{len(self.missing)} of {counted(len(self.lock.entries), 'wheel')}"
        return (f"fetch    {count}, {megabytes(self.size)}, into {self.wheelhouse}", *removed)


def wheel_of(entry: LockEntry) -> Wheel:
    """Return a lock's entry as a wheelhouse knows it."""
    return Wheel(entry.sha256, entry.filename, entry.size)


def plan(lock: Lock, wheelhouse: pathlib.Path, *, remember: bool = True) -> FetchPlan:
    """Return what a wheelhouse on this machine lacks. No network; a verified wheel costs one stat.

    ``remember``: wheels that had to be hashed are noted as verified; without it nothing is written.
    """
    house = Wheelhouse(str(wheelhouse))
    try:
        verdicts = house.survey([wheel_of(entry) for entry in lock.entries], remember=remember)
    except OSError as error:
        raise SupplyError(f"{wheelhouse}: cannot be read: {error.strerror}") from error
    return FetchPlan(
        lock=lock,
        wheelhouse=wheelhouse,
        missing=tuple(e for e, said in zip(lock.entries, verdicts, strict=True) if said != "present"),
        wrong=tuple(e for e, said in zip(lock.entries, verdicts, strict=True) if said == "wrong"),
        free=free(wheelhouse),
    )


def apply(
    asked: FetchPlan,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    jobs: int | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Bring the missing wheels: all of them or a :class:`~hostenv.errors.SupplyError`, also by ``stop``.

    Raises :class:`RefusedError` before anything is written when they would not fit on the disk.
    """
    if not asked.missing:
        return
    if asked.size > asked.free:
        raise RefusedError(
            f"{asked.wheelhouse}: {megabytes(asked.size)} needed for the missing wheels, "
            f"{megabytes(asked.free)} free",
            hint="make room, or put host.root on another disk",
        )
    # requests takes 0.1 s to import, which a run that fetches nothing shall not pay
    from hostenv.index.fetch import JOBS, fetch  # noqa: PLC0415
    from hostenv.steps.locate import locate  # noqa: PLC0415

    sources, logins = locate(asked.lock, asked.missing)
    house = Wheelhouse(str(asked.wheelhouse))
    for entry in asked.wrong:
        house.discard(wheel_of(entry))
    fetch(sources, house, logins=logins, on_progress=on_progress, jobs=jobs or JOBS, stop=stop)


def paths(lock: Lock, wheelhouse: pathlib.Path) -> Sequence[pathlib.Path]:
    """Return where each wheel of a lock lies, in the lock's order."""
    house = Wheelhouse(str(wheelhouse))
    return [pathlib.Path(house.path(wheel_of(entry))) for entry in lock.entries]


def free(folder: pathlib.Path) -> int:
    """Return the bytes free where ``folder`` lies or will lie, or its parent where it may not be seen."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            return shutil.disk_usage(place).free
    raise SupplyError(f"{folder}: the space there cannot be asked for", hint="give an absolute path")
