"""Asking uv which versions of some distributions go with the installed ones around them."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.errors import SupplyError
from hostenv.machine import uv
from hostenv.steps.compile import compile_pylock, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.utils import NormalizedName

    from hostenv.facts.distributions import Distribution
    from hostenv.spec.environment import Env
    from hostenv.spec.lockplatform import LockPlatform
    from hostenv.steps.pylock import PylockPackage


def alternatives(  # noqa: PLR0913  what is free, what is not, and for what
    names: Iterable[NormalizedName],
    beside: Iterable[Distribution],
    installed: Mapping[NormalizedName, Distribution],
    env: Env,
    platform: LockPlatform,
    *,
    also: Iterable[str] = (),
) -> Mapping[NormalizedName, PylockPackage] | None:
    """Return all that belongs to ``names`` and what stands ``beside`` them, in versions that go together.

    ``beside`` keeps its installed versions, everything else keeps them where it can; ``names`` are free but
    for what ``also`` says of them (``kernel!=1.2``). ``None`` where the index has no such set. Nothing is
    downloaded but metadata.
    """
    free = set(names)
    pins = [f"{each.name}=={each.version}" for each in beside if each.key not in free]
    with uv.scratch() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "requirements.in").write_text(
            "\n".join([*sorted(free), *pins, *also, ""]), encoding="utf-8"
        )
        kept = [
            f'[[packages]]\nname = "{each.key}"\nversion = "{each.version}"\n'
            for each in installed.values()
            if each.key not in free
        ]
        head = 'lock-version = "1.0"\ncreated-by = "hostenv"\n'
        (folder / "pylock.toml").write_text(head + "".join(kept), encoding="utf-8")
        arguments = ["requirements.in", "--prerelease", "allow", *reach(env.indexes, env.torch_backend)]
        try:
            packages = compile_pylock(arguments, platform, folder)
        except SupplyError:
            return None
    return {canonicalize_name(each.name): each for each in packages if each.version}
