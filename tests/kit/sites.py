"""Environments made of files, looked at as ``verify_abi`` does, and what rules say of them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hostenv.agent import sitelook
from hostenv.checks.judge import Facts, judge
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.objects import Load, LoadFacts, SharedObject
from hostenv.facts.site import LiveFacts, SiteFacts
from kit.environment import SITE, SilentWire

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Rule

TODAY = dt.date(2026, 12, 1)


def looked(venv: pathlib.Path, *known: object, full: bool = False) -> Facts:
    """Return what a look at ``venv`` finds, and ``known`` facts beside it."""
    tables = stack_tables().namespaces
    answer = sitelook.look(
        SilentWire(),
        venv=str(venv),
        full=full,
        namespaces={each.name: each.objects for each in tables},
        kernels=[each.package for each in tables],
    )
    facts = answer["facts"]
    return Facts(
        Installed.from_answer(facts["survey"], "test"),
        SiteFacts.from_answer(facts["site"], "test"),
        LiveFacts.from_answer(answer["live"], "test", answer["path"]),
        *known,
    )


def found(facts: Facts, rules: Iterable[Rule], rule: str) -> list[Finding]:
    """Return what the rules say of one kind: the findings of ``rule``."""
    findings = judge(facts, rules, today=TODAY).findings
    return [finding for finding in findings if finding.rule == rule]


def an_object(path: str, *needed: str, loads: bool = True, **why: str) -> SharedObject:
    """Return a shared object that loads, or does not for the reason in ``why`` (fields of :class:`Load`)."""
    load = Load(loads=loads, **why)
    return SharedObject(path=path, alone=load, after=load, machine=62, needed=needed)


def loads(*objects: SharedObject, cuda: str | None = "13.0", **installed: str) -> LoadFacts:
    """Return the loader's answers on these objects."""
    return LoadFacts(
        site=f"/venv/{SITE}",
        interpreter="/usr/bin/python3.12",
        glibc="2.36",
        package="torch",
        cuda=cuda,
        preload=Load(loads=True),
        objects=objects,
        not_objects={},
        owners={},
        built_for={},
        installed={name.replace("_", "-"): version for name, version in installed.items()},
    )
