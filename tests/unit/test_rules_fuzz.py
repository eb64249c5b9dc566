"""Damaged environments and damaged facts: a finding with the path, or nothing, and never a crash."""

from __future__ import annotations

import datetime as dt
import json
import random
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import sitelook
from hostenv.checks.abi_rules import RULES
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, judge
from hostenv.document import DocumentError
from hostenv.facts.distributions import Installed
from hostenv.facts.site import LiveFacts, SiteFacts
from kit.environment import SITE, SilentWire, distribution, make_environment, put
from kit.sites import an_object, loads, looked

if TYPE_CHECKING:
    import pathlib

TODAY = dt.date(2026, 12, 1)
NAMESPACES = {"sgl_kernel": [r"sgl_kernel/(?:sm\d+/)?\w+_ops\.[^/]*so"]}


@pytest.fixture
def venv(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return an environment that has a little of everything."""
    files: dict[str, str | bytes] = {
        **distribution("torch", "2.14.1", {"torch/a.py": ""}, requires=["apache-tvm-ffi>=0.1"]),
        **distribution("torchvision", "0.29.2", {"torchvision/_C.so": b""}),
        **distribution(
            "sglang", "0.5.23", {"sglang/a.py": "torch.ops.sgl_kernel.f(1)\n"}, requires=["sglang-kernel"]
        ),
        **distribution("sglang-kernel", "0.4.10", {"sgl_kernel/common_ops.abi3.so": b"\x7fELF"}),
        **distribution("flashinfer-python", "0.6.12", {"flashinfer/a.py": ""}),
    }
    made = make_environment(tmp_path / "venv", files)
    put(made / SITE / "x.pth", "import os\n/nonexistent\n")
    return made


def answer(venv: pathlib.Path) -> dict[str, Any]:
    found = sitelook.look(SilentWire(), venv=str(venv), namespaces=NAMESPACES, kernels=["sgl_kernel"])
    known: dict[str, Any] = json.loads(json.dumps(found))
    return known


def typed(found: dict[str, Any]) -> tuple[object, ...]:
    return (
        Installed.from_answer(found["facts"]["survey"], "test"),
        SiteFacts.from_answer(found["facts"]["site"], "test"),
        LiveFacts.from_answer(found["live"], "test", str(found["path"])),
        loads(an_object("torchvision/_C.so"), torch="2.14.1"),
    )


DAMAGES: dict[tuple[str, str], tuple[str, str]] = {
    ("RECORD", 'not,csv,at,all\n"\n'): ("record-unverified", "RECORD line 2 is not CSV"),
    ("RECORD", "a,sha256=short,1\n../../../../../etc/passwd,,\n"): ("record-unverified", "RECORD line 2"),
    ("RECORD", "a,,\nb,,,,\n"): ("record-unverified", "RECORD line 2: 5 fields"),
    ("RECORD", "\0\n"): ("record-unverified", "RECORD line 1"),
    ("RECORD", ""): ("record-unverified", "RECORD names no file"),
    ("METADATA", "Name\n\n"): ("record-unverified", "METADATA has no Name"),
    ("METADATA", "Name: sglang\nVersion: 0.5.23\nRequires-Dist: ???\n"): (
        "metadata-closure",
        "Requires-Dist: ???",
    ),
    ("METADATA", "Name: sglang\nVersion: \n"): ("record-unverified", "METADATA has no Version"),
    ("METADATA", "\xff\xfe"): ("record-unverified", "METADATA has no Name"),
    ("METADATA", ""): ("record-unverified", "METADATA has no Name"),
    ("WHEEL", "Tag: nonsense\n"): ("wheel-tags", "Tag: nonsense"),
    ("WHEEL", ""): ("record-unverified", "WHEEL has no Tag"),
}


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_a_damaged_dist_info_is_told_and_the_others_are_judged(
    venv: pathlib.Path, name: str, content: str
) -> None:
    rule, words = DAMAGES[name, content]
    put(venv / SITE / f"sglang-0.5.23.dist-info/{name}", content.encode("latin-1"))
    findings = judge(Facts(*typed(answer(venv))), RULES, today=TODAY).findings
    (told,) = [each for each in findings if (each.rule, each.object) == (rule, "sglang")]
    assert told.severity is Severity.UNKNOWN
    assert words in " ".join(told.evidence)
    assert any(finding.object == "x.pth" for finding in findings)


def test_names_that_are_not_utf_8_and_sources_that_do_not_parse_are_no_crash(venv: pathlib.Path) -> None:
    (venv / SITE / "sglang").mkdir(exist_ok=True)
    for raw in (b"\xff.so.bak", b"\xff\xfe.py", b"a b,c.pth"):
        with open(bytes(venv / SITE) + b"/sglang/" + raw, "wb") as file:  # noqa: PTH123  a name of bytes
            file.write(b"\xff\0torch.ops.sgl_kernel.f(")
    put(venv / SITE / "sglang/a.py", b"torch.ops.sgl_kernel.f(\xff")
    findings = judge(looked(venv), RULES, today=TODAY).findings
    assert any(each.severity is Severity.UNKNOWN and each.object == "sglang/a.py" for each in findings)


def test_two_versions_of_one_distribution_are_told(venv: pathlib.Path) -> None:
    for name, content in distribution("torch", "2.11.0", {"torch/b.py": ""}).items():
        put(venv / SITE / name, content)
    findings = judge(looked(venv), RULES, today=TODAY).findings
    assert any(each.rule == "metadata-duplicate" and each.object == "torch" for each in findings)


@pytest.mark.parametrize("seed", range(60))
def test_an_answer_with_any_value_of_another_kind_is_read_or_refused(venv: pathlib.Path, seed: int) -> None:
    found = answer(venv)
    chance = random.Random(seed)  # noqa: S311  the same every time
    for _ in range(chance.randint(1, 4)):
        _damage(found, chance)
    try:
        known = typed(found)
    except (DocumentError, KeyError, TypeError):
        return  # half an answer is no answer
    judge(Facts(*known), RULES, today=TODAY)


@pytest.mark.parametrize("kind", [Installed, SiteFacts, LiveFacts])
def test_a_part_that_was_not_read_is_unknown_and_never_ok(venv: pathlib.Path, kind: type[object]) -> None:
    known = [each for each in typed(answer(venv)) if not isinstance(each, kind)]
    findings = judge(Facts(*known), RULES, today=TODAY).findings
    silent = {
        each.rule for each in findings if each.severity is Severity.UNKNOWN and each.object == kind.__name__
    }
    assert silent


@pytest.mark.parametrize("seed", range(40))
def test_facts_with_texts_of_any_kind_are_judged(venv: pathlib.Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  the same every time
    judge(Facts(*(_shaken(each, chance) for each in typed(answer(venv)))), RULES, today=TODAY)


def _damage(value: Any, chance: random.Random) -> None:
    """Replace one value somewhere below, or take it away."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], (dict, list)) and value[key] and chance.random() < 0.8:
            value = value[key]
            continue
        if isinstance(value, dict) and chance.random() < 0.3:
            del value[key]
        else:
            value[key] = chance.choice([None, "", "\udcff/..", -1, [], {}, True, 1e9])
        return


def _shaken(value: Any, chance: random.Random) -> Any:
    """Return facts in which some texts are others: versions that are none, paths that are odd."""
    if isinstance(value, str):
        return chance.choice(["", "\udcff", "a/../b", "==", "2.x"]) if chance.random() < 0.1 else value
    if isinstance(value, tuple):
        return tuple(_shaken(each, chance) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _shaken(getattr(value, each.name), chance) for each in fields(value)}
        )
    return value
