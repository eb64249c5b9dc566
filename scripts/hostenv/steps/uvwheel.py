"""The wheel of uv for a host that has none: the version that hostenv itself runs with."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from hostenv.spec.environment import Env
from hostenv.steps import resolve

if TYPE_CHECKING:
    from hostenv.spec.lock import Lock
    from hostenv.spec.lockplatform import LockPlatform

BINARY = "uv-{version}.data/scripts/uv"
"""Where the program lies in the wheel: it links nothing but libc, and runs wherever it is put."""


def uv_lock(platform: LockPlatform) -> Lock:
    """Return a lock of one entry, the wheel of uv for hosts of ``platform``; asks the index.

    It is fetched, located and verified as any other lock. Raises
    :class:`~hostenv.errors.SupplyError` when the index has no such wheel.
    """
    version = importlib.metadata.version("uv")
    env = Env(requires=(Requirement(f"uv=={version}"),))
    asked = resolve.ResolvePlan(
        name="uv", env=env, platform=platform, current=None, upgrade=(), reasons=("a host has none",)
    )
    return resolve.apply(asked)
