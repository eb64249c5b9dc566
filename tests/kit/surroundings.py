"""Facts about a service's surroundings for tests: a sound Hopper host, with changes."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostenv.checks.judge import Facts, judge
from hostenv.checks.surrounding import RULES
from hostenv.facts.gpu_code import DottedPair, GpuTargets, TargetGpu
from hostenv.facts.objects import Load, LoadFacts, SharedObject
from hostenv.facts.surroundings import (
    Assembler,
    CachedObject,
    CompileCache,
    CompilerToolkit,
    HostSurroundings,
    LibraryFolder,
    ModuleFile,
    ServiceSettings,
    Surroundings,
)
from kit.hostfacts import facts as host_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.facts.host import HostFacts

VENV = "/srv/env"
SITE = f"{VENV}/lib/python3.12/site-packages"
INSTALLED = {
    "torch": "2.11.0",
    "triton": "3.6.0",
    "sglang": "0.5.15.post1",
    "flashinfer-python": "0.6.12",
    "flashinfer-cubin": "0.6.12",
    "nvidia-cudnn-cu13": "9.19.0.56",
    "numpy": "2.3.5",
}
TOOLKIT = CompilerToolkit(
    home="/usr/local/cuda", origin="CUDA_HOME", nvcc="13.0.88", headers="13.0", newest_gcc=15, cccl=True
)
PTXAS = Assembler(
    tool="ptxas",
    path=f"{SITE}/triton/backends/nvidia/bin/ptxas",
    variable=None,
    version="12.8.93",
    targets=frozenset(["75", "80", "86", "89", "90", "90a", "100", "100a", "120", "120a"]),
    problem=None,
)
CACHE = CompileCache(
    name="flashinfer",
    path="/root/.cache/flashinfer",
    variable=None,
    exists=True,
    usable=True,
    owner="root",
    filesystem="ext4",
    noexec=False,
    complete=True,
    objects=(),
)
KERNEL = CachedObject(
    path="0.6.12/90a/cached_ops/norm/norm.so",
    needed=("libcudart.so.13", "libstdc++.so.6", "libc.so.6"),
    needs_glibc="2.34",
    needs_glibcxx="3.4.32",
    built_for=VENV,
    modified=0.0,
    problem=None,
)
HOST = HostSurroundings(
    caches=(),
    folders=(),
    preloaded=(),
    nccl=(),
    majors={"nvidia": 195, "nvidia-uvm": 238},
    modules=(),
    rocm=False,
)
AROUND = Surroundings(
    venv=VENV,
    toolkits=(TOOLKIT,),
    assemblers=(PTXAS,),
    python_headers="/usr/include/python3.12",
    has_python_headers=True,
    ninja=f"{VENV}/bin/ninja",
    host=HOST,
)
SERVICE = ServiceSettings(stated=True, env={"PATH": f"{VENV}/bin:/usr/bin", "CUDA_HOME": "/usr/local/cuda"})


def loads(installed: Mapping[str, str | None] | None = None, *, cuda: str | None = "13.0") -> LoadFacts:
    """Return an environment that holds these distributions (``None``: not that one) and loads."""
    together: dict[str, str | None] = {**INSTALLED, **(installed or {})}
    fine = Load(loads=True)
    names = ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cu13/lib/libcublas.so.13", "torch/lib/libc10.so")
    return LoadFacts(
        site=SITE,
        interpreter="/usr/bin/python3.12",
        glibc="2.39",
        package="torch",
        cuda=cuda,
        preload=fine,
        objects=tuple(SharedObject(path=path, alone=fine, after=fine) for path in names),
        not_objects={},
        owners={},
        built_for={},
        installed={name: version for name, version in together.items() if version is not None},
    )


def around(host: Mapping[str, Any] | None = None, **changes: Any) -> Surroundings:
    """Return sound surroundings with these changes, those of the host's part apart."""
    return replace(AROUND, **{"host": replace(HOST, **(host or {})), **changes})


def service(env: Mapping[str, str] | None = None, *args: str, **changes: Any) -> ServiceSettings:
    """Return a stated service with more variables and these arguments."""
    return replace(SERVICE, env={**SERVICE.env, **(env or {})}, args=args, **changes)


def targets(*capabilities: str, driver: str = "580.159.04", cuda: str | None = "13.0") -> GpuTargets:
    """Return GPUs of these compute capabilities under a driver."""
    gpus = tuple(
        TargetGpu(name=f"GPU {index}", compute_capability=DottedPair.parse(one))
        for index, one in enumerate(capabilities or ("9.0",))
    )
    return GpuTargets(gpus=gpus, driver=driver, cuda=DottedPair.parse(cuda) if cuda else None)


def judged(*known: object, host: Mapping[str, Any] | HostFacts | None = None) -> list[Finding]:
    """Judge sound facts in which these take the place of theirs; ``host`` are changes to a recorded host."""
    recorded = host_facts(host) if host is None or not hasattr(host, "driver") else host
    facts = Facts(recorded, loads(), AROUND, SERVICE, targets(), *known)
    return list(judge(facts, RULES, today=dt.date(2026, 12, 1)).findings)


def told(found: Sequence[Finding]) -> list[tuple[str, str, str | None]]:
    """Return severity, rule and kind of each finding, to compare."""
    return [(one.severity.value, one.rule, one.kind) for one in found]


__all__ = [
    "AROUND", "CACHE", "HOST", "KERNEL", "PTXAS", "SERVICE", "SITE", "TOOLKIT", "VENV",
    "LibraryFolder", "ModuleFile", "around", "judged", "loads", "service", "targets", "told",
]  # fmt: skip
