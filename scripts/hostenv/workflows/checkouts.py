"""Checkouts on a host that distributions come from: their commits become series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from hostenv.errors import InputError
from hostenv.spec.patchfile import read_patch
from hostenv.steps.serieswrite import Commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.utils import NormalizedName

    from hostenv.facts.distributions import Installed
    from hostenv.workflows.session import Session
    from hostenv.workflows.taking import Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The commits of a checkout on the host, and the release that they stand on."""

    version: str
    commits: tuple[Commit, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    folder: str
    revisions: str
    strip: str
    dist: NormalizedName | None


def read_checkouts(
    session: Session, reading: Reading, installed: Installed
) -> dict[NormalizedName, Checkout]:
    """Read the commits of the checkouts that the operator names, else the spec, by distribution.

    Raises :class:`InputError` where no installed distribution is of a checkout.
    """
    found: dict[NormalizedName, Checkout] = {}
    for each in _named(session, reading):
        answer = reading.agent.call(
            "checkout.commits", folder=each.folder, revisions=each.revisions, strip=each.strip
        )
        commits = tuple(Commit.from_answer(one) for one in answer)
        name = each.dist or _owner_of(each, commits, installed, reading.spec.name)
        found[name] = Checkout(version=_base_version(each, name, installed), commits=commits)
    return found


def _named(session: Session, reading: Reading) -> Iterator[_Named]:
    given, strip = session.request.from_git, session.request.strip or ""
    capture = reading.spec.capture
    if given:
        yield _Named(folder=given[0], revisions=given[1], strip=strip, dist=None)
        return
    for each in capture.sources if capture else ():
        yield _Named(
            folder=str(each.git), revisions=f"{each.base}..HEAD", strip=each.strip or "", dist=each.dist
        )


def _owner_of(named: _Named, commits: tuple[Commit, ...], installed: Installed, host: str) -> NormalizedName:
    """Return the distribution that a checkout is of: installed from there, or named as its folders."""
    tops = {
        canonicalize_name(change.target.partition("/")[0])
        for commit in commits
        for change in read_patch(commit.patch(host), strip=1)[1]
    }
    for each in installed.distributions:
        url = str((each.direct_url or {}).get("url", ""))
        if each.key in tops or url.removeprefix("file://").startswith(named.folder):
            return each.key
    raise InputError(
        f"{named.folder}: no installed distribution is of it; its commits touch {', '.join(sorted(tops))}",
        hint="--strip names the folder of the checkout that is installed (python/)",
    )


def _base_version(named: _Named, name: NormalizedName, installed: Installed) -> str:
    """Return the release that the commits stand on: what BASE is called, else what is installed."""
    base = named.revisions.partition("..")[0].rpartition("/")[2].removeprefix("v")
    try:
        return str(Version(base))
    except ValueError:
        return next((each.version for each in installed.distributions if each.key == name), base)
