"""Facts of a host: recorded answers, what is saved of them, and when saved facts are too old."""

from __future__ import annotations

import datetime as dt
import json
import pathlib

import pytest
from packaging.version import Version

from hostenv.document import DocumentError
from hostenv.errors import InputError
from hostenv.facts.fact import UnknownFactError
from hostenv.facts.host import HostFacts
from hostenv.facts.host_saved import SavedFacts, saved_form
from hostenv.facts.host_targets import gpu_targets
from hostenv.steps.save_facts import SaveFacts
from kit.hostfacts import changed, facts, recorded, write_saved_facts
from kit.schema import violations

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs" / "schema" / "facts.schema.json").read_text(encoding="utf-8")
)
MONTH = dt.timedelta(days=30)


def test_a_real_hosts_libraries() -> None:
    host = facts()
    cxx, cuda = host.libraries.find("libstdc++.so.6"), host.libraries.find("libcuda.so.1")
    assert cxx
    assert cuda
    assert cxx.newest("GLIBCXX") == Version("3.4.33")  # Ubuntu 24.04, gcc 13 to 14
    assert cxx.newest("CXXABI") == Version("1.3.15")
    assert (cuda.driver_version, cuda.is_stub, cuda.is_compat) == ("580.159.04", False, False)
    assert host.libraries.find("libnothing.so.1") is None


@pytest.mark.parametrize("name", ["probe-idle", "probe-held", "probe-in-container"])
def test_recorded_answers_fit_the_schema(name: str) -> None:
    assert violations(recorded(name), SCHEMA) == []


def test_an_unknown_fact_raises_its_reason_when_it_is_used() -> None:
    fact = facts().identity.machine_id
    assert fact.or_else("nothing") == "nothing"
    with pytest.raises(UnknownFactError, match=r"/etc/machine-id: the file is empty"):
        _ = fact.value


def test_a_wrong_answer_is_told_with_its_place() -> None:
    answer = recorded()
    answer["system"]["memory"]["value"]["total"] = "much"
    answer["surprise"] = 1
    with pytest.raises(DocumentError) as raised:
        HostFacts.from_dict(answer, name="ct200")
    assert "ct200: system.memory.value.total: must be an integer, is a string" in str(raised.value)
    assert "ct200: surprise: unknown key" in str(raised.value)


def test_another_version_says_what_to_do() -> None:
    with pytest.raises(DocumentError, match="probe again with --save"):
        HostFacts.from_dict(changed({"version": 2}), name="ct200")


@pytest.mark.parametrize("name", ["probe-idle", "probe-held"])
def test_saved_facts_hold_nothing_of_a_boot_or_a_moment(name: str, tmp_path: pathlib.Path) -> None:
    path = SaveFacts(path=tmp_path / "facts" / "ct200.json", answer=recorded(name)).apply()
    text = path.read_text(encoding="utf-8")
    answer = recorded(name)
    for secret in (
        answer["identity"]["boot_id"]["value"],
        "hold.py",
        str(answer["system"]["memory"]["value"]["available"]),
    ):
        assert secret not in text
    saved = SavedFacts.load(path).facts
    assert saved.processes is None
    assert not saved.identity.boot_id.is_known
    assert saved.gpus.value[0].memory_used is None
    assert saved.gpus.value[0].compute_capability.value == "9.0"
    assert violations(json.loads(text), SCHEMA) == []
    assert list(tmp_path.glob("facts/*")) == [path]


def test_two_probes_of_an_unchanged_host_save_the_same() -> None:
    idle, held = recorded("probe-idle"), recorded("probe-held")
    for answer in (idle, held):
        answer["read_at"] = "2026-12-01T00:00:00Z"
        for venv in answer["venvs"]["found"]:
            venv["how"] = "search for pyvenv.cfg"
    assert saved_form(idle) == saved_form(held)


def test_old_facts_count_as_unknown(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ct200.json"
    path.write_text(saved_form(recorded()), encoding="utf-8")
    saved = SavedFacts.load(path)
    read_at = saved.facts.read_at
    assert saved.fresh(now=read_at + MONTH, max_age=MONTH).is_known
    old = saved.fresh(now=read_at + MONTH + dt.timedelta(days=1), max_age=MONTH)
    assert old.unknown == "read 31 days ago, the spec allows 30: probe with --save"
    assert not saved.fresh(now=read_at - dt.timedelta(days=1), max_age=MONTH).is_known
    assert "still to come" in str(saved.age(read_at - dt.timedelta(days=1)).unknown)
    assert saved.age(read_at - dt.timedelta(minutes=1)).value == dt.timedelta(), "the host's clock is ahead"


def test_absent_and_broken_files_say_what_to_do(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="No such file") as raised:
        SavedFacts.load(tmp_path / "ct200.json")
    assert raised.value.hint == "nox -s probe -- ct200 --save"
    (tmp_path / "ct200.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="not JSON"):
        SavedFacts.load(tmp_path / "ct200.json")


def test_saved_libraries_have_the_exports_that_nm_listed_there(tmp_path: pathlib.Path) -> None:
    saved = SavedFacts.load(write_saved_facts(tmp_path / "h200.json")).facts
    cuda, cxx = saved.libraries.find("libcuda.so.1"), saved.libraries.find("libstdc++.so.6")
    assert cuda
    assert cxx
    # as nm -D listed them on that host
    assert "cuGreenCtxStreamCreate" in (cuda.exports or ())
    assert "_ZNSt15__exception_ptr13exception_ptrC1EPv@@CXXABI_1.3.11" in (cxx.exports or ())
    assert dict(saved.libraries.present or ())["libzstd.so.1"] == "/lib/x86_64-linux-gnu/libzstd.so.1"


def test_gpus_as_the_rules_on_gpu_code_want_them() -> None:
    targets = gpu_targets(facts())
    assert [(gpu.name, str(gpu.compute_capability)) for gpu in targets.gpus] == [
        ("GPU 0, NVIDIA H200", "9.0")
    ]
    assert (targets.driver, str(targets.cuda)) == ("580.159.04", "13.0")
    hidden = gpu_targets(facts({"gpus": None, "driver.cuda": None}))
    assert [(gpu.name, gpu.compute_capability) for gpu in hidden.gpus] == [
        ("GPU at 0000:00:06.0, NVIDIA H200", None)
    ]
    assert hidden.cuda is None
