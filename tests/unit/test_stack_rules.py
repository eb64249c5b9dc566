"""The stack's versions against each other: each fault, and a sound twin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hostenv.checks import agreement_rules, stack_rules
from hostenv.checks.finding import Finding, Severity
from hostenv.facts.surroundings import ServiceSettings
from kit.environment import distribution, make_environment
from kit.sites import an_object, found, loads, looked

if TYPE_CHECKING:
    import pathlib

    from hostenv.checks.judge import Facts

CUDA_12, CUDA_13 = "libcudart.so.12", "libcudart.so.13"


def said(facts: Facts, rule: str) -> list[Finding]:
    return found(facts, (*stack_rules.RULES, *agreement_rules.RULES), rule)


def site(
    tmp_path: pathlib.Path, *distributions: tuple[str, str, tuple[str, ...]], **requires: str
) -> pathlib.Path:
    files: dict[str, str | bytes] = {}
    for name, version, paths in distributions:
        wanted = [requires[name.replace("-", "_")]] if name.replace("-", "_") in requires else []
        files |= distribution(name, version, dict.fromkeys(paths, b"\x7fELF"), requires=wanted)
    return make_environment(tmp_path / "venv", files)


@pytest.mark.parametrize(("needs", "torch", "fault"), [(CUDA_12, "13.0", True), (CUDA_12, "12.8", False)])
def test_a_library_of_the_other_cuda_is_told(
    tmp_path: pathlib.Path, needs: str, torch: str, *, fault: bool
) -> None:
    """sgl-project/sglang#12949: a CUDA 12 kernel beside torch for CUDA 13."""
    venv = site(tmp_path, ("sgl-kernel", "0.3.21", ("sgl_kernel/flash_ops.abi3.so",)))
    facts = looked(venv, loads(an_object("sgl_kernel/flash_ops.abi3.so", needs), cuda=torch, torch="2.11.0"))
    findings = said(facts, "cuda-major-mixed")
    assert [(each.object, each.kind) for each in findings] == ([("sgl-kernel", "K06")] if fault else [])


def test_variants_for_several_cudas_are_no_mixture(tmp_path: pathlib.Path) -> None:
    paths = ("torch_memory_saver_hook_mode_torch.abi3.so", "torch_memory_saver_hook_mode_torch_cu13.abi3.so")
    venv = site(tmp_path, ("torch-memory-saver", "0.0.10", paths))
    known = loads(an_object(paths[0], CUDA_12), an_object(paths[1], CUDA_13), torch="2.11.0")
    assert said(looked(venv, known), "cuda-major-mixed") == []


@pytest.mark.parametrize(
    ("version", "fault"), [("0.4.4+cu129", True), ("0.4.4+cu130", False), ("0.4.4", False)]
)
def test_a_label_that_lies_is_told(tmp_path: pathlib.Path, version: str, *, fault: bool) -> None:
    venv = site(tmp_path, ("sglang-kernel", version, ("sgl_kernel/a.so",)))
    assert len(said(looked(venv, loads(an_object("sgl_kernel/a.so", CUDA_13))), "cuda-label-false")) == fault


@pytest.mark.parametrize(
    ("vision", "torch", "ok", "severity"),
    [
        ("0.26.0", "2.11.0", True, None),
        ("0.29.2", "2.14.1", True, None),
        ("0.25.0", "2.11.0", False, Severity.ERROR),
        ("0.25.0", "2.11.0", True, Severity.WARNING),
    ],
)
def test_torchvision_of_another_torch(
    tmp_path: pathlib.Path, vision: str, torch: str, severity: Severity | None, *, ok: bool
) -> None:
    """pytorch/vision README: 0.26 is made for 2.11, 0.29 for 2.14. K07: torchvision::nms does not exist."""
    venv = site(tmp_path, ("torch", torch, ("torch/a.so",)), ("torchvision", vision, ("torchvision/_C.so",)))
    facts = looked(
        venv, loads(an_object("torchvision/_C.so", loads=ok, symbol="" if ok else "_ZN3c10x"), torch=torch)
    )
    assert [each.severity for each in said(facts, "torch-trio")] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("cuda", "version", "fault"), [(None, "2.11.0+cpu", True), ("13.0", "2.11.0", False)]
)
def test_torch_without_cuda_is_an_error_where_something_needs_it(
    tmp_path: pathlib.Path, cuda: str | None, version: str, *, fault: bool
) -> None:
    venv = site(tmp_path, ("torch", version, ("torch/a.so",)))
    known = loads(an_object("sgl_kernel/a.so", CUDA_13), cuda=cuda, torch=version)
    assert len(said(looked(venv, known), "torch-without-cuda")) == fault
    alone = loads(an_object("a.so"), cuda=cuda, torch=version)
    assert said(looked(venv, alone), "torch-without-cuda") == []


NVRTC = "nvidia/cu13/lib/libnvrtc.so.13"


