"""Rules on whether kernels can be compiled at run time at all: catalogue K36 and K37."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.compiling import (
    certain,
    compilers,
    gpus,
    odd_parts,
    seen_by,
    torch_cuda,
    used_toolkit,
    who_needs,
)
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.facts.host import HostFacts
from hostenv.facts.surroundings import ServiceSettings, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts

_SUFFIXED_FROM = 9
_BLACKWELL = 10


def _assembler(facts: Facts) -> Iterator[Finding]:
    known = {one.tool: one for one in facts[Surroundings].assemblers}
    if "ptxas" not in known:
        return
    for capability, name in gpus(facts).items():
        split = capability.major >= _BLACKWELL and "ptxas-blackwell" in known
        one = known["ptxas-blackwell" if split else "ptxas"]
        target = f"{capability.major}{capability.minor}{'a' if capability.major >= _SUFFIXED_FROM else ''}"
        if one.problem:
            yield ASSEMBLER.finding(
                object=one.variable or one.path,
                severity=None
                if one.targets == frozenset() and "tells" not in one.problem
                else Severity.UNKNOWN,
                message=f"every Triton kernel fails to compile at its first use: {one.path} {one.problem}",
                evidence=(f"{one.variable or 'of the triton wheel'}: {one.path}",),
                fix=f"take {one.variable} out of the service's environment, or give it a ptxas that is there"
                if one.variable
                else "install triton again",
            )
        elif target not in one.targets:
            yield ASSEMBLER.finding(
                object=one.path,
                message="every Triton kernel fails to compile at its first use"
                f" (ptxas fatal: Value 'sm_{target}' is not defined) on {name}",
                evidence=(f"{one.tool} {one.version} has no sm_{target}",),
                fix=f"{_variable(split=split)}=PATH of a ptxas that knows sm_{target}, or a newer triton",
            )


def _variable(*, split: bool) -> str:
    return "TRITON_PTXAS_BLACKWELL_PATH" if split else "TRITON_PTXAS_PATH"


def _commands(facts: Facts) -> Iterator[Finding]:
    tools = facts[HostFacts].toolchain.commands
    for name in ("ninja", "c++", "gcc"):
        needing = who_needs(facts, name)
        tool = tools.get(name)
        if needing is None or (name == "gcc" and "CC" in facts[ServiceSettings].env):
            continue
        if tool is None or tool.unknown is not None:
            reason = tool.unknown if tool else "the host was not asked"
            yield COMMAND.finding(object=name, severity=Severity.UNKNOWN, message=f"not judged: {reason}")
        elif tool.value is None:
            yield COMMAND.finding(
                object=name,
                severity=certain(facts),
                message=f"{needing}: compiling a kernel fails at its first use, {name} is not on the PATH of"
                f" {seen_by(facts)}",
                evidence=(f"PATH={facts[HostFacts].toolchain.path.or_else('unknown')}",),
                fix=_command_fix(facts, name),
            )


def _command_fix(facts: Facts, name: str) -> str:
    own = facts[Surroundings].ninja
    if name == "ninja":
        if own:
            return 'put "{build}/bin" first in service.env.PATH: the environment has its own ninja there'
        return "add ninja to env.requires, and {build}/bin to service.env.PATH"
    return "install a C++ compiler on the host (apt-get install g++)"


def _toolkit(facts: Facts) -> Iterator[Finding]:
    needing = who_needs(facts, "nvcc")
    if needing is None:
        return
    home = facts[HostFacts].toolchain.cuda_home
    used = used_toolkit(facts)
    if used is not None and used.nvcc is not None:
        return
    if home.unknown is not None:
        yield TOOLKIT.finding(
            object="CUDA_HOME", severity=Severity.UNKNOWN, message=f"not judged: {home.unknown}"
        )
        return
    stated = home.value.origin in facts[ServiceSettings].env
    told = (
        f"{home.value.origin}={home.value.path}" if home.value.path else f"no {home.value.origin} CUDA_HOME"
    )
    yield TOOLKIT.finding(
        object="CUDA_HOME",
        severity=Severity.ERROR if stated else certain(facts),
        message=f"{needing}: compiling a kernel fails at its first use: no nvcc for {seen_by(facts)}",
        evidence=(f"{told}: {home.value.problem or 'holds no bin/nvcc'}",),
        fix=_toolkit_fix(facts),
    )


def _toolkit_fix(facts: Facts) -> str:
    own = next(
        (one for one in facts[Surroundings].toolkits if one.origin == "environment" and one.nvcc), None
    )
    if own and not odd_parts(own):
        return f'service.env.CUDA_HOME = "{own.home}"'
    cuda = torch_cuda(facts)
    return (
        f"install the CUDA toolkit {cuda or 'of torch'} on the host and name its one folder in"
        " service.env.CUDA_HOME"
    )


def _headers(facts: Facts) -> Iterator[Finding]:
    needing = ", ".join(one.distribution for one in compilers(facts) if one.headers)
    around = facts[Surroundings]
    if needing and not around.has_python_headers:
        yield HEADERS.finding(
            object=f"{around.python_headers}/Python.h",
            message=f"{needing}: compiling its launcher fails at the first kernel (fatal error: Python.h)",
            evidence=(f"{around.python_headers} holds no Python.h",),
            fix="install the interpreter's headers (python3-dev), or build with an interpreter that has them",
        )


def _linking(facts: Facts) -> Iterator[Finding]:
    needing = ", ".join(one.distribution for one in compilers(facts) if one.libcuda)
    library = facts[HostFacts].toolchain.libcuda_for_linking
    if not needing:
        return
    if library.unknown is not None:
        yield LINKING.finding(
            object="libcuda.so", severity=Severity.UNKNOWN, message=f"not judged: {library.unknown}"
        )
    elif library.value is None:
        yield LINKING.finding(
            object="libcuda.so",
            severity=certain(facts),
            message=f"{needing}: linking a kernel fails at its first use (ld: cannot find -lcuda)",
            evidence=("neither CUDA_HOME/lib64/stubs nor the system's folders hold libcuda.so",),
            fix="ln -s libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so, or a toolkit with lib64/stubs",
        )


_NINJA = "https://github.com/flashinfer-ai/flashinfer/issues/3386"
ASSEMBLER = Rule(
    id="triton-ptxas", severity=Severity.ERROR, kind="K36",
    reference="https://github.com/triton-lang/triton/issues/8539", check=_assembler,
)  # fmt: skip
COMMAND = Rule(id="jit-command", severity=Severity.ERROR, kind="K37", reference=_NINJA, check=_commands)
TOOLKIT = Rule(
    id="jit-nvcc", severity=Severity.ERROR, kind="K37",
    reference="https://github.com/vllm-project/vllm/issues/36077", check=_toolkit,
)  # fmt: skip
HEADERS = Rule(
    id="jit-python-headers", severity=Severity.ERROR, kind="K37",
    reference="https://github.com/vllm-project/vllm/issues/11643", check=_headers,
)  # fmt: skip
LINKING = Rule(
    id="jit-libcuda", severity=Severity.ERROR, kind="K37",
    reference="https://github.com/pytorch/pytorch/issues/107960", check=_linking,
)  # fmt: skip
RULES = (ASSEMBLER, COMMAND, TOOLKIT, HEADERS, LINKING)
"""Catalogue K36 and K37."""
