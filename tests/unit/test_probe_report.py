"""What stands out in a probe, and the page and the JSON that show it."""

from __future__ import annotations

import io
import json
import pathlib
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from hostenv.checks.finding import Severity
from hostenv.checks.probe_notes import probe_notes
from hostenv.checks.same_machine import relations
from hostenv.errors import UnreachableError
from hostenv.report.probe import print_probe
from hostenv.report.probe_json import probe_document
from hostenv.spec.fleet import load_fleet
from hostenv.spec.host import Identity
from hostenv.spec.rules import Command, System
from hostenv.workflows.probe import HostProbe, ProbeOptions, ProbeReport, questions
from kit.hostfacts import changed, facts, recorded
from kit.schema import violations

if TYPE_CHECKING:
    from hostenv.spec.spec import Spec

ROOT = pathlib.Path(__file__).parents[2]
SCHEMAS = {
    name: json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("facts", "probe")
}
MACHINE = "0123456789abcdef0123456789abcdef"
KEY = "SHA256:EAGWAIzNZtTSr9zhPBSRB5r8e8ye7X/lIwqbXxY3u5Y"


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load_fleet(ROOT / "envspecs").specs["ct200"]


def notes(
    spec: Spec, changes: dict[str, Any] | None = None, name: str = "probe-idle", **more: Any
) -> list[str]:
    host = facts(changes or {}, name)
    found = probe_notes(spec, host, host_key=KEY, identities=more.get("identities", {}))
    return [note.rule for note in found]


def bare(spec: Spec) -> Spec:
    """Return the spec without what it expects of GPUs, tools and libraries."""
    return replace(spec, gpus=None, system=System(), models=())


def test_a_sound_host_has_nothing_that_stands_out(spec: Spec) -> None:
    host = replace(bare(spec), identity=Identity(machine_id=MACHINE, host_key=KEY))
    told = notes(host, {"identity.machine_id": MACHINE, "processes.hidden": 0})
    assert told == []


def test_a_missing_identity_is_printed_to_be_pasted(spec: Spec) -> None:
    assert "identity-missing" in notes(bare(spec))
    text = page(report_of(spec, changed({"identity.machine_id": MACHINE})))
    pasted = text[text.index("  [identity]") :].splitlines()[:3]
    identity = tomllib.loads("\n".join(pasted))["identity"]
    assert identity == {"machine-id": MACHINE, "host-key": KEY}


def test_another_host_key_is_an_error(spec: Spec) -> None:
    other = Identity(machine_id=MACHINE, host_key="SHA256:" + "A" * 43)
    host = replace(bare(spec), identity=other)
    assert notes(host, {"identity.machine_id": MACHINE}).count("identity-differs") == 1


def test_another_machine_is_named(spec: Spec) -> None:
    mine = Identity(machine_id="f" * 32, host_key=KEY)
    theirs = Identity(machine_id=MACHINE, host_key="SHA256:" + "A" * 43)
    host = replace(bare(spec), identity=mine)
    found = probe_notes(
        host, facts({"identity.machine_id": MACHINE}), host_key=KEY, identities={"ct129": theirs}
    )
    [note] = [each for each in found if each.rule == "identity-differs"]
    assert note.severity is Severity.ERROR
    assert "this is ct129" in note.message
    assert note.evidence == (f"spec: {'f' * 32}", f"host: {MACHINE}")


def test_a_library_of_another_driver(spec: Spec) -> None:
    module = {"version": "590.44.01", "open": True}
    told = notes(bare(spec), {"driver.kernel_module": module})
    assert told.count("driver-mismatch") == 3  # libcuda, libnvidia-ml, ptxjitcompiler


@pytest.mark.parametrize(
    ("library", "rule"),
    [
        ({"real": "/usr/local/cuda-13.0/lib64/stubs/libcuda.so", "driver_version": None}, "driver-stub"),
        ({"real": "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06"}, "driver-compat"),
    ],
)
def test_a_stub_and_a_compat_driver(spec: Spec, library: dict[str, Any], rule: str) -> None:
    answer = recorded()
    answer["libraries"]["read"][0]["value"].update(library)
    assert rule in notes(bare(spec), {"libraries": answer["libraries"]})


def test_gpus_that_are_not_the_specs(spec: Spec) -> None:
    told = notes(spec)  # the recorded host has one H200, the spec names eight RTX PRO 6000
    assert {"gpu-count", "gpu-model", "gpu-capability"} <= set(told)


def test_unknown_gpus_are_never_silent(spec: Spec) -> None:
    assert "gpus" in notes(bare(spec), {"gpus": None})


def test_a_gpu_held_by_something_unseen(spec: Spec) -> None:
    assert "gpu-held-unseen" in notes(bare(spec), name="probe-in-container")


def test_a_process_elsewhere(spec: Spec) -> None:
    assert "process-elsewhere" in notes(bare(spec), name="probe-held")


def test_tools_that_the_service_lacks(spec: Spec) -> None:
    answer = recorded()
    commands = answer["toolchain"]["commands"]
    commands["ninja"] = {"value": None, "how": "PATH"}
    commands["nvcc"] = {"value": {"path": "/usr/bin/nvcc", "version": "12.4.131"}, "how": "PATH"}
    wanted = tuple(map(Command.parse, ("ninja", "nvcc>=13.0", "gcc")))
    host = replace(bare(spec), system=System(commands=wanted, libraries=("libnuma.so.1", "libcuda.so.1")))
    told = notes(host, {"toolchain.commands": commands})
    assert [rule for rule in told if rule.startswith("command")] == ["command-missing", "command-version"]


