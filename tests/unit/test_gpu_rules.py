"""The rules on GPU code: each with its fault and a sound twin."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from hostenv.checks.finding import Severity
from hostenv.checks.gpu_rules import RULES
from hostenv.checks.judge import Facts, judge
from hostenv.facts.gpu_code import (
    Container,
    CudaRuntime,
    DottedPair,
    GpuCode,
    GpuCodeFacts,
    GpuTargets,
    Image,
    Role,
    TargetGpu,
)

if TYPE_CHECKING:
    from hostenv.checks.finding import Finding

# measured on the environment of sglang 0.5.23, x86_64, CUDA 13.0
SOUND = {
    "torch/lib/libtorch_cuda.so": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "sgl_kernel/sm90/common_ops.abi3.so": "sm_90 sm_80 sm_89 sm_100f sm_120a sm_90a",
    "sgl_kernel/sm100/common_ops.abi3.so": "sm_90 sm_80 sm_89 sm_100f sm_120a sm_90a",
    "sgl_kernel/flash_ops.abi3.so": "sm_90a sm_80 sm_86",
    "sgl_kernel/flashmla_ops.abi3.so": "sm_90a sm_100f sm_103a",
    "flash_mla/cuda.abi3.so": "sm_100a sm_103a sm_107a",
    "deep_ep/_C.cpython-312-x86_64-linux-gnu.so": "sm_100 sm_103 sm_90",
}


def findings(
    objects: dict[str, str],
    *capabilities: str | None,
    driver: str = "580.159.04",
    runtime: str = "13.0",
    problem: str | None = None,
) -> list[Finding]:
    gpus = tuple(
        TargetGpu(name=f"GPU {index}", compute_capability=DottedPair.parse(one) if one else None)
        for index, one in enumerate(capabilities)
    )
    facts = Facts(
        GpuCodeFacts(objects={path: _code(images, problem) for path, images in objects.items()}),
        GpuTargets(gpus=gpus, driver=driver, cuda=None),
        CudaRuntime(version=DottedPair.parse(runtime), source="libcudart.so.13"),
    )
    return list(judge(facts, RULES, today=dt.date(2026, 12, 1)).findings)


def _code(written: str, problem: str | None) -> GpuCode:
    """Read ``sm_90 | sm_80``: modules with a bar between."""
    modules = [tuple(Image.parse(one) for one in module.split()) for module in written.split("|")]
    containers = tuple(Container(role=Role.MODULE, images=images) for images in modules)
    return GpuCode(containers=containers, problem=problem)


def worst(found: list[Finding]) -> list[tuple[str, str | None, str]]:
    return [(one.rule, one.kind, one.object) for one in found if one.severity is Severity.ERROR]


@pytest.mark.parametrize("capability", ["8.6", "9.0", "10.0", "12.0"])
def test_a_sound_environment_has_no_error(capability: str) -> None:
    found = findings(SOUND, capability)
    assert {one.severity for one in found} <= {Severity.NOTE}


def test_flash_ops_has_nothing_for_blackwell_and_is_not_used_there() -> None:
    (note,) = [one for one in findings(SOUND, "12.0") if one.object == "sgl_kernel/flash_ops.abi3.so"]
    assert note.severity is Severity.NOTE
    assert "not used there" in note.message


def test_an_extension_without_the_gpus_arch() -> None:
    found = findings({"vendor/_C.abi3.so": "sm_80 sm_90"}, "12.0")
    assert worst(found) == [("gpu-no-image", "K31", "vendor/_C.abi3.so")]
    assert "no kernel image" in found[0].message
    assert found[0].evidence[0] == "vendor/_C.abi3.so: cubins sm_80, sm_90; PTX none"
    assert findings({"vendor/_C.abi3.so": "sm_80 sm_90 compute_90:9.0"}, "12.0") == []


def test_it_is_judged_for_every_gpu_of_the_host() -> None:
    found = findings({"vendor/_C.abi3.so": "sm_80 sm_90"}, "8.6", "12.0", "12.0", "9.0")
    assert worst(found) == [("gpu-no-image", "K31", "vendor/_C.abi3.so")]
    assert "GPU 1, GPU 2" in found[0].message


def test_a_part_that_is_missing_is_a_warning_with_its_share() -> None:
    (found,) = findings({"vendor/_C.abi3.so": "sm_90 | sm_90 | sm_80"}, "9.0")
    assert found.severity is Severity.WARNING
    assert "some launches fail" in found.message
    assert "1 of 3 modules" in found.evidence[1]


def test_a_library_that_chooses_by_gpu_may_lack_a_part() -> None:
    assert findings({"nvidia/cu13/lib/libcublasLt.so.13": "sm_90a | sm_100 | sm_75"}, "9.0") == []
    assert worst(findings({"nvidia/cu13/lib/libcublasLt.so.13": "sm_100 | sm_75"}, "9.0"))


def test_torch_without_the_gpus_arch() -> None:
    found = findings({"torch/lib/libtorch_cuda.so": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"}, "12.0")
    assert worst(found) == [("torch-no-image", "K30", "torch/lib/libtorch_cuda.so")]
    assert "cu128" in (found[0].fix or "")


def test_a_suffix_that_keeps_the_code_from_the_gpu() -> None:
    found = findings(SOUND, "12.1")
    assert worst(found) == [("gpu-arch-suffix", "K33", "sgl_kernel/sm100/common_ops.abi3.so")]
    assert findings({"vendor/_C.so": "sm_120f"}, "12.1") == []


def test_a_gpu_that_the_toolkit_dropped() -> None:
    found = findings({"torch/lib/libtorch_cuda.so": "sm_75 sm_80"}, "7.0")
    assert worst(found) == [("gpu-arch-dropped", "K34", "torch/lib/libtorch_cuda.so")]
    assert "CUDA 12" in (found[0].fix or "")


def test_ptx_that_is_newer_than_the_driver() -> None:
    found = findings({"vendor/_C.so": "sm_80 compute_80:9.2"}, "9.0")
    assert worst(found) == [("ptx-newer-than-driver", "K22", "vendor/_C.so")]
    assert "up to 9.0" in found[0].evidence[-1]
    assert findings({"vendor/_C.so": "sm_80 compute_80:9.2"}, "8.6") == []
    assert findings({"vendor/_C.so": "sm_80 compute_80:9.2"}, "9.0", driver="595.45.04") == []


@pytest.mark.parametrize(
    ("driver", "runtime", "old"),
    [
        ("570.133.20", "13.0", True),
        ("580.65.06", "13.2", False),  # minor version compatibility
        ("580.9.1", "13.0", True),
        ("525.60.13", "12.9", False),
    ],
)
def test_a_driver_older_than_the_runtime_needs(driver: str, runtime: str, *, old: bool) -> None:
    found = findings({}, "9.0", driver=driver, runtime=runtime)
    assert worst(found) == ([("driver-older-than-runtime", "K21", "driver")] if old else [])


def test_the_variant_that_the_loader_picks_must_be_there() -> None:
    only_90 = {path: images for path, images in SOUND.items() if "sm100" not in path}
    assert worst(findings(only_90, "9.0")) == []
    assert worst(findings(only_90, "8.6")) == [("gpu-variant", "K32", "sgl_kernel/sm100/common_ops.*")]


def test_an_old_file_beside_the_variants_is_a_trap() -> None:
    (found,) = findings({**SOUND, "sgl_kernel/common_ops.abi3.so": "sm_90"}, "9.0")[:1]
    assert (found.rule, found.severity) == ("gpu-variant", Severity.WARNING)


def test_a_damaged_object_is_unknown_and_named() -> None:
    (found,) = findings({"vendor/_C.so": "sm_90"}, "9.0", problem=".nv_fatbin: cut off")
    assert (found.rule, found.severity, found.object) == ("gpu-code-unread", Severity.UNKNOWN, "vendor/_C.so")


def test_a_gpu_of_unknown_capability_is_unknown() -> None:
    (found,) = findings({"vendor/_C.so": "sm_80"}, None)
    assert (found.rule, found.severity) == ("gpu-capability-unknown", Severity.UNKNOWN)


def test_facts_that_nobody_read_are_unknown() -> None:
    found = judge(Facts(), RULES, today=dt.date(2026, 12, 1)).findings
    assert {one.severity for one in found} == {Severity.UNKNOWN}
    assert len({one.rule for one in found}) == len(RULES)
