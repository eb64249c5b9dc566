"""Rules on which GPU kernels are compiled for at run time: catalogue K40."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.checks.arch_list import ArchList
from hostenv.checks.compiling import gpus
from hostenv.checks.finding import Severity
from hostenv.checks.jit_tables import is_older
from hostenv.checks.judge import Rule
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import ServiceSettings, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts

_LISTS = ("FLASHINFER_CUDA_ARCH_LIST", "TVM_FFI_CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST")
_KNOWS_BETTER = Version("0.1.15")


def _arch_lists(facts: Facts) -> Iterator[Finding]:
    env = facts[ServiceSettings].env
    for variable in _LISTS:
        if not env.get(variable):
            continue
        said = ArchList.parse(env[variable])
        uncovered = {cc: name for cc, name in gpus(facts).items() if not said.covers(cc)}
        if said.unread:
            yield ARCH_LIST.finding(
                object=variable,
                severity=Severity.WARNING,
                message=f"compiling a kernel fails, or is for others: {said.unread[0]!r} is no architecture",
                evidence=(f"service.env: {variable}={env[variable]}",),
                fix=f'service.env.{variable} = "{" ".join(f"{cc}" for cc in gpus(facts)) or "9.0a"}"',
            )
        elif uncovered:
            yield ARCH_LIST.finding(
                object=variable,
                severity=Severity.WARNING if variable.startswith("TORCH") else Severity.ERROR,
                message="kernels compiled at run time fail (no kernel image is available) on"
                f" {', '.join(uncovered.values())}: {variable} names other architectures",
                evidence=(
                    f"service.env: {variable}={env[variable]}",
                    f"GPUs: {', '.join(f'{name} ({cc})' for cc, name in gpus(facts).items())}",
                ),
                fix=f"take {variable} out of service.env, or add {', '.join(map(str, uncovered))}",
            )


def _rocm(facts: Facts) -> Iterator[Finding]:
    """Yield that tvm_ffi would compile for AMD.

    It takes any ROCm that it finds (cpp/extension.py of 0.1.11; 0.1.15 asks torch first).
    """
    host, env = facts[Surroundings].host, facts[ServiceSettings].env
    named = next((name for name in ("ROCM_HOME", "ROCM_PATH") if env.get(name)), None)
    there = named or ("/opt/rocm" if host and host.rocm else None)
    version = facts[LoadFacts].installed.get("apache-tvm-ffi")
    told = env.get("TVM_FFI_GPU_BACKEND", "").lower() == "cuda"
    if there and version and is_older(version, _KNOWS_BETTER) and gpus(facts) and not told:
        yield ROCM.finding(
            object=there,
            message="kernels that tvm_ffi compiles are compiled with hipcc for AMD GPUs, and fail",
            evidence=(f"{there} is there, and apache-tvm-ffi {version} takes it before CUDA",),
            fix='service.env.TVM_FFI_GPU_BACKEND = "cuda"',
        )


ARCH_LIST = Rule(
    id="jit-arch-list",
    severity=Severity.ERROR,
    kind="K40",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/371",
    check=_arch_lists,
)
ROCM = Rule(
    id="jit-rocm-first",
    severity=Severity.WARNING,
    kind="K40",
    reference="https://github.com/apache/tvm-ffi/issues/651",
    check=_rocm,
)
RULES = (ARCH_LIST, ROCM)
"""Catalogue K40."""
