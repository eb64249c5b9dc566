"""Metadata closure and wheel tags: each fault, and a sound twin that stays silent."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hostenv.checks import metadata, tags
from hostenv.checks.finding import Finding, Severity
from hostenv.checks.judge import Facts, judge
from hostenv.checks.metadata import Wanted
from kit.facts import INTERPRETER, TREE, a_distribution, an_environment


def found(*facts: object) -> list[Finding]:
    rules = (*metadata.RULES, *tags.RULES)
    return list(judge(Facts(*facts), rules, today=dt.date(2026, 12, 1)).findings)


def wanted(requires: str = "", overrides: str = "", excludes: str = "") -> Wanted:
    return Wanted(
        requires=tuple(map(Requirement, requires.split())),
        overrides=tuple(map(Requirement, overrides.split())),
        excludes=tuple(map(canonicalize_name, excludes.split())),
    )


@pytest.mark.parametrize(
    "requirement",
    [
        "beta",
        "Beta>=1",
        "beta[x]==2.*",
        "beta @ https://example.invalid/beta.whl",
        'gone; python_version < "3.12"',
        'gone; platform_machine == "aarch64"',
        'gone; sys_platform == "win32"',
        'gone; extra == "dev"',
        'gone; implementation_name != "cpython"',
        'gone; python_full_version > "3.12.1"',
    ],
)
def test_a_met_requirement_is_silent(requirement: str) -> None:
    assert (
        found(an_environment(a_distribution("alpha", "1.0", requirement), a_distribution("beta", "2.0rc1")))
        == []
    )


def test_a_missing_distribution_is_one_error_with_all_who_want_it() -> None:
    environment = an_environment(
        a_distribution("alpha", "1.0", "gone>=2"), a_distribution("beta", "2.0", 'gone; os_name == "posix"')
    )
    (finding,) = found(environment)
    assert (finding.rule, finding.severity, finding.object, finding.kind) == (
        "metadata-closure",
        Severity.ERROR,
        "gone",
        "K47",
    )
    assert finding.evidence == (
        "alpha 1.0 requires gone>=2",
        'beta 2.0 requires gone; os_name == "posix"',
    )


def test_a_version_that_does_not_fit_is_one_error() -> None:
    environment = an_environment(
        a_distribution("alpha", "1.0", "beta>=3"),
        a_distribution("gamma", "1.0", "beta<3", "beta==3.1"),
        a_distribution("beta", "2.0"),
    )
    (finding,) = found(environment)
    assert "beta 2.0 is installed where ==3.1 and >=3 is required" in finding.message


def test_extras_count_where_somebody_asks_for_them() -> None:
    beta = a_distribution(
        "beta", "2.0", 'gone; extra == "cuda"', 'delta[y]; extra == "cuda"', extras=("cuda",)
    )
    delta = a_distribution("delta", "1.0", 'far; extra == "y"')
    asked = an_environment(a_distribution("alpha", "1.0", "beta[cuda]"), beta, delta)
    assert [finding.object for finding in found(asked)] == ["far", "gone"]
    by_spec = an_environment(beta, delta)
    assert [finding.object for finding in found(by_spec, wanted("beta[CUDA]"))] == ["far", "gone"]
    assert found(by_spec) == []


def test_what_the_spec_requires_must_be_there() -> None:
    assert [finding.object for finding in found(an_environment(), wanted("alpha==1"))] == ["alpha"]


def test_an_override_stands_in_and_is_named_where_it_matters() -> None:
    alpha, beta = a_distribution("alpha", "1.0", "beta==1"), a_distribution("beta", "2.0")
    (finding,) = found(an_environment(alpha, beta), wanted(overrides="beta==2"))
    assert (finding.rule, finding.severity) == ("metadata-overridden", Severity.NOTE)
    assert "alpha 1.0 requires beta==1" in finding.evidence
    assert found(an_environment(alpha, a_distribution("beta", "1")), wanted(overrides="beta<2")) == []


def test_an_override_that_is_not_met_is_an_error() -> None:
    alpha, beta = a_distribution("alpha", "1.0", "beta"), a_distribution("beta", "2.0")
    (finding,) = found(an_environment(alpha, beta), wanted(overrides="beta==3"))
    assert finding.severity is Severity.ERROR


def test_an_override_whose_marker_is_false_drops_the_requirement() -> None:
    never = Wanted(overrides=(Requirement('gone; sys_platform == "never"'),))
    assert found(an_environment(a_distribution("alpha", "1.0", "gone")), never) == []


def test_excludes_are_one_note() -> None:
    alpha = a_distribution("alpha", "1.0", "torch==2.11", "triton")
    (finding,) = found(an_environment(alpha), wanted(excludes="torch triton"))
    assert (finding.severity, finding.object, finding.also) == (Severity.NOTE, "torch", ("triton",))


def test_a_requirement_that_cannot_be_read_is_unknown_and_gates() -> None:
    facts = Facts(an_environment(a_distribution("alpha", "1.0", "beta >= (")))
    verdict = judge(facts, metadata.RULES, today=dt.date(2026, 12, 1))
    assert [finding.severity for finding in verdict.findings] == [Severity.UNKNOWN]
    assert not verdict.passed


def test_an_unknown_python_makes_the_closure_unknown() -> None:
    tree = replace(TREE, interpreter=replace(INTERPRETER, version=None))
    severities = {finding.severity for finding in found(an_environment(a_distribution("alpha"), tree=tree))}
    assert severities == {Severity.UNKNOWN}


def test_two_versions_of_one_distribution_are_an_error() -> None:
    twice = an_environment(a_distribution("a.b", "1", info="x"), a_distribution("A_b", "2", info="y"))
    assert [(f.rule, f.object) for f in found(twice)] == [("metadata-duplicate", "a-b")]


@pytest.mark.parametrize(("requires_python", "rules"), [(">=3.13", ["metadata-python"]), (">=3.8,<4", [])])
def test_requires_python(requires_python: str, rules: list[str]) -> None:
    environment = an_environment(a_distribution("alpha", requires_python=requires_python))
    assert [finding.rule for finding in found(environment)] == rules


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-any",
        "py2.py3-none-any",
        "cp312-cp312-manylinux_2_34_x86_64",
        "cp39-abi3-manylinux2014_x86_64",
        "cp312-cp312-linux_x86_64",
        "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
    ],
)
def test_a_wheel_that_fits_is_silent(tag: str) -> None:
    assert found(an_environment(a_distribution("alpha", tags=(tag,)))) == []


@pytest.mark.parametrize(
    ("tag", "kind"),
    [
        ("cp311-cp311-manylinux_2_17_x86_64", "K46"),
        ("cp312-cp312-manylinux_2_17_aarch64", "K56"),
        ("cp312-cp312-manylinux_2_39_x86_64", "K14"),
        ("cp313-abi3-manylinux_2_17_x86_64", "K46"),
        ("cp312-cp312-musllinux_1_2_x86_64", "K14"),
        ("cp312-cp312t-manylinux_2_17_x86_64", "K46"),
        ("cp312-cp312-win_amd64", "K56"),
    ],
)
def test_a_wheel_for_another_platform_is_an_error(tag: str, kind: str) -> None:
    (finding,) = found(an_environment(a_distribution("alpha", tags=(tag,))))
    assert (finding.rule, finding.severity, finding.kind) == ("wheel-tags", Severity.ERROR, kind)
    assert finding.evidence == (f"wheel: {tag}", "host: cp312, x86_64, glibc 2.36")


@pytest.mark.parametrize("change", [{"libc": None}, {"abi": "cp312t"}, {"machine": "riscv64"}])
def test_tags_of_a_host_that_is_not_known_are_unknown(change: dict[str, Any]) -> None:
    tree = replace(TREE, interpreter=replace(INTERPRETER, **change))
    (finding,) = found(an_environment(a_distribution("alpha"), tree=tree))
    assert finding.severity is Severity.UNKNOWN
