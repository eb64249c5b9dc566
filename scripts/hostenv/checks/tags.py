"""Wheel tags against the host: a wheel for another Python, architecture or C library does not load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.tags import Tag, parse_tag

from hostenv.checks.finding import Severity
from hostenv.checks.judge import MissingFactError, Rule
from hostenv.facts.distributions import Installed
from hostenv.spec.lockplatform import LockPlatform

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.distributions import Distribution
    from hostenv.facts.interpreter import Interpreter


def host_tags(interpreter: Interpreter) -> Collection[Tag] | None:
    """Return the tags that a host takes, ``None`` where they cannot be told from its facts.

    They are computed for the host's Python, architecture and glibc, not for those of the controller.
    """
    python, glibc = interpreter.python, interpreter.glibc
    if python is None or glibc is None or interpreter.abi != f"cp{python.replace('.', '')}":
        return None
    try:
        return LockPlatform(python=python, arch=interpreter.machine, glibc=glibc).tag_ranks.keys()
    except ValueError:
        return None


def _tags(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed]
    interpreter = installed.tree.interpreter
    taken = host_tags(interpreter)
    if taken is None:
        raise MissingFactError(type(interpreter))
    host = f"{interpreter.abi}, {interpreter.machine}, {interpreter.libc}"
    for each in installed.distributions:
        stated = frozenset(tag for line in each.tags for tag in _parsed(line))
        if each.tags and not stated:
            yield TAGS.finding(
                object=each.name,
                severity=Severity.UNKNOWN,
                message=f"not judged: the tags of {each.name} {each.version} cannot be read",
                evidence=[f"WHEEL: Tag: {line}" for line in each.tags],
            )
        elif stated and stated.isdisjoint(taken):
            yield replace(_refused(each, host), kind=_kind(stated, taken, interpreter.machine))


def _kind(stated: Collection[Tag], taken: Collection[Tag], machine: str) -> str:
    """Return the kind: another Python, another C library, or another machine."""
    pythons = {(tag.interpreter, tag.abi) for tag in taken}
    fitting = [tag.platform for tag in stated if (tag.interpreter, tag.abi) in pythons]
    if not fitting:
        return "K46"
    return "K14" if any("linux" in each and each.endswith(machine) for each in fitting) else "K56"


def _parsed(line: str) -> Collection[Tag]:
    try:
        return parse_tag(line)
    except ValueError:
        return ()


def _refused(each: Distribution, host: str) -> Finding:
    return TAGS.finding(
        object=each.name,
        message=f"{each.name} {each.version} is a wheel for another platform: it does not load here",
        evidence=(f"wheel: {', '.join(each.tags)}", f"host: {host}"),
        fix="lock for this host's platform: nox -s lock -- HOST",
    )


TAGS = Rule(
    id="wheel-tags",
    severity=Severity.ERROR,
    kind="K46",
    reference="https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/",
    check=_tags,
    unknown_gates=True,
)

RULES = (TAGS,)
