"""What a resolution depends on, as normalised lines that compare: the inputs of a lock."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.requirements import Requirement

    from hostenv.spec.environment import Env
    from hostenv.spec.lockplatform import LockPlatform


def input_lines(env: Env, platform: LockPlatform) -> tuple[str, ...]:
    """Return one line an input (``env.requires: torch==2.11.0``): all that decides a lock but the index.

    Two specs have the same lines exactly where uv is asked the same. Indexes keep their order, which
    decides; requirements are sorted, since theirs does not.
    """
    sets = (
        ("env.requires", _normal(env.requires)),
        ("env.constraints", _normal(env.constraints)),
        ("env.overrides", _normal(env.overrides)),
        ("env.excludes", sorted(map(canonicalize_name, env.excludes))),
        ("env.prereleases", [env.prereleases]),
        ("env.exclude-newer", [utc(env.exclude_newer)] if env.exclude_newer else []),
        ("env.indexes", [" ".join(env.indexes)]),
        ("env.torch-backend", [env.torch_backend] if env.torch_backend else []),
        ("platform.python", [platform.python]),
        ("platform.arch", [platform.arch]),
        ("platform.glibc", [platform.glibc]),
    )
    return tuple(f"{key}: {value}" for key, values in sets for value in dict.fromkeys(values))


def digest_of(lines: Iterable[str]) -> str:
    """Return the sha256 of inputs' lines, in hex."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def changes(old: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Say how inputs' lines differ, one line a key: ``env.requires: + a==2, - a==1``."""
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    said: dict[str, list[str]] = defaultdict(list)
    for sign, here, there in (("+", after, before), ("-", before, after)):
        for line in here:
            if line not in there:
                key, _, value = line.partition(": ")
                said[key].append(f"{sign} {value}")
    return tuple(f"{key}: {', '.join(values)}" for key, values in said.items())


def utc(moment: dt.datetime) -> str:
    """Return a moment as RFC 3339 in UTC: ``2026-11-30T00:00:00Z``."""
    return moment.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def _normal(requirements: Iterable[Requirement]) -> list[str]:
    normal = []
    for requirement in requirements:
        same = copy.copy(requirement)
        same.name = canonicalize_name(same.name)
        same.extras = {canonicalize_name(extra) for extra in same.extras}
        normal.append(str(same))
    return sorted(normal)
