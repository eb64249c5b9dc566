"""Environments broken on purpose: each fault is told, in bounded time, and none ends in a traceback."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import distinfo, objects, pyvenv, sitelook, siteoutside, walk
from hostenv.agent.binding import Members
from hostenv.agent.wire import AgentError
from hostenv.checks import metadata
from hostenv.checks.finding import Finding, Severity
from hostenv.checks.judge import Facts, judge
from hostenv.errors import InputError
from hostenv.facts.host_saved import SavedFacts
from kit.environment import SilentWire
from kit.facts import a_distribution, an_environment

if TYPE_CHECKING:
    import pathlib

    from hostenv.facts.distributions import Distribution

INFO = "lib/python3.12/site-packages/hx-1.0.dist-info"
MANY_DIGITS = "9" * 5000
DEEP = "[" * 100_000


@pytest.fixture
def venv(tmp_path: pathlib.Path) -> pathlib.Path:
    info = tmp_path / INFO
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hx\nVersion: 1.0\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
    (info / "RECORD").write_text("hx.py,,\n")
    return tmp_path


def problems(venv: pathlib.Path) -> list[str]:
    return distinfo.read(str(venv), INFO.encode()).problems


def found(*distributions: Distribution) -> list[Finding]:
    facts = Facts(an_environment(*distributions))
    return list(judge(facts, metadata.RULES, today=dt.date(2026, 12, 1)).findings)


@pytest.mark.parametrize("bits", [0, 1, 0x80, 0x100, 0xDEADBEEF << 77])
def test_members_are_the_bits_that_are_set(bits: int) -> None:
    members = Members(bits)
    assert [number for number in range(200) if number in members] == [
        place for place, digit in enumerate(reversed(f"{bits:b}")) if digit == "1"
    ]


@pytest.mark.parametrize("name", ["METADATA", "RECORD", "WHEEL", "direct_url.json"])
def test_a_pipe_in_dist_info_is_a_problem_and_no_wait(venv: pathlib.Path, name: str) -> None:
    (venv / INFO / name).unlink(missing_ok=True)
    os.mkfifo(venv / INFO / name)
    assert problems(venv) == [f"{name} cannot be read: is no regular file"]


def test_a_pipe_as_settings_says_nothing(venv: pathlib.Path) -> None:
    os.mkfifo(venv / "pyvenv.cfg")
    assert pyvenv.read(str(venv)) == {}


def test_metadata_of_no_end_is_read_in_part(venv: pathlib.Path) -> None:
    line = "Requires-Dist: gone\n"
    with (venv / INFO / "METADATA").open("a") as file:
        file.write(line * (5_000_000 // len(line)))
    read = distinfo.read(str(venv), INFO.encode())
    assert read.problems == ["METADATA is longer than 4 MB: what follows is not read"]
    assert (read.name, read.metadata["Requires-Dist"]) == ("hx", ["gone"])


def test_equal_requirements_count_once_in_their_order(venv: pathlib.Path) -> None:
    with (venv / INFO / "METADATA").open("a") as file:
        file.write("Requires-Dist: b\nRequires-Dist: a\nRequires-Dist: b\n")
    assert distinfo.read(str(venv), INFO.encode()).metadata["Requires-Dist"] == ["b", "a"]


def test_a_field_of_many_lines_keeps_them(venv: pathlib.Path) -> None:
    with (venv / INFO / "METADATA").open("a") as file:
        file.write("License: one\n" + "  two\n" * 500_000)
    (text,) = distinfo.read(str(venv), INFO.encode()).metadata["License"]
    assert text == "one" + "\ntwo" * 500_000


def test_a_size_of_thousands_of_digits_is_none() -> None:
    rows, bad = distinfo.rows(f"hx.py,,{MANY_DIGITS}\nhy.py,,7\n", b"s")
    assert ({path: row.size for path, row in rows.items()}, bad) == ({b"s/hx.py": None, b"s/hy.py": 7}, [])


def test_an_origin_that_nests_too_deeply_is_a_problem(venv: pathlib.Path) -> None:
    (venv / INFO / "direct_url.json").write_text(DEEP)
    (problem,) = problems(venv)
    assert problem.startswith("direct_url.json is not JSON: ")


@pytest.mark.parametrize(
    "line",
    [
        f"hx>={MANY_DIGITS}",
        f"hx==1.0,!={MANY_DIGITS}",
        f'hx; python_version < "{MANY_DIGITS}"',
        "hx; " + "(" * 100_000,
    ],
)
def test_a_requirement_that_cannot_be_judged_is_unknown(line: str) -> None:
    (finding,) = found(a_distribution("alpha", "1.0", line), a_distribution("hx", "1.0"))
    assert (finding.object, finding.severity) == ("alpha", Severity.UNKNOWN)
    assert finding.evidence[0].startswith(f"{a_distribution('alpha').info}: Requires-Dist: hx")
    assert len(finding.evidence[0]) < 500


def test_a_version_of_thousands_of_digits_meets_nothing() -> None:
    (finding,) = found(a_distribution("alpha", "1.0", "hx>=1"), a_distribution("hx", MANY_DIGITS))
    assert (finding.object, finding.severity) == ("hx", Severity.ERROR)


def test_a_python_of_thousands_of_digits_is_unknown() -> None:
    (finding,) = found(a_distribution("alpha", requires_python=f">={MANY_DIGITS}"))
    assert (finding.rule, finding.severity) == ("metadata-python", Severity.UNKNOWN)


@pytest.mark.parametrize(("absent", "told"), [(49, 50), (50, 51), (7000, 51)])
def test_of_very_many_unmet_requirements_the_rest_is_counted(absent: int, told: int) -> None:
    findings = found(a_distribution("alpha", "1.0", "no requirement", *(f"gone{i}" for i in range(absent))))
    assert len(findings) == told
    merged = [finding.severity for finding in findings if finding.object == f"and {absent - 49} more"]
    assert merged == {49: [], 50: [Severity.UNKNOWN], 7000: [Severity.ERROR]}[absent]


@pytest.mark.parametrize("content", [DEEP, '{"a":' * 100_000, MANY_DIGITS])
def test_saved_facts_that_no_parser_takes_are_an_error_of_input(tmp_path: pathlib.Path, content: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"facts.json: not JSON: "):
        SavedFacts.load(path)


def test_saved_facts_without_an_end_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "facts.json"
    os.mkfifo(path)
    for endless in (path, path.with_name("zero")):
        if endless != path:
            endless.symlink_to("/dev/zero")
        with pytest.raises(InputError, match="not a regular file"):
            SavedFacts.load(endless)
    os.truncate(os.open(tmp_path / "long", os.O_CREAT | os.O_WRONLY), 64_000_001)
    with pytest.raises(InputError, match="longer than 64 MB"):
        SavedFacts.load(tmp_path / "long")


def test_a_zero_byte_in_a_path_file_names_no_folder(venv: pathlib.Path) -> None:
    (venv / INFO).with_name("x.pth").write_bytes(b"a\0b\n")
    root = os.fsencode(venv)
    (told,) = siteoutside.path_files(root, walk.walk(root), {})
    assert told["folders"] == {"a\0b": None}


def test_an_interpreter_that_is_a_script_is_named(venv: pathlib.Path) -> None:
    (venv / "bin").mkdir()
    (venv / "bin/python").write_text("#!/bin/sh\n")
    with pytest.raises(AgentError, match=r"bin/python is no ELF program: file too short"):
        objects.objects(SilentWire(), venv=str(venv))


def test_a_place_without_an_environment_is_told_as_what_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("gone", "is not there"), ("file", "is a file, not a folder")):
        with pytest.raises(AgentError, match=f"{name} {why}"):
            objects.environment_at(str(tmp_path / name))
        with pytest.raises(AgentError, match=f"{name} {why}"):
            sitelook.look(SilentWire(), venv=str(tmp_path / name))
