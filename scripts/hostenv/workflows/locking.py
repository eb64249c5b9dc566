"""The lock that a host builds from: read, found stale, made again."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.errors import HostError, InputError, RefusedError
from hostenv.spec.lockplatform import LockPlatform
from hostenv.steps import lockfile, resolve
from hostenv.steps.make import NO_PYTHON, pythons_of

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from hostenv.facts.root import RootState
    from hostenv.machine.agent import Agent
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.lock import Lock
    from hostenv.spec.spec import Spec
    from hostenv.steps.resolve import ResolvePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Locked:
    """A lock that answers the spec. ``asked`` is set where it was just made and is not written yet."""

    lock: Lock
    path: pathlib.Path
    asked: ResolvePlan | None
    before: Lock | None

    def plan(self) -> tuple[str, ...]:
        """Say why it was made again and what differs; nothing where the file already holds it."""
        if self.asked is None:
            return ()
        why = "; ".join(self.asked.reasons)
        changed = resolve.differences(self.before, self.lock)
        shown = changed if self.before else ()
        return (
            f"lock     {self.path.name}: {why}; {counted(len(self.lock.entries), 'package')}",
            *(f"           {line}" for line in shown),
        )

    def write(self) -> None:
        """Write what was made."""
        if self.asked is not None:
            lockfile.store(self.lock, self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """A lock of this session, for whom and for which platform it was had."""

    host: str
    platform: LockPlatform
    locked: Locked


class Locker:
    """Finds or makes the locks of one session. Hosts that share a lock share one resolution."""

    def __init__(self, fleet: Fleet, *, upgrade: tuple[str, ...] | None, relock: bool) -> None:
        self._fleet = fleet
        self._upgrade = tuple(name or resolve.ALL for name in upgrade or ())
        self._relock = relock
        self._resolving = threading.Lock()
        self._made: dict[pathlib.Path, _Made] = {}

    def lock(
        self, spec: Spec, platform: LockPlatform, announce: Callable[[], None], *, allowed: bool = False
    ) -> Locked:
        """Return the lock of a spec for a platform.

        A missing or stale lock is made where the host is local, ``allowed`` is set, or the operator asked
        for it (``--relock``, ``--upgrade``); else it is refused, with what changed. Raises
        :class:`InputError` for a host whose platform is not that of the host which had this lock before.
        """
        may = allowed or spec.is_local or self._relock or bool(self._upgrade)
        path = self._fleet.lock_path(spec, python=platform.python, arch=platform.arch)
        with self._resolving:
            made = self._made.get(path)
            if made is None:
                locked = self._find(spec, platform, path, announce if may else None)
                made = self._made[path] = _Made(host=spec.name, platform=platform, locked=locked)
        if made.platform != platform:
            raise InputError(
                f"{made.host} and {spec.name} share envspecs/locks/{path.name}, with glibc "
                f"{made.platform.glibc} and {platform.glibc}",
                hint="set platform.glibc in what both extend, to the oldest of its hosts",
            )
        return made.locked

    def answering(self, spec: Spec, platform: LockPlatform) -> Lock | None:
        """Return the lock that lies there where it answers the spec as it is; nothing is resolved."""
        path = self._fleet.lock_path(spec, python=platform.python, arch=platform.arch)
        there = lockfile.load(path, document=f"envspecs/locks/{path.name}")
        stale = there and resolve.plan(spec.lock_owner, spec.env, platform, current=there)
        return None if stale else there

    def _find(
        self, spec: Spec, platform: LockPlatform, path: pathlib.Path, announce: Callable[[], None] | None
    ) -> Locked:
        shown = f"envspecs/locks/{path.name}"
        before = lockfile.load(path, document=shown)
        asked = resolve.plan(spec.lock_owner, spec.env, platform, current=before, upgrade=self._upgrade)
        if asked is None and before is not None:
            return Locked(lock=before, path=path, asked=None, before=before)
        if asked is None or announce is None:
            reasons = "\n".join(f"  {reason}" for reason in (asked.reasons if asked else ()))
            raise RefusedError(
                f"{spec.name}: {shown} does not answer the spec:\n{reasons}",
                hint=f"nox -s lock -- {spec.name} makes it; --relock lets this session do it",
            )
        announce()
        return Locked(lock=resolve.apply(asked), path=path, asked=asked, before=before)


def platform_of(
    spec: Spec, state: RootState | None, agent: Agent | None, *, python: str | None = None
) -> LockPlatform:
    """Return the platform to lock for: the spec's, completed by what the host says.

    ``python`` is a minor version that the operator chose among those that the spec allows.
    Raises :class:`InputError` where neither says it, or no lock can be made for it,
    :class:`RefusedError` where the host could not run what is locked: nothing has been downloaded yet.
    """
    arch = spec.platform.arch or (state.arch if state else None)
    glibc = (
        ".".join(map(str, spec.platform.glibc)) if spec.platform.glibc else (state.glibc if state else None)
    )
    if python and not spec.platform.python.contains(f"{python}.0"):
        raise InputError(
            f"{spec.path.name}: platform.python is {spec.platform.python}, which excludes {python}"
        )
    python = python or spec.platform.python_minor or _python_of(spec, agent)
    missing = {"platform.arch": arch, "platform.glibc": glibc, "platform.python": python}
    unknown = [key for key, value in missing.items() if not value]
    if unknown:
        raise InputError(
            f"{spec.path.name}: {', '.join(unknown)}: not in the spec, and the host does not say",
            hint="set it in [platform]",
        )
    try:
        platform = LockPlatform(python=str(python), arch=str(arch), glibc=str(glibc))
    except ValueError as error:
        raise InputError(f"{spec.path.name}: platform: {error}") from error
    if state:
        _require_fit(spec.name, platform, state)
    return platform


def _require_fit(host: str, platform: LockPlatform, state: RootState) -> None:
    """Refuse a host on which wheels of the platform would not load (PEP 600): one with an older glibc."""
    if state.glibc is None or _numbers(state.glibc) < _numbers(platform.glibc):
        has = f"glibc {state.glibc}" if state.glibc else "no glibc: another C library"
        raise RefusedError(
            f"{host}: the host has {has}, the lock needs {platform.glibc}",
            hint="set platform.glibc to the host's and lock again; wheels for less may exist"
            if state.glibc
            else "hostenv's locks are of manylinux wheels, which need glibc",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _python_of(spec: Spec, agent: Agent | None) -> str | None:
    """Choose a minor version where the spec leaves it open: the controller's own, or the newest that fits."""
    if agent is None:
        return None
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if spec.is_local and spec.platform.python.contains(f"{own}.0"):
        return own
    fitting = [each for each in pythons_of(agent) if spec.platform.python.contains(each.version)]
    if not fitting and spec.supply.python and spec.platform.python.contains(spec.supply.python.version):
        return ".".join(str(spec.supply.python.version).split(".")[:2])
    if not fitting:
        there = ", ".join(f"{each.version} ({each.path})" for each in pythons_of(agent)) or "none"
        raise HostError(
            f"{spec.name}: no CPython fits {spec.platform.python}; found: {there}",
            hint=f"{NO_PYTHON}; or name an archive of one in [supply.python]",
        )
    return ".".join(fitting[0].version.split(".")[:2])
