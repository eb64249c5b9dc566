"""Judging a build on its host before anything switches to it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostenv.checks import abi_rules
from hostenv.checks.judge import judge
from hostenv.checks.record import UNVERIFIED, Incomplete
from hostenv.facts.site import LiveFacts
from hostenv.workflows.abifacts import AbiReader, host_of, kept_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.checks.judge import Verdict
    from hostenv.workflows.host import OpenHost
    from hostenv.workflows.session import Session

RULES = tuple(replace(rule, unknown_gates=True) if rule is UNVERIFIED else rule for rule in abi_rules.RULES)
"""Those of ``verify_abi``; what cannot be verified of a build from wheels is a fault of its making."""


def judged(
    session: Session, host: OpenHost, venv: str, kept: Mapping[str, Any], *, may_be_open: bool
) -> Verdict:
    """Return the verdict of every rule on a finished build and its host, the spec's waivers applied.

    All is read where it lies, as ``verify_abi`` reads it, but for what the build ``kept`` of its wheels.
    ``may_be_open``: it is current, or lies where another did; else no process that is hidden can have files
    of it open that were replaced since.
    """
    spec = host.spec
    reader = AbiReader(
        fleet=session.fleet,
        reach=host.reach,
        spec=spec,
        request=session.request,
        listener=session.listener,
        host=host_of(host.reach, spec, session.listener),
        saved=None,
    )
    answer = reader.objects(venv, cache=kept_answer(venv))
    facts = reader.facts(venv, answer, own=True).but(Incomplete(wheels=kept.get("incomplete", {})))
    if not may_be_open:
        facts = facts.but(replace(facts[LiveFacts], hidden=0))
    return judge(facts, RULES, spec.checks.allow, today=dt.datetime.now(dt.UTC).date()).on(spec.name)
