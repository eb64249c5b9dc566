"""What only several hosts together show: libraries that their ranks share must be the same on all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, Rule, Verdict, judge, merged
from hostenv.facts.site import SiteFacts

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.checks.waivers import Waiver

_NCCL = re.compile(r"libnccl\.so(?:\.\d+)*")
_UNUSED = "waiver-unused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A library in an environment: whose it is by RECORD (``name==version``), its size in bytes."""

    path: str
    owners: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        whose = " and ".join(each.replace("==", " ") for each in self.owners) or "nobody's"
        return f"{self.path}, {whose}, {self.size} bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """The libnccl of every host that is judged together with ``host``; ``locks``: which lock each one has."""

    host: str
    nccl: Mapping[str, tuple[Library, ...]]
    locks: Mapping[str, str]


def nccl_of(facts: Facts) -> tuple[Library, ...]:
    """Return the copies of libnccl in an environment."""
    site = facts[SiteFacts]
    return tuple(
        Library(path=site.within(each.path), owners=each.owners, size=each.size)
        for each in site.objects
        if _NCCL.fullmatch(each.name)
    )


def with_peers(verdict: Verdict, peers: Peers, waivers: Sequence[Waiver], *, today: dt.date) -> Verdict:
    """Return a host's verdict with what the hosts beside it add."""
    more = judge(Facts(peers), RULES, waivers, today=today)
    used = {each.finding.object for each in more.waived}
    return replace(
        verdict,
        findings=merged(
            (
                *(each for each in verdict.findings if each.rule != _UNUSED or each.object not in used),
                *(each for each in more.findings if each.rule != _UNUSED),
            )
        ),
        waived=(*verdict.waived, *more.waived),
        passed=verdict.passed and more.passed,
    )


def _differs(facts: Facts) -> Iterator[Finding]:
    """Yield where a host's libnccl is not what others have; those with the same lock should have the same."""
    peers = facts[Peers]
    mine = peers.nccl.get(peers.host, ())
    others = {
        host: theirs
        for host, theirs in peers.nccl.items()
        if theirs and mine and _kinds(theirs) != _kinds(mine)
    }
    if not others:
        return
    alike = any(peers.locks.get(host) == peers.locks.get(peers.host) for host in others)
    yield DIFFERS.finding(
        object="libnccl.so.2",
        severity=Severity.WARNING if alike else Severity.NOTE,
        message=f"libnccl is another one than on {', '.join(sorted(others))}: ranks of one group there hang "
        "or fail at their first collective",
        evidence=[
            f"{host}: {each}"
            for host, found in ((peers.host, mine), *sorted(others.items()))
            for each in found
        ],
        fix="build all hosts of a group from one lock; nox -s match -- REFERENCE TARGET compares the bytes",
    )


def _kinds(libraries: Sequence[Library]) -> set[tuple[tuple[str, ...], int]]:
    return {(each.owners, each.size) for each in libraries}


DIFFERS = Rule(
    id="nccl-differs",
    severity=Severity.WARNING,
    kind="K20",
    reference="https://github.com/vllm-project/vllm/issues/42354",
    check=_differs,
)
RULES = (DIFFERS,)
"""Catalogue K20, over the hosts of one call."""