def test_a_root_that_cannot_be_used(spec: Spec) -> None:
    answer = recorded()
    answer["disks"][0]["value"].update(noexec=True, read_only=True, free=1)
    told = notes(bare(spec), {"disks": answer["disks"]})
    assert {"root-noexec", "root-read-only", "root-full"} <= set(told)


def test_models_that_are_missing_or_torn(spec: Spec) -> None:
    base = {"exists": True, "kind": "Qwen3", "files": 1, "bytes": 1, "missing": []}
    models = [
        {"value": {**base, "path": "/models/a", "exists": False}, "how": ""},
        {"value": {**base, "path": "/models/b", "missing": ["model-00002.safetensors"]}, "how": ""},
        {"unknown": "Permission denied", "how": "/models/c"},
    ]
    told = [rule for rule in notes(bare(spec), {"models": models}) if rule.startswith("model")]
    assert told == ["model-missing", "model-incomplete", "model"]


def report_of(spec: Spec, *answers: dict[str, Any]) -> ProbeReport:
    hosts = []
    for number, answer in enumerate(answers):
        host = facts_of(answer)
        found = probe_notes(spec, host, host_key=KEY, identities={})
        hosts.append(
            HostProbe(
                name=f"host{number}",
                spec=spec,
                seconds=0.5,
                facts=host,
                answer=answer,
                host_key=KEY,
                notes=found,
            )
        )
    error = UnreachableError("lost: no route", hint="look at the cable")
    hosts.append(HostProbe(name="lost", spec=spec, seconds=3.0, error=error))
    related = relations({host.name: host.facts for host in hosts if host.facts})
    return ProbeReport(hosts=tuple(hosts), relations=related)


def facts_of(answer: dict[str, Any]) -> Any:
    from hostenv.facts.host import HostFacts  # noqa: PLC0415  only here

    return HostFacts.from_dict(answer, name="recorded")


def page(report: ProbeReport) -> str:
    out = io.StringIO()
    print_probe(report, Console(file=out, width=160, no_color=True))
    return out.getvalue()


def test_the_page_shows_a_host_and_what_stands_out(spec: Spec) -> None:
    text = page(report_of(spec, recorded("probe-held"), recorded("probe-in-container")))
    for expected in (
        "host0: 0.5 s",
        "Ubuntu 24.04.3 LTS",
        "glibc 2.39",
        "GLIBCXX 3.4.33",
        "kernel module 580.159.04 (open)  libcuda 580.159.04  CUDA 13.0",
        "held     NVIDIA H200",
        "pid 431 python3",
        "since 2026-12-01 15:33 UTC",
        "--api-key '***'",
        "listens on 127.0.0.1 port 30000",
        "torch 2.11.0 (CUDA 13.0)",
        "process-elsewhere K55",
        "lost: 3.0 s\n  no route\n    → look at the cable",
        "2 of 3 hosts probed; failed: lost",
    ):
        assert expected in text, text


def test_unknown_is_said_with_its_reason(spec: Spec) -> None:
    text = page(report_of(spec, changed({"gpus": None, "system.memory": None, "driver.cuda": None})))
    assert text.count("unknown: made unknown") == 3


def test_hostile_names_do_not_reach_the_terminal(spec: Spec) -> None:
    answer = recorded("probe-held")
    process = answer["processes"]["listed"][0]
    process["name"] = "\x1b]0;owned\x07[red]name\udcff"
    process["command"] = ["\x1b[2J", "[bold]", "a\nb", "\u202eevil"]
    answer["identity"]["hostname"]["value"] = "\x1b[31mhost"
    answer["venvs"]["found"][0]["value"]["path"] = "/opt/\x07"
    text = page(report_of(spec, answer))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[red]name" in text
    text.encode()


def test_the_document_fits_its_schema(spec: Spec) -> None:
    document = probe_document(report_of(spec, recorded("probe-held"), recorded("probe-in-container")))
    document = json.loads(json.dumps(document))
    assert violations(document, SCHEMAS["probe"]) == []
    hosts: Any = document["hosts"]
    for host in hosts[:2]:
        assert violations(host["facts"], SCHEMAS["facts"]) == []
    assert hosts[0]["gpus"][0]["use"] == "held"
    assert hosts[2]["outcome"] == "unreachable"


def test_a_spec_becomes_questions(spec: Spec) -> None:
    asked = questions(spec, ProbeOptions())
    assert asked["root"] == "/root/hostenv"
    assert asked["venvs"][:2] == ["/root/venv_sglang", "/root/hostenv/current/env"]
    assert asked["commands"] == ["gcc", "nvcc", "ninja"]
    assert asked["environment"]["PATH"].startswith("/root/hostenv/current/env/bin:")
    assert asked["environment"]["TRITON_CACHE_DIR"] == "/root/hostenv/jit/current/triton"
    assert "/root/hostenv/jit/current/triton" in asked["disks"]
    assert asked["exports"] is False
