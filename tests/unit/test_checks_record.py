"""RECORD integrity: each fault, and a sound twin that stays silent."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from hostenv.checks import record
from hostenv.checks.finding import Finding, Severity
from hostenv.checks.judge import Facts, judge
from hostenv.checks.metadata import Wanted
from hostenv.checks.record import Applied
from hostenv.facts.distributions import Conflict, Mismatch
from hostenv.facts.manifest import TreeProblem
from kit.facts import SITE, TREE, a_distribution, an_environment

SHIPPED, PATCHED, OTHER = "1" * 64, "2" * 64, "3" * 64
EDITED = a_distribution(
    "sglang", mismatched=(Mismatch(path=f"{SITE}/sglang/a.py", recorded=SHIPPED, found=PATCHED),)
)


def found(*facts: object) -> list[Finding]:
    return list(judge(Facts(*facts), record.RULES, today=dt.date(2026, 12, 1)).findings)


def rules(*facts: object) -> list[tuple[str, Severity, str]]:
    return [(finding.rule, finding.severity, finding.object) for finding in found(*facts)]


def test_a_sound_environment_is_silent() -> None:
    assert found(an_environment(a_distribution("sglang"))) == []


def test_an_edited_file_is_an_error_that_names_both_digests() -> None:
    (finding,) = found(an_environment(EDITED))
    assert (finding.rule, finding.severity, finding.object) == ("record-integrity", Severity.ERROR, "sglang")
    assert finding.evidence == (f"sglang/a.py: recorded {'1' * 12}…, found {'2' * 12}…",)


def test_what_mends_a_file_is_the_installer_that_laid_it() -> None:
    environment = an_environment(EDITED, conflicts=(conflict("build_backend.py", SHIPPED),))
    fixes = {finding.rule: finding.fix for finding in found(environment)}
    assert fixes["record-integrity"] == (
        "uv pip install --reinstall --no-deps sglang==1.0, with that environment active"
    )
    assert "--no-deps sglang-kernel==0.4" in (fixes["record-conflict-chance"] or "")
    own = found(environment, Wanted(), Applied(files={"sglang/a.py": SHIPPED}))
    assert {finding.rule for finding in own} >= {"record-conflict-chance", "series-applied"}
    for finding in (*found(environment, Wanted()), *own):
        if finding.rule in {"record-integrity", "record-conflict-chance", "series-applied"}:
            assert (finding.fix or "").startswith("nox -s build_env -- HOST --remake makes the build anew")


def test_many_edited_files_are_counted_not_listed() -> None:
    many = tuple(Mismatch(path=f"{SITE}/{n}.py", recorded=SHIPPED, found=OTHER) for n in range(100))
    (finding,) = found(an_environment(a_distribution("x", mismatched=many)))
    assert finding.message == "x 1.0: 100 files not as shipped"
    assert finding.evidence[-1] == "and 94 more"


def test_what_the_series_made_is_expected() -> None:
    environment = an_environment(
        replace(EDITED, missing=(f"{SITE}/sglang/removed.py",)), unowned={f"{SITE}/sglang/new.py": OTHER}
    )
    applied = Applied(files={"sglang/a.py": PATCHED, "sglang/new.py": OTHER, "sglang/removed.py": None})
    assert found(environment, applied) == []


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"sglang/a.py": OTHER}, "is not what the series makes of it"),
        ({"sglang/a.py": PATCHED, "sglang/b.py": OTHER}, "is as shipped"),
        ({"sglang/a.py": PATCHED, "sglang/gone.py": OTHER}, "is missing"),
        ({"sglang/a.py": None}, "is there although the series removes it"),
    ],
)
def test_a_series_that_is_not_whole_is_an_error(files: dict[str, str | None], word: str) -> None:
    environment = an_environment(replace(EDITED, missing=(f"{SITE}/sglang/gone.py",)))
    broken = [
        finding for finding in found(environment, Applied(files=files)) if finding.rule == "series-applied"
    ]
    assert len(broken) == 1
    assert word in broken[0].message


def test_missing_files_are_an_error() -> None:
    lacking = a_distribution("x", missing=(f"{SITE}/x/lib.so", "bin/x"))
    (finding,) = found(an_environment(lacking))
    assert finding.evidence == ("x/lib.so", "../../../bin/x")


def test_strays_are_warnings_bytecode_apart() -> None:
    strays = {f"{SITE}/stray.py": OTHER, f"{SITE}/x/__pycache__/y.cpython-312.pyc": OTHER}
    assert rules(an_environment(unowned=strays)) == [
        ("bytecode-stray", Severity.WARNING, "x/__pycache__/y.cpython-312.pyc"),
        ("record-unowned", Severity.WARNING, "stray.py"),
    ]


def conflict(path: str, found_digest: str) -> Conflict:
    claims = {"sgl-kernel==0.4": SHIPPED, "sglang-kernel==0.4": PATCHED}
    return Conflict(path=f"{SITE}/{path}", claims=claims, found=found_digest, winner="sglang-kernel==0.4")


def test_contested_paths_of_one_pair_are_one_finding() -> None:
    contested = tuple(conflict(f"sgl_kernel/{n}.so", PATCHED) for n in range(60))
    (finding,) = found(an_environment(conflicts=contested))
    assert (finding.rule, finding.severity, finding.object) == (
        "record-conflict",
        Severity.WARNING,
        "sglang-kernel",
    )
    assert "share 60 paths, with" in finding.message
    assert finding.evidence[0] == "sgl_kernel/0.so: has the bytes of sglang-kernel==0.4"


def test_a_contested_file_that_no_package_holds_is_a_note() -> None:
    assert [
        f.severity for f in found(an_environment(conflicts=(conflict("build_backend.py", PATCHED),)))
    ] == [Severity.NOTE]


def test_a_path_that_an_installers_race_decided_is_a_warning() -> None:
    by_chance = an_environment(conflicts=(conflict("build_backend.py", SHIPPED),))
    assert ("record-conflict-chance", Severity.WARNING, "build_backend.py") in rules(by_chance)


def test_what_cannot_be_verified_is_unknown() -> None:
    environment = an_environment(
        a_distribution("legacy", problems=("has no RECORD",)),
        a_distribution("linked", editable=True, direct_url={"url": "file:///src"}),
        tree=replace(TREE, problems=(TreeProblem(path=f"{SITE}/pipe", reason="is a FIFO"),)),
    )
    findings = found(environment)
    assert {(finding.object, finding.severity) for finding in findings} == {
        ("legacy", Severity.UNKNOWN),
        ("linked", Severity.WARNING),
        ("pipe", Severity.UNKNOWN),
    }
