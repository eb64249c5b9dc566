"""``platform.driver-min`` is held against the driver that is there."""

from __future__ import annotations

import datetime as dt

import pytest
from packaging.version import Version

from hostenv.checks.driver_floor import RULES, DriverFloor
from hostenv.checks.judge import Facts, judge
from hostenv.facts.gpu_code import GpuTargets


def severities(minimum: str | None, driver: str | None) -> list[str]:
    floor = DriverFloor(minimum=Version(minimum) if minimum else None)
    facts = Facts(floor, GpuTargets(gpus=(), driver=driver, cuda=None))
    findings = judge(facts, RULES, today=dt.date(2026, 12, 1)).findings
    assert {(finding.rule, finding.kind) for finding in findings} <= {("driver-below-spec", "K21")}
    return [finding.severity for finding in findings]


@pytest.mark.parametrize(
    ("minimum", "driver", "expected"),
    [
        ("580.65.06", "580.65.05", ["error"]),
        ("580.65.06", "575.57.08", ["error"]),
        ("580.65.06", "580.65.06", []),
        ("580.65.06", "580.159.04", []),
        ("580", "580.65.06", []),
        ("580.65.06", None, ["unknown"]),
        ("580.65.06", "strange", ["unknown"]),
        (None, "470.1", []),
        (None, None, []),
    ],
)
def test_a_driver_below_the_floor_is_an_error(
    minimum: str | None, driver: str | None, expected: list[str]
) -> None:
    assert severities(minimum, driver) == expected
