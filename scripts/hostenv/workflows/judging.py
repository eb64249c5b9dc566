"""Judging a build from what was read of it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.checks.judge import Verdict
    from hostenv.spec.spec import Spec

_OWN = ("settled", "applied", "overlaid")
"""What a build keeps beside the facts of its distributions."""


def judged(spec: Spec, facts: Mapping[str, Any]) -> Verdict:
    """Return the verdict of every rule over a build's kept facts, the spec's waivers applied."""
    # 40 ms to import, which a run that has nothing to judge shall not pay
    from hostenv.checks.judge import Facts, judge  # noqa: PLC0415
    from hostenv.checks.metadata import Wanted  # noqa: PLC0415
    from hostenv.checks.record import Applied  # noqa: PLC0415
    from hostenv.checks.rules import RULES  # noqa: PLC0415
    from hostenv.facts.distributions import Installed  # noqa: PLC0415

    installed = Installed.from_answer(
        {key: value for key, value in facts.items() if key not in _OWN}, spec.name
    )
    wanted = Wanted(requires=spec.env.requires, overrides=spec.env.overrides, excludes=spec.env.excludes)
    known = Facts(installed, wanted, Applied(files=facts["applied"]))
    return judge(known, RULES, spec.checks.allow, today=dt.datetime.now(dt.UTC).date())
