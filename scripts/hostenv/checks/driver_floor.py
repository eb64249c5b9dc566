"""The rule on the driver that a spec asks for: ``platform.driver-min``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.facts.gpu_code import GpuTargets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFloor:
    """What a spec says of the driver: ``None``, nothing."""

    minimum: Version | None


def _below(facts: Facts) -> Iterator[Finding]:
    floor = facts.get(DriverFloor)
    if floor is None or floor.minimum is None:
        return
    driver = facts[GpuTargets].driver
    found = _version(driver)
    if found is None:
        yield BELOW.finding(
            object="driver",
            severity=Severity.UNKNOWN,
            message=f"not judged: whether the driver, of unknown version, is {floor.minimum} or later",
        )
    elif found < floor.minimum:
        yield BELOW.finding(
            object="driver",
            message=f"the driver is {driver}, and the spec asks for {floor.minimum} or later",
            evidence=(f"platform.driver-min: {floor.minimum}",),
            fix=f"upgrade the driver to {floor.minimum}, or lower platform.driver-min where less was proven",
        )


def _version(driver: str | None) -> Version | None:
    try:
        return Version(driver) if driver else None
    except ValueError:
        return None


BELOW = Rule(
    id="driver-below-spec",
    severity=Severity.ERROR,
    kind="K21",
    reference="https://docs.nvidia.com/deploy/cuda-compatibility/",
    check=_below,
)

RULES = (BELOW,)
