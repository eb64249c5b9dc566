"""RECORD integrity: what lies there is what the wheels brought, and what the series made of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.checks.mending import REMAKE, anew, reinstalled
from hostenv.facts.distributions import Installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.distributions import Conflict, Distribution

_SHOWN = 6
"""Lines of evidence for one distribution; the rest is counted."""

LINK = "=> "
"""What stands before the target of a link that an overlay laid, in place of a digest."""

_REFERENCE = "https://packaging.python.org/en/latest/specifications/recording-installed-packages/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """What series and overlays make of files: path in site-packages → sha256, ``None`` for a removed one.

    A link has :data:`LINK` and its target.
    """

    files: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Incomplete:
    """Wheels that lack files of their own RECORD: file name → paths. uv's RECORD does not name them."""

    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _incomplete(facts: Facts) -> Iterator[Finding]:
    known = facts.get(Incomplete)
    for name, paths in (known.wheels if known else {}).items():
        yield INCOMPLETE.finding(
            object=name.partition("-")[0],
            message=f"{name} lacks {counted(len(paths), 'file')} of its own RECORD: what wants one fails",
            evidence=_some(list(paths)),
            fix="take another release, or tell its author",
        )


def _mismatches(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    expected = (facts.get(Applied) or Applied()).files
    for each in installed.distributions:
        changed = [
            f"{path}: recorded {item.recorded[:12]}…, found {(item.found or 'a link')[:12]}…"
            for item in each.mismatched
            if (path := installed.within_site(item.path)) not in expected
        ]
        if changed:
            yield _damaged(
                facts,
                each,
                f"{each.name} {each.version}: {counted(len(changed), 'file')} not as shipped",
                changed,
            )
        gone = [path for path in map(installed.within_site, each.missing) if path not in expected]
        if gone:
            yield _damaged(
                facts, each, f"{each.name} {each.version}: {counted(len(gone), 'file')} missing", gone
            )


def _damaged(facts: Facts, each: Distribution, message: str, paths: Sequence[str]) -> Finding:
    return INTEGRITY.finding(
        object=each.name,
        message=message,
        evidence=_some(paths),
        fix=anew(
            facts,
            also="; keep a wanted change as a series in patches/",
            otherwise=reinstalled(f"{each.name}=={each.version}"),
        ),
    )


def _series(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    found = {
        installed.within_site(item.path): item.found
        for each in installed.distributions
        for item in each.mismatched
    } | {installed.within_site(path): digest for path, digest in installed.unowned.items()}
    missing = {installed.within_site(path) for each in installed.distributions for path in each.missing}
    for path, digest in facts[Applied].files.items():
        if digest is None:
            fault = None if path in missing else "is there although the series removes it"
        elif path in found:
            wanted = None if digest.startswith(LINK) else digest
            fault = None if found[path] == wanted else "is not what the series makes of it"
        else:
            fault = "is missing" if path in missing else "is as shipped: the series was not applied"
        if fault:
            yield SERIES.finding(
                object=path,
                message=f"{path} {fault}: the code that runs is not the patched one",
                evidence=(
                    f"expected {digest or 'nothing'}",
                    f"found {found.get(path) or 'the shipped file'}",
                ),
                fix=REMAKE,
            )


def _unowned(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    expected = (facts.get(Applied) or Applied()).files
    strays = [path for path in map(installed.within_site, installed.unowned) if path not in expected]
    bytecode = [path for path in strays if path.endswith(".pyc")]
    others = [path for path in strays if not path.endswith(".pyc")]
    if bytecode:
        yield BYTECODE.finding(
            object=bytecode[0],
            message=f"{counted(len(bytecode), 'bytecode file')} repeating no source that lies beside: "
            "Python may run code that nobody sees",
            evidence=_some(bytecode),
            fix="remove them, or build the environment anew",
        )
    if others:
        yield UNOWNED.finding(
            object=others[0],
            message=f"{counted(len(others), 'file')} that no distribution owns: they came by hand, "
            "and no reinstall removes them",
            evidence=_some(others),
        )


def _conflicts(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    by_owners: dict[tuple[str, ...], list[Conflict]] = defaultdict(list)
    for conflict in installed.conflicts:
        by_owners[tuple(conflict.claims)].append(conflict)
    for owners, contested in by_owners.items():
        inside = [item for item in contested if "/" in installed.within_site(item.path)]
        lines = [
            f"{installed.within_site(item.path)}: has the bytes of {' and '.join(item.holders) or 'neither'}"
            for item in contested
        ]
        yield CONFLICT.finding(
            object=owners[-1].partition("==")[0],
            severity=Severity.WARNING if inside else Severity.NOTE,
            message=f"{' and '.join(owners)} share {counted(len(contested), 'path')}, with different bytes",
            evidence=_some(lines),
            fix="leave one of them out (excludes in the spec)" if inside else None,
        )


def _by_chance(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    for conflict in installed.conflicts:
        if conflict.holders and conflict.winner not in conflict.holders:
            path = installed.within_site(conflict.path)
            yield CHANCE.finding(
                object=path,
                message="contested paths have the bytes of whichever wheel was unpacked last, not those of "
                "the rule's winner: two builds of one lock may differ",
                evidence=(f"{path}: has {conflict.holders[0]}'s bytes, the rule says {conflict.winner}",),
                fix=anew(facts, also=": with the winner's bytes", otherwise=reinstalled(conflict.winner)),
                cause="record-conflict-chance",
            )


def _problems(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    for each in installed.distributions:
        if each.problems or each.unverified:
            kinds = [f"{path}: its hash is not sha256" for path in each.unverified]
            yield UNVERIFIED.finding(
                object=each.name,
                message=f"{each.name} {each.version} cannot be verified",
                evidence=_some([*each.problems, *kinds]),
            )
        if each.editable:
            yield UNVERIFIED.finding(
                object=each.name,
                severity=Severity.WARNING,
                message=f"{each.name} {each.version} is editable: its code lies elsewhere, unverified",
                evidence=(f"direct_url: {(each.direct_url or {}).get('url', 'unknown')}",),
                fix="install it as a wheel, or make it a series",
            )
    for problem in installed.tree.problems:
        yield UNVERIFIED.finding(
            object=installed.within_site(problem.path),
            message="paths that no manifest can hold: the environment has no fingerprint",
            evidence=(f"{problem.path} {problem.reason}",),
            cause="tree-problems",
        )


def _some(lines: Sequence[str]) -> tuple[str, ...]:
    rest = len(lines) - _SHOWN
    return (*lines[:_SHOWN], f"and {rest} more") if rest > 0 else tuple(lines)


INTEGRITY = Rule(
    id="record-integrity", severity=Severity.ERROR, kind="K53", reference=_REFERENCE, check=_mismatches
)
SERIES = Rule(
    id="series-applied",
    severity=Severity.ERROR,
    reference="patches/ of this repository",
    check=lambda facts: _series(facts) if facts.get(Applied) else (),
)
UNOWNED = Rule(id="record-unowned", severity=Severity.WARNING, reference=_REFERENCE, check=_unowned)
BYTECODE = Rule(
    id="bytecode-stray",
    severity=Severity.WARNING,
    kind="K52",
    reference="https://peps.python.org/pep-0552/",
    check=lambda _: (),
)
"""Found beside the other unowned files."""
CONFLICT = Rule(
    id="record-conflict", severity=Severity.WARNING, kind="K10", reference=_REFERENCE, check=_conflicts
)
CHANCE = Rule(
    id="record-conflict-chance",
    severity=Severity.WARNING,
    kind="K09",
    reference="https://github.com/astral-sh/uv/issues/15238",
    check=_by_chance,
)
INCOMPLETE = Rule(
    id="wheel-incomplete", severity=Severity.WARNING, reference=_REFERENCE, check=_incomplete, kind="K53"
)
UNVERIFIED = Rule(id="record-unverified", severity=Severity.UNKNOWN, reference=_REFERENCE, check=_problems)

RULES = (INTEGRITY, SERIES, UNOWNED, BYTECODE, CONFLICT, CHANCE, INCOMPLETE, UNVERIFIED)
