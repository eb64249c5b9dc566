"""Public threads replayed as facts: the finding names the thread's true cause.

Each case is what the thread's author had, as far as it says, and the rule and words that would have told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hostenv.checks.abi_rules import RULES
from hostenv.checks.finding import Severity
from hostenv.checks.judge import judge
from hostenv.facts.surroundings import ServiceSettings
from kit.environment import SITE, distribution, make_environment, put
from kit.sites import TODAY, an_object, loads, looked

if TYPE_CHECKING:
    import pathlib

    from hostenv.facts.objects import LoadFacts

Files = dict[str, str | bytes]
Case = tuple[Files, "LoadFacts", str, str, str]

NONE = loads(cuda=None)


def failing(path: str, rule: str, words: str, *, owner: str = "", **why: str) -> Case:
    """Return the case of one object that does not load, for what the loader said."""
    known = loads(an_object(path, loads=False, text="as the thread has it", **why), torch="2.11.0+cu130")
    return {}, replace(known, owners={path: owner} if owner else {}), rule, path, words


CASES: dict[str, Case] = {
    # sgl-kernel 0.3.x asks for a minimum in code; the older one was installed
    "verl-project/verl#1832": (
        {
            **distribution("sgl-kernel", "0.1.0", {"sgl_kernel/common_ops.abi3.so": b"\x7fELF"}),
            **distribution(
                "sglang",
                "0.4.6.post5",
                {"sglang/engine.py": 'assert_pkg_version("sgl-kernel", "0.1.2.post1", "reinstall")\n'},
                requires=["sgl-kernel"],
            ),
        },
        NONE,
        "kernel-too-old",
        "sgl-kernel",
        "0.1.2.post1",
    ),
    # flashinfer-cubin of another release
    "vllm-project/vllm#49804": (
        {**distribution("flashinfer-python", "0.6.14", {}), **distribution("flashinfer-cubin", "0.6.13", {})},
        NONE,
        "flashinfer-skew",
        "flashinfer-python",
        "different versions",
    ),
    # a shared tvm-ffi that one of two cannot take
    "sgl-project/sglang#24609": (
        {
            **distribution("flashinfer-python", "0.6.1", {}, requires=["apache-tvm-ffi<0.1.7"]),
            **distribution("xgrammar", "0.1.27", {}, requires=["apache-tvm-ffi>=0.1.8"]),
            **distribution("apache-tvm-ffi", "0.1.8", {"tvm_ffi/a.py": ""}),
        },
        NONE,
        "tvm-ffi-range",
        "apache-tvm-ffi",
        "no version of apache-tvm-ffi",
    ),
    # a kernel module for 3.10 only in an abi3 wheel, on 3.12
    "sgl-project/sglang#37640": (
        distribution(
            "sglang-kernel",
            "0.4.10",
            {"sgl_kernel/infllm_ops.cpython-310-x86_64-linux-gnu.so": b"\x7fELF"},
            tags=["cp310-abi3-manylinux2014_x86_64"],
        ),
        NONE,
        "extension-mislabelled",
        "sgl_kernel/infllm_ops.cpython-310-x86_64-linux-gnu.so",
        "another Python than 3.12",
    ),
    # the CUDA 12 kernel of the default index beside torch for CUDA 13
    "sgl-project/sglang#12949": (
        distribution("sgl-kernel", "0.3.16", {"sgl_kernel/flash_ops.abi3.so": b"\x7fELF"}),
        loads(
            an_object(
                "sgl_kernel/flash_ops.abi3.so", "libcudart.so.12", loads=False, library="libcudart.so.12"
            ),
            torch="2.9.0+cu130",
        ),
        "cuda-major-mixed",
        "sgl-kernel",
        "does not load here",
    ),
    # libnvrtc-builtins lost with --no-deps
    "pytorch/pytorch#150399": (
        distribution("nvidia-cuda-nvrtc", "13.0.88", {"nvidia/cu13/lib/libnvrtc.so.13": b"\x7fELF"}),
        NONE,
        "companion-missing",
        "nvidia/cu13/lib/libnvrtc.so.13",
        "libnvrtc-builtins.so.13",
    ),
    # an editable tree beside a copy: edits without effect
    "pypa/setuptools#3557": (
        {
            **distribution("sglang", "0.5.9", {"sglang/__init__.py": ""}),
            "__editable___sglang_0_finder.py": "MAPPING = {'sglang': '/root/sglang/python/sglang'}\n",
        },
        NONE,
        "source-tree-twice",
        "sglang",
        "/root/sglang/python/sglang",
    ),
    # NCCL of the other CUDA, same version string, other bytes
    "vllm-project/vllm#42354": (
        {
            **distribution("torch", "2.11.0", {"torch/a.py": ""}, requires=["nvidia-nccl-cu13==2.28.9"]),
            **distribution("nvidia-nccl-cu13", "2.28.9", {"nvidia/nccl/lib/libnccl.so.2": "cuda13"}),
            **distribution("nvidia-nccl-cu12", "2.28.9", {"nvidia/nccl/lib/libnccl.so.2": "cuda12"}),
        },
        NONE,
        "library-of-wrong-owner",
        "nvidia/nccl/lib/libnccl.so.2",
        "nvidia-nccl-cu12 2.28.9",
    ),
    # torchvision of the torch before
    "pytorch/vision#8985": (
        {
            **distribution("torch", "2.11.0", {}),
            **distribution("torchvision", "0.25.0", {"torchvision/a.py": ""}),
        },
        loads(an_object("torchvision/_C.so", loads=False, symbol="_ZN3c10x"), torch="2.11.0"),
        "torch-trio",
        "torchvision",
        "made for torch 2.10",
    ),
    # a CPU wheel after a resolution without the local version
    "astral-sh/uv#7202": (
        distribution("torch", "2.11.0+cpu", {"torch/a.py": ""}),
        loads(an_object("sgl_kernel/a.so", "libcudart.so.13"), cuda=None, torch="2.11.0+cpu"),
        "torch-without-cuda",
        "torch",
        "built without CUDA",
    ),
    # a kernel of another torch, whose loader speaks of a missing architecture
    "sgl-project/sglang#29317": failing(
        "sgl_kernel/sm100/common_ops.abi3.so",
        "kernel-for-another-torch",
        "c10::SymInt::sym_ne(c10::SymInt const&) const",
        owner="sgl_kernel-0.3.21",
        symbol="_ZNK3c106SymInt6sym_neERKS0_",
    ),
    "Dao-AILab/flash-attention#931": failing(
        "flash_attn_2_cuda.so",
        "extension-for-another-torch",
        "c10::cuda::SetDevice(int)",
        owner="flash_attn-2.5.8",
        symbol="_ZN3c104cuda9SetDeviceEi",
    ),
    "sgl-project/sglang#5100": failing(
        "flashinfer/flashinfer_kernels.abi3.so",
        "extension-old-string-abi",
        "the old std::string ABI",
        owner="flashinfer_python-0.2.3",
        symbol="_ZN5torch3jit17parseSchemaOrNameERKSsb",
    ),
    # libnccl of the other of two distributions
    "pytorch/pytorch#186591": failing(
        "torch/lib/libtorch_cuda.so", "nccl-too-old", "ncclCommResume", symbol="ncclCommResume"
    ),
    # green contexts, on a driver that has none
    "sgl-project/sglang#8131": failing(
        "sgl_kernel/spatial_ops.abi3.so",
        "driver-symbol-missing",
        "cuGreenCtxStreamCreate",
        symbol="cuGreenCtxStreamCreate",
    ),
    # "no attribute rms_norm", after an import that was swallowed
    "vllm-project/vllm#6562": failing(
        "vllm/_C.abi3.so", "glibc-too-old", "GLIBC_2.32", version="GLIBC_2.32", library="/lib/libc.so.6"
    ),
    "kvcache-ai/ktransformers#439": failing(
        "cpuinfer_ext.so",
        "libstdcxx-too-old",
        "GLIBCXX_3.4.32",
        version="GLIBCXX_3.4.32",
        library="/opt/conda/lib/libstdc++.so.6",
    ),
    # ptxas without its x bit after a copy
    "pytorch/pytorch#123054": (
        {"triton/backends/nvidia/bin/ptxas": b"\x7fELF"},
        NONE,
        "program-not-executable",
        "triton/backends/nvidia/bin/ptxas",
        "Permission denied",
    ),
}


@pytest.mark.parametrize("thread", CASES)
def test_the_threads_cause_is_named(tmp_path: pathlib.Path, thread: str) -> None:
    files, known, rule, subject, words = CASES[thread]
    venv = make_environment(tmp_path / "venv", files)
    for path in (path for path in files if path == "nvidia/nccl/lib/libnccl.so.2"):
        put(venv / SITE / path, "cuda12")  # the last one written won
    findings = judge(looked(venv, known, ServiceSettings()), RULES, today=TODAY).findings
    named = [each for each in findings if each.rule == rule]
    assert [each.object for each in named] == [subject]
    assert words in " ".join((named[0].message, *named[0].evidence))
    assert named[0].severity in {Severity.ERROR, Severity.WARNING}
