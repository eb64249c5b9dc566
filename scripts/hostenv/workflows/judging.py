"""Judging a build from what was read of it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostenv.checks import rules
from hostenv.checks.judge import Facts, judge
from hostenv.checks.metadata import Wanted
from hostenv.checks.record import UNVERIFIED, Applied, Incomplete
from hostenv.facts.distributions import Installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.checks.judge import Verdict
    from hostenv.spec.spec import Spec

RULES = tuple(replace(rule, unknown_gates=True) if rule is UNVERIFIED else rule for rule in rules.RULES)
"""Those of a build that was made from wheels: what cannot be verified of it is a fault of its making."""

_OWN = ("settled", "applied", "overlaid", "incomplete")
"""What a build keeps beside the facts of its distributions."""


def judged(spec: Spec, facts: Mapping[str, Any]) -> Verdict:
    """Return the verdict of every rule over a build's kept facts, the spec's waivers applied."""
    installed = Installed.from_answer(
        {key: value for key, value in facts.items() if key not in _OWN}, spec.name
    )
    wanted = Wanted(requires=spec.env.requires, overrides=spec.env.overrides, excludes=spec.env.excludes)
    incomplete = Incomplete(wheels=facts.get("incomplete", {}))
    known = Facts(installed, wanted, Applied(files=facts["applied"]), incomplete)
    return judge(known, RULES, spec.checks.allow, today=dt.datetime.now(dt.UTC).date()).on(spec.name)
