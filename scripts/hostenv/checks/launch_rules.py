"""Rules on the service's arguments: what the GPU cannot do, catalogue K33 and K35."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.compiling import gpus
from hostenv.checks.finding import Severity
from hostenv.checks.jit_tables import is_older
from hostenv.checks.judge import Rule
from hostenv.checks.launch_tables import launch_tables
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts


def _arguments(kind: str, facts: Facts) -> Iterator[Finding]:
    service, installed = facts[ServiceSettings], facts[LoadFacts].installed
    told: set[tuple[str, str]] = set()
    for argument in launch_tables().arguments:
        option = argument.given(service)
        outdated = argument.until and not is_older(installed.get("sglang", "0"), argument.until)
        if option is None or outdated or argument.kind != kind or (option, argument.value) in told:
            continue
        refused = {cc: name for cc, name in gpus(facts).items() if not argument.works_on(cc)}
        if refused:
            told.add((option, argument.value))
            rule = ARGUMENT_ARCH if kind == ARGUMENT_ARCH.kind else ARGUMENT_FEATURE
            yield rule.finding(
                object=f"{option} {argument.value}",
                message=f"the server ends at its start or first request: {argument.value} does not work"
                f" on {', '.join(f'{name} ({cc})' for cc, name in refused.items())}",
                evidence=(f"service.args: {option} {argument.value}", f"known: {argument.source}"),
                fix=f"service.args: {option} {argument.instead}",
            )


ARGUMENT_ARCH = Rule(
    id="launch-arch",
    severity=Severity.ERROR,
    kind="K33",
    reference="https://github.com/sgl-project/sglang/issues/17880",
    check=lambda facts: _arguments("K33", facts),
)
ARGUMENT_FEATURE = Rule(
    id="launch-feature",
    severity=Severity.ERROR,
    kind="K35",
    reference="https://github.com/triton-lang/triton/issues/4319",
    check=lambda facts: _arguments("K35", facts),
)
RULES = (ARGUMENT_ARCH, ARGUMENT_FEATURE)
"""Catalogue K33 and K35 as far as launch arguments decide."""
