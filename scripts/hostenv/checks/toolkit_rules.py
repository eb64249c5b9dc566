"""Rules on the toolkit that compiles kernels at run time: catalogue K38, K39, K41, and K22 for its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.compiling import gpus, odd_parts, pair, torch_cuda, used_toolkit, who_needs
from hostenv.checks.finding import Severity
from hostenv.checks.jit_tables import is_older, jit_tables
from hostenv.checks.judge import Rule
from hostenv.facts.gpu_code import GpuTargets
from hostenv.facts.host import HostFacts
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import ServiceSettings, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.gpu_code import DottedPair
    from hostenv.facts.surroundings import CompilerToolkit

_STRICT_GLIBC = (2, 41)
_FIRST_FOR_STRICT_GLIBC = 13
_UNSUPPORTED_ALLOWED = "-allow-unsupported-compiler"


def _too_old(facts: Facts) -> Iterator[Finding]:
    needing, used = who_needs(facts, "nvcc"), used_toolkit(facts)
    if needing is None or used is None or used.nvcc is None:
        return
    version = pair(used.nvcc)
    for capability, name in gpus(facts).items():
        needed, source = _needed(facts, capability)
        if version is None or needed is None:
            yield TOO_OLD.finding(
                object=used.home,
                severity=Severity.UNKNOWN,
                message=f"not judged: whether nvcc {used.nvcc} compiles for {name} ({capability})",
            )
        elif version < needed:
            yield TOO_OLD.finding(
                object=used.home,
                message=f"{needing}: compiling a kernel fails at its first use on {name}: nvcc {version}"
                f" cannot make code for compute capability {capability}, {needed} can",
                evidence=(f"{used.origin}: {used.home}, nvcc {used.nvcc}", f"needed: {needed} ({source})"),
                fix=f"install CUDA {needed} or later and name it in service.env.CUDA_HOME",
            )


def _needed(facts: Facts, capability: DottedPair) -> tuple[DottedPair | None, str]:
    """Return the nvcc that a GPU needs, and who says so."""
    tables, installed = jit_tables(), facts[LoadFacts].installed
    needed, source = tables.nvcc.get(capability), "release notes"
    if needed is None and capability < min(tables.nvcc):
        needed = min(tables.nvcc.values())
    for asked in tables.asks:
        there = installed.get(asked.distribution)
        applies = there and is_older(there, asked.before) and asked.capability.matches(capability)
        if applies and (needed is None or asked.nvcc > needed):
            needed, source = asked.nvcc, asked.source
    return needed, source


def _other_major(facts: Facts) -> Iterator[Finding]:
    needing, used, built = who_needs(facts, "nvcc"), used_toolkit(facts), torch_cuda(facts)
    version = pair(used.nvcc) if used else None
    if needing is None or used is None or version is None or built is None or version.major == built.major:
        return
    yield OTHER_MAJOR.finding(
        object=used.home,
        message=f"kernels compiled at run time link libcudart.so.{version.major} beside torch's"
        f" .so.{built.major}, and torch's own compiler refuses (detected CUDA version mismatches)",
        evidence=(f"{used.origin}: nvcc {used.nvcc}", f"torch is built for CUDA {built}"),
        fix=f"name a CUDA {built.major} toolkit in service.env.CUDA_HOME",
    )


def _newer_than_driver(facts: Facts) -> Iterator[Finding]:
    needing, used, served = who_needs(facts, "nvcc"), used_toolkit(facts), facts[GpuTargets].cuda
    version = pair(used.nvcc) if used else None
    if needing is None or used is None or version is None:
        return
    if served is None:
        if facts[GpuTargets].gpus:
            yield NEWER.finding(
                object=used.home,
                severity=Severity.UNKNOWN,
                message=f"not judged: whether the driver runs what nvcc {version} compiles",
            )
    elif version.major > served.major:
        yield NEWER.finding(
            object=used.home,
            severity=Severity.ERROR,
            message=f"{needing}: kernels compiled at run time fail (35, driver version is insufficient): nvcc"
            f" {version} needs a driver for CUDA {version.major}, this one serves {served}",
            evidence=(f"{used.origin}: {used.home}, nvcc {used.nvcc}",),
            fix=f"name a toolkit of CUDA {served} or older in service.env.CUDA_HOME, or upgrade the driver",
        )
    elif version > served:
        yield NEWER.finding(
            object=used.home,
            message=f"what nvcc {version} leaves as PTX fails (222, unsupported toolchain): the driver reads"
            f" that of CUDA {served}; machine code for this GPU works",
            evidence=(f"{used.origin}: nvcc {used.nvcc}",),
        )


def _mixed(facts: Facts) -> Iterator[Finding]:
    installed = facts[LoadFacts].installed
    for toolkit in facts[Surroundings].toolkits:
        different = odd_parts(toolkit)
        nvcc = pair(toolkit.nvcc)
        if not different or nvcc is None:
            continue
        wheels = tuple(
            f"{name} {installed[name]}"
            for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime")
            if name in installed
        )
        used = toolkit.origin != "environment"
        headers = pair(toolkit.headers)
        yield MIXED.finding(
            object=toolkit.home,
            severity=Severity.ERROR if used else Severity.NOTE,
            message='compiling what includes CCCL fails ("CUDA compiler and CUDA toolkit headers are'
            f' incompatible"): nvcc is {nvcc}, {", ".join(different)}'
            + ("" if used else "; nothing leads the service to this toolkit"),
            evidence=(f"{toolkit.home}: nvcc {toolkit.nvcc}, CUDART_VERSION {toolkit.headers}", *wheels),
            fix="constraints: " + ", ".join(
                f"{name}=={headers}.*" for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")
            ),
        )  # fmt: skip


def _host_compiler(facts: Facts) -> Iterator[Finding]:
    needing, used = who_needs(facts, "nvcc"), used_toolkit(facts)
    cuda = pair(used.nvcc) if used else None
    env = facts[ServiceSettings].env
    if needing is None or used is None or cuda is None:
        return
    flags = env.get("NVCC_APPEND_FLAGS", "") + env.get("NVCC_PREPEND_FLAGS", "")
    tool = facts[HostFacts].toolchain.commands.get("g++")
    gcc = tool.known_value if tool else None
    newest = used.newest_gcc or jit_tables().newest_gcc(cuda)
    own = "NVCC_CCBIN" in env or "CC" in env or "-ccbin" in flags or _UNSUPPORTED_ALLOWED in flags
    major = int(gcc.version.partition(".")[0]) if gcc and gcc.version else None
    if not own and newest is not None and major is not None and major > newest:
        yield HOST_COMPILER.finding(
            object=gcc.path if gcc else "g++",
            message=f"{needing}: compiling a kernel fails at its first use (unsupported GNU version):"
            f" nvcc {cuda} takes GCC up to {newest}, g++ is {major}",
            evidence=(f"{used.home}: nvcc {used.nvcc}", f"g++ {gcc.version if gcc else ''}"),
            fix=f'apt-get install g++-{newest}; service.env.NVCC_CCBIN = "/usr/bin/g++-{newest}"',
        )
    yield from _glibc(facts, used, cuda, needing)


def _glibc(facts: Facts, used: CompilerToolkit, cuda: DottedPair, needing: str) -> Iterator[Finding]:
    told = pair(facts[HostFacts].system.glibc.or_else(None))
    if told and (told.major, told.minor) >= _STRICT_GLIBC and cuda.major < _FIRST_FOR_STRICT_GLIBC:
        yield HOST_COMPILER.finding(
            object=used.home,
            message=f'{needing}: compiling a kernel fails at its first use ("cospi" has another'
            f" exception specification): the headers of glibc {told} and of CUDA {cuda} contradict",
            evidence=(f"glibc {told}", f"{used.home}: nvcc {used.nvcc}"),
            fix="name a CUDA 13 toolkit in service.env.CUDA_HOME, or compile where glibc is older than 2.41",
        )
    if cuda.major >= _FIRST_FOR_STRICT_GLIBC and not used.cccl:
        yield HOST_COMPILER.finding(
            object=f"{used.home}/include/cccl",
            severity=Severity.WARNING,
            message="compiling what includes cuda/std or cub fails: CUDA 13 keeps them in include/cccl, which"
            " is not there",
            fix="install the toolkit's package cuda-cccl, or nvidia-cuda-cccl in the environment",
        )


TOO_OLD = Rule(
    id="jit-nvcc-too-old", severity=Severity.ERROR, kind="K38",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/3633", check=_too_old,
)  # fmt: skip
OTHER_MAJOR = Rule(
    id="jit-cuda-other-major", severity=Severity.WARNING, kind="K38",
    reference="https://github.com/vllm-project/vllm/issues/1548", check=_other_major,
)  # fmt: skip
NEWER = Rule(
    id="jit-newer-than-driver", severity=Severity.NOTE, kind="K22",
    reference="https://github.com/vllm-project/vllm/issues/47399", check=_newer_than_driver,
)  # fmt: skip
MIXED = Rule(
    id="toolkit-mixed", severity=Severity.ERROR, kind="K39",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/3493", check=_mixed,
)  # fmt: skip
HOST_COMPILER = Rule(
    id="jit-host-compiler", severity=Severity.ERROR, kind="K41",
    reference="https://github.com/NVIDIA/cuda-samples/issues/378", check=_host_compiler,
)  # fmt: skip

RULES = (TOO_OLD, OTHER_MAJOR, NEWER, MIXED, HOST_COMPILER)
"""Catalogue K38, K39 and K41, and K22 for what compiles at run time."""