@pytest.mark.parametrize(
    ("beside", "word"),
    [("libnvrtc-builtins.so.13.0", None), ("libnvrtc-builtins.so.13.1", "13.0"), (None, "libnvrtc-builtins")],
)
def test_nvrtc_needs_the_builtins_of_its_minor(
    tmp_path: pathlib.Path, beside: str | None, word: str | None
) -> None:
    """pytorch/pytorch#150399: failed to open libnvrtc-builtins.so.13.0."""
    paths = (NVRTC, *([f"nvidia/cu13/lib/{beside}"] if beside else []))
    findings = said(looked(site(tmp_path, ("nvidia-cuda-nvrtc", "13.0.88", paths))), "companion-missing")
    assert len(findings) == (word is not None)
    assert word is None or word in findings[0].message


def test_cudnn_needs_all_its_parts(tmp_path: pathlib.Path) -> None:
    parts = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled")
    whole = ("nvidia/cudnn/lib/libcudnn.so.9", *(f"nvidia/cudnn/lib/libcudnn_{part}.so.9" for part in parts))
    assert (
        said(looked(site(tmp_path / "a", ("nvidia-cudnn-cu13", "9.15.0", whole))), "companion-missing") == []
    )
    (finding,) = said(
        looked(site(tmp_path / "b", ("nvidia-cudnn-cu13", "9.15.0", whole[:-1]))), "companion-missing"
    )
    assert "libcudnn_engines_runtime_compiled.so.9" in finding.message


@pytest.mark.parametrize(
    ("cubin", "severity"),
    [("0.6.12", None), ("0.6.12+cu130", None), ("0.6.1", Severity.ERROR), ("0.6.13", Severity.ERROR)],
)
def test_flashinfers_parts_have_one_version(
    tmp_path: pathlib.Path, cubin: str, severity: Severity | None
) -> None:
    """vllm-project/vllm#49804; a local version is equal (#4337), 0.6.1 is not 0.6.12 (#4514)."""
    venv = site(tmp_path, ("flashinfer-python", "0.6.12", ()), ("flashinfer-cubin", cubin, ()))
    assert [each.severity for each in said(looked(venv), "flashinfer-skew")] == (
        [severity] if severity else []
    )


def test_a_flashinfer_that_leaves_out_what_does_not_match(tmp_path: pathlib.Path) -> None:
    """Read in flashinfer 0.7.2, jit/env.py: it warns and goes without."""
    venv = site(tmp_path, ("flashinfer-python", "0.7.2", ()), ("flashinfer-cubin", "0.7.1", ()))
    (finding,) = said(looked(venv), "flashinfer-skew")
    assert finding.severity is Severity.WARNING


def test_a_bypass_of_flashinfers_check_is_told(tmp_path: pathlib.Path) -> None:
    """lightseekorg/tokenspeed#284."""
    venv = site(tmp_path, ("flashinfer-python", "0.6.12", ()))
    facts = looked(venv, ServiceSettings(env={"FLASHINFER_DISABLE_VERSION_CHECK": "1"}))
    (finding,) = said(facts, "flashinfer-skew")
    assert finding.severity is Severity.WARNING


def test_a_jit_cache_for_another_cuda_is_an_error(tmp_path: pathlib.Path) -> None:
    names = (("flashinfer-python", "0.6.12", ()), ("flashinfer-jit-cache", "0.6.12+cu129", ()))
    venv = site(tmp_path, *names)
    (finding,) = said(looked(venv, loads(cuda="13.0")), "flashinfer-skew")
    assert finding.object == "flashinfer-jit-cache"
    assert said(looked(venv, loads(cuda="12.9")), "flashinfer-skew") == []


@pytest.mark.parametrize(
    ("one", "two", "fault"),
    [
        (">=0.1.6,<0.2", "==0.1.11", False),
        (">=0.1.6,!=0.1.8", "<0.2,>0.1.7", False),
        ("<0.1.5", ">=0.1.6", True),
        ("==0.1.6", "==0.1.7", True),
    ],
)
def test_a_range_of_tvm_ffi_that_nothing_meets_is_an_error(
    tmp_path: pathlib.Path, one: str, two: str, *, fault: bool
) -> None:
    """flashinfer-ai/flashinfer#1913, sgl-project/sglang#24609."""
    requires = {"flashinfer_python": f"apache-tvm-ffi{one}", "xgrammar": f"apache-tvm-ffi{two}"}
    venv = site(tmp_path, ("flashinfer-python", "0.6.12", ()), ("xgrammar", "0.2.1", ()), **requires)
    findings = said(looked(venv), "tvm-ffi-range")
    assert len(findings) == fault
    assert all(len(each.evidence) == len(requires) for each in findings)


def test_a_second_tvm_ffi_is_told(tmp_path: pathlib.Path) -> None:
    own = ("apache-tvm-ffi", "0.1.11", ("tvm_ffi/lib/libtvm_ffi.so",))
    assert said(looked(site(tmp_path / "a", own)), "tvm-ffi-copies") == []
    other = ("tilelang", "0.1.11", ("tilelang/lib/libtvm_ffi.so",))
    assert len(said(looked(site(tmp_path / "b", own, other)), "tvm-ffi-copies")) == 1


def test_versions_that_are_none_are_no_crash(tmp_path: pathlib.Path) -> None:
    venv = site(tmp_path, ("torch", "nightly", ()), ("torchvision", "x", ()), ("flashinfer-python", "?", ()))
    facts = looked(venv, replace(loads(cuda=None), installed={"torch": "nightly"}))
    assert [each.severity for each in found(facts, stack_rules.RULES, "torch-trio")] == []
