"""Locking exactly what is installed somewhere: which of it an index serves, and which it does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hostenv.errors import HostenvError, SupplyError
from hostenv.spec.environment import Env, Prereleases
from hostenv.steps import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.utils import NormalizedName

    from hostenv.facts.distributions import Installed
    from hostenv.spec.lock import Lock
    from hostenv.spec.lockplatform import LockPlatform

_NOT_SERVED = (
    re.compile(r"there (?:is|are) no versions? of ([A-Za-z0-9._-]+)"),
    re.compile(r"([A-Za-z0-9._-]+) was not found in (?:the|any)"),
    re.compile(r"([A-Za-z0-9._-]+)(?:==\S+)? has no (?:usable )?wheels"),
    re.compile(r"no wheel for [^:]+: ([A-Za-z0-9._-]+)"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """A lock of exactly these versions, the ``env`` that makes it, and what no index serves."""

    env: Env
    lock: Lock
    unserved: tuple[NormalizedName, ...]


def lock_pins(
    name: str,
    pins: Mapping[NormalizedName, str],
    platform: LockPlatform,
    *,
    left_out: Iterable[NormalizedName] = (),
    like: Env,
) -> Pinned:
    """Lock ``pins`` (name → version) for a platform; what no index serves is left out and named.

    ``left_out`` are excluded from the start: overlays bring them. Where what is installed contradicts its own
    metadata the pins become overrides, too. Indexes are those of ``like``. Raises :class:`SupplyError` where
    uv finds no solution for another reason.
    """
    asking = _Asking(name, pins, platform, set(left_out), like)
    while True:
        try:
            lock = asking.resolve()
        except SupplyError as error:
            if not asking.learn(error):
                raise
            continue
        if not asking.agrees(lock):
            continue
        return Pinned(env=asking.env, lock=lock, unserved=tuple(sorted(asking.unserved)))


def not_there(installed: Installed) -> set[NormalizedName]:
    """Return what installed distributions require and is not installed: the environment works without it."""
    markers = installed.tree.interpreter.markers()
    environment = dict(markers) if markers else None
    found: set[NormalizedName] = set()
    for line in (line for each in installed.distributions for line in each.requires):
        try:
            wanted = Requirement(line)
            applies = wanted.marker is None or wanted.marker.evaluate({**(environment or {}), "extra": ""})
        except (InvalidRequirement, UndefinedEnvironmentName, UndefinedComparison):
            continue  # verify_abi names it
        if applies:
            found.add(canonicalize_name(wanted.name))
    return found - {each.key for each in installed.distributions}


class _Asking:
    """What is known so far of what the index serves."""

    def __init__(
        self,
        name: str,
        pins: Mapping[NormalizedName, str],
        platform: LockPlatform,
        excluded: set[NormalizedName],
        like: Env,
    ) -> None:
        self._name = name
        self._pins = pins
        self._platform = platform
        self._excluded = excluded
        self._like = like
        self._overriding = False
        self.unserved: set[NormalizedName] = set()

    @property
    def env(self) -> Env:
        """What to ask for next."""
        gone = self._excluded | self.unserved
        requires = tuple(
            Requirement(f"{name}=={version}")
            for name, version in sorted(self._pins.items())
            if name not in gone
        )
        return Env(
            requires=requires,
            overrides=requires if self._overriding else (),
            excludes=tuple(sorted(gone)),
            prereleases=Prereleases.ALLOW,
            indexes=self._like.indexes,
            torch_backend=self._like.torch_backend,
        )

    def resolve(self) -> Lock:
        """Ask uv."""
        asked = resolve.plan(self._name, self.env, self._platform, current=None)
        if asked is None:
            raise TypeError("a lock that is not there cannot be fresh")
        return resolve.apply(asked)

    def learn(self, error: HostenvError) -> bool:
        """Take from a refusal what is not served, else that pins contradict metadata; ``False``: neither."""
        said = str(error)
        found = {canonicalize_name(match) for pattern in _NOT_SERVED for match in pattern.findall(said)} & (
            self._pins.keys() - self.unserved - self._excluded
        )
        if found:
            self.unserved |= found
            return True
        if not self._overriding:
            self._overriding = True
            return True
        return False

    def agrees(self, lock: Lock) -> bool:
        """Tell whether the lock is what is installed; learn what it lacks or has beyond."""
        wrong = {
            entry.name
            for entry in lock.entries
            if entry.name in self._pins
            and not _same(entry.version, self._pins[canonicalize_name(entry.name)])
        }
        beyond = {canonicalize_name(entry.name) for entry in lock.entries} - self._pins.keys()
        self.unserved |= {canonicalize_name(name) for name in wrong}
        self._excluded |= beyond
        return not (wrong or beyond)


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except ValueError:
        return one == other
