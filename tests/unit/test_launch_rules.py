"""The rules on launch arguments, processes elsewhere and the processor: each with a sound twin."""

from __future__ import annotations

from typing import Any

import pytest

from kit.hostfacts import recorded
from kit.surroundings import VENV, around, judged, loads, service, targets, told

_NEW = {"sglang": "0.5.23", "flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2"}


@pytest.mark.parametrize(
    ("value", "capability", "installed", "expected"),
    [
        ("trtllm_mla", "9.0", {}, [("error", "launch-arch", "K33")]),
        ("trtllm_mla", "12.0", {}, []),
        ("trtllm_mha", "9.0", {}, [("error", "launch-arch", "K33")]),
        ("trtllm_mha", "9.0", _NEW, []),
        ("flashmla", "12.0", {}, [("error", "launch-arch", "K33")]),
        ("fa3", "12.0", {}, [("error", "launch-feature", "K35")]),
        ("fa3", "8.6", {}, []),
        ("flashinfer", "12.0", {}, []),
    ],
)
def test_attention_backends(
    value: str, capability: str, installed: dict[str, str], expected: list[tuple[str, str, str]]
) -> None:
    facts = (service({}, "--attention-backend", value), targets(capability), loads(installed))
    assert told(judged(*facts)) == expected


def test_an_option_may_be_written_with_an_equals_sign_and_the_last_one_counts() -> None:
    assert judged(service({}, "--attention-backend=fa3", "--attention-backend=triton"), targets("12.0")) == []


def test_fp8_keys_and_values_with_triton_before_ada() -> None:
    asked = ("--kv-cache-dtype", "fp8_e4m3", "--attention-backend", "triton")
    (found,) = judged(service({}, *asked), targets("8.6"))
    assert told([found]) == [("error", "launch-feature", "K35")]
    assert found.fix == "service.args: --kv-cache-dtype fp8_e5m2"
    assert judged(service({}, *asked), targets("8.9")) == []
    assert judged(service({}, *asked[:2]), targets("8.6")) == []


def _process(**changes: Any) -> dict[str, Any]:
    processes = recorded("probe-held")["processes"]
    process = processes["listed"][0]
    process.update(
        command=[f"{VENV}/bin/python", "server.py"],
        place={"value": "elsewhere", "how": "mount namespaces"},
        container={"kind": "lxc", "id": "105"},
        **changes,
    )
    return {"processes": {**processes, "listed": [process]}}


def test_a_server_whose_environment_is_another_ones() -> None:
    (found,) = judged(host=_process())
    assert told([found]) == [("warning", "process-elsewhere", "K55")]
    assert "lxc 105" in found.message
    assert judged(around(venv="/srv/other"), host=_process()) == []


def test_a_processor_without_what_numpy_is_compiled_for() -> None:
    bare = {"system.cpu": {"model": "Common KVM processor", "count": 8, "flags": ["sse2"]}}
    (found,) = judged(loads({"numpy": "2.5.5"}), host=bare)
    assert told([found]) == [("error", "processor-too-old", "K56")]
    assert "cpu: host" in str(found.fix)
    assert judged(loads({"numpy": "2.3.5"}), host=bare) == []
    unknown = judged(loads({"numpy": "2.5.5"}), host={"system.cpu": None})
    assert told(unknown) == [("unknown", "processor-too-old", "K56")]
