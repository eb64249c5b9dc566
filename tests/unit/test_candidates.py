"""A wheel that is looked into is told as what it would install; one that cannot be is told as that."""

from __future__ import annotations

import copy
import json
import random
import zipfile
from typing import TYPE_CHECKING, Any

from hostenv.agent import candidates, sitelook
from hostenv.agent.excerpts import Excerpts
from hostenv.checks import changed
from hostenv.document import DocumentError
from hostenv.facts.candidates import Candidate, Unread, wheels_from_answer
from hostenv.facts.distributions import Installed
from hostenv.facts.site import SiteFacts
from kit.elf import needs_gcc, shared
from kit.environment import SITE, SilentWire, make_environment
from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib

NAMESPACES = {"sgl_kernel": [r"sgl_kernel/(?:sm\d+/)?\w+_ops\.[^/]*so"]}
ASKED: dict[str, Any] = {"namespaces": NAMESPACES, "kernels": ["sgl_kernel"]}
SCHEMAS = 'const char *a = "topk(Tensor x, int n) -> Tensor"; const char *b = "bare";'


def looked_into(*wheels: pathlib.Path) -> tuple[dict[str, Any], bytes]:
    found = Excerpts()
    paths = [str(path) for path in wheels]
    told = candidates.read_wheels(paths, found, **ASKED, called=["topk", "bare"], makers=[])
    return json.loads(json.dumps(told)), found.data


def read(*wheels: pathlib.Path) -> tuple[Candidate | Unread, ...]:
    told, data = looked_into(*wheels)
    return wheels_from_answer(told, [data])


@needs_gcc
def test_a_wheel_is_told_as_what_it_installs(tmp_path: pathlib.Path) -> None:
    ops = shared(tmp_path, "common_ops.abi3.so", SCHEMAS).read_bytes()
    wheel = build_wheel(
        tmp_path,
        "sglang-kernel",
        "0.4.10",
        {
            "sgl_kernel/__init__.py": "def topk(): ...\n",
            "sgl_kernel/call.py": "import torch\n\n\ndef f(x):\n    return torch.ops.sgl_kernel.topk(x, 1)\n",
            "sglang_kernel-0.4.10.data/platlib/sgl_kernel/common_ops.abi3.so": ops,
        },
        tag="cp310-abi3-manylinux2014_x86_64",
        requires=["torch==2.14.1"],
        requires_python=">=3.10",
    )
    (told,) = read(wheel.path)
    assert isinstance(told, Candidate)

    venv = make_environment(tmp_path / "venv")
    with zipfile.ZipFile(wheel.path) as archive:  # what an installer makes of it
        archive.extractall(venv / SITE)
    (venv / SITE / "sglang_kernel-0.4.10.data/platlib/sgl_kernel/common_ops.abi3.so").rename(
        venv / SITE / "sgl_kernel/common_ops.abi3.so"
    )
    record = venv / SITE / "sglang_kernel-0.4.10.dist-info/RECORD"
    record.write_text(record.read_text().replace("sglang_kernel-0.4.10.data/platlib/", ""))
    facts = sitelook.look(SilentWire(), venv=str(venv), **ASKED)["facts"]
    (installed,) = Installed.from_answer(facts["survey"], "test").distributions
    site = SiteFacts.from_answer(facts["site"], "test")
    for name in ("name", "version", "requires", "requires_python", "extras", "tags", "entry_points"):
        assert getattr(told.distribution, name) == getattr(installed, name), name
    assert [(each.path, each.owners, each.size) for each in told.objects] == [
        (site.within(each.path), each.owners, each.size) for each in site.objects
    ]
    for name in ("makers", "sources", "unread", "exports", "modules"):
        assert getattr(told.operators, name) == getattr(site.operators, name), name
    (registered,) = told.operators.registered["sgl_kernel"].values()
    assert registered.schemas == ("topk(Tensor x, int n) -> Tensor",)
    assert registered.bare == ("bare",)
    assert [each.path for each in told.excerpts] == ["sgl_kernel/common_ops.abi3.so"]
    assert changed.brought_by_wheels([told]).names == {"sglang-kernel"}


@needs_gcc
def test_wheels_that_cannot_be_looked_into_are_told_and_the_others_are(tmp_path: pathlib.Path) -> None:
    ops = shared(tmp_path, "a.so", "int f(void){return 1;}").read_bytes()
    sound = build_wheel(tmp_path, "alpha", "1.0", {"a.so": ops}).path
    short = build_wheel(tmp_path, "beta", "1.0", {"b.so": ops}).path
    short.write_bytes(short.read_bytes()[:-40])
    wrong = build_wheel(tmp_path, "gamma", "1.0", {"c.so": ops}, compress=False).path
    wrong.write_bytes(wrong.read_bytes().replace(ops[64:128], b"\xff" * 64, 1))
    two = build_wheel(tmp_path, "delta", "1.0", {"x-1.0.dist-info/METADATA": "Name: x\n", "d.so": ops}).path
    absent = tmp_path / "absent.whl"
    found = read(short, wrong, two, absent, sound)
    told = [each.why if isinstance(each, Unread) else each.distribution.name for each in found]
    assert told[0].startswith("not a readable wheel: ")
    assert told[1].startswith("not a readable wheel: Bad CRC-32")
    assert told[2] == "it has 2 .dist-info folders, not one"
    assert "No such file" in told[3]
    assert told[4] == "alpha"
    assert isinstance(found[4], Candidate)
    assert [each.path for each in found[4].excerpts] == ["a.so"]


@needs_gcc
def test_a_damaged_answer_is_read_or_refused(tmp_path: pathlib.Path) -> None:
    ops = shared(tmp_path, "a.so", SCHEMAS).read_bytes()
    whole, data = looked_into(build_wheel(tmp_path, "alpha", "1.0", {"a.so": ops}).path)
    refused = 0
    for seed in range(200):
        told = copy.deepcopy(whole)
        chance = random.Random(seed)  # noqa: S311  the same every time
        place: Any = told
        while True:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or chance.random() < 0.3:
                place[key] = chance.choice([None, "", -1, [], {}, "\udcff", 1 << 62])
                break
            place = place[key]
        try:
            wheels_from_answer(told, [data])
        except DocumentError:
            refused += 1
    assert refused
