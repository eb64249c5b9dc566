"""Which toolkit an environment's kernels are compiled with at run time, and by whom."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hostenv.checks.finding import Severity
from hostenv.checks.jit_tables import jit_tables
from hostenv.facts.gpu_code import DottedPair, GpuTargets
from hostenv.facts.host import HostFacts
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import CompilerToolkit, ServiceSettings, Surroundings

if TYPE_CHECKING:
    from hostenv.checks.jit_tables import RunTimeCompiler
    from hostenv.checks.judge import Facts

_PAIR = re.compile(r"(\d+)\.(\d+)")


def compilers(facts: Facts) -> tuple[RunTimeCompiler, ...]:
    """Return who of the environment compiles at run time."""
    installed = facts[LoadFacts].installed
    return tuple(one for one in jit_tables().compilers if one.compiles(installed))


def who_needs(facts: Facts, tool: str) -> str | None:
    """Return who needs a tool at run time (``flashinfer-python, sglang``); ``None``: nobody."""
    return ", ".join(one.distribution for one in compilers(facts) if tool in one.needs) or None


def used_toolkit(facts: Facts) -> CompilerToolkit | None:
    """Return the toolkit that CUDA_HOME (or what stands for it) leads to; ``None``: none that is there.

    Of another machine's saved facts only nvcc's version is known.
    """
    around = facts[Surroundings]
    if around.host is not None:
        found = next((each for each in around.toolkits if each.origin != "environment"), None)
        if found is None or pair(found.nvcc) or not found.nvcc:
            return found
        return replace(found, nvcc=_asked_nvcc(facts[HostFacts], found.home) or found.nvcc)
    tools = facts[HostFacts].toolchain
    home = tools.cuda_home.or_else(None)
    if home is None or home.path is None or home.problem:
        return None
    return CompilerToolkit(
        home=home.path, origin=home.origin, nvcc=_saved_nvcc(facts[HostFacts], home.path), headers=None,
        newest_gcc=None, cccl=True,
    )  # fmt: skip


def _saved_nvcc(host: HostFacts, home: str) -> str | None:
    for toolkit in host.toolchain.toolkits.or_else(()):
        if home.rstrip("/") in (toolkit.home, *toolkit.also):
            return toolkit.nvcc.or_else(None)
    return _asked_nvcc(host, home)


def _asked_nvcc(host: HostFacts, home: str) -> str | None:
    """Return what the nvcc on PATH answered, where it is that toolkit's."""
    tool = host.toolchain.commands.get("nvcc")
    found = tool.known_value if tool else None
    return found.version if found and found.path.startswith(home.rstrip("/") + "/") else None


def pair(version: str | None) -> DottedPair | None:
    """Return the first two numbers of a version (``13.0.88`` → 13.0); ``None`` where there are none."""
    found = _PAIR.match(version or "")
    return DottedPair(int(found[1]), int(found[2])) if found else None


def torch_cuda(facts: Facts) -> DottedPair | None:
    """Return the CUDA that torch was built for."""
    return pair(facts[LoadFacts].cuda)


def gpus(facts: Facts) -> dict[DottedPair, str]:
    """Return the known compute capabilities and the first GPU of each."""
    found: dict[DottedPair, str] = {}
    for gpu in facts[GpuTargets].gpus:
        if gpu.compute_capability is not None:
            found.setdefault(gpu.compute_capability, gpu.name)
    return found


def certain(facts: Facts) -> Severity:
    """Return how bad it is when a command is not on PATH: an error only where the spec states the PATH."""
    return Severity.ERROR if facts[ServiceSettings].states_path else Severity.WARNING


def seen_by(facts: Facts) -> str:
    """Return whose PATH was looked at, for messages."""
    return "the service" if facts[ServiceSettings].states_path else "the login (the spec states no PATH)"


def odd_parts(toolkit: CompilerToolkit) -> tuple[str, ...]:
    """Return the parts of a toolkit whose CUDA differs from nvcc's (``headers 13.0``)."""
    nvcc, headers = pair(toolkit.nvcc), pair(toolkit.headers)
    return (f"headers {headers}",) if nvcc and headers and nvcc != headers else ()
