"""Rules on kernels that were compiled or fetched before: catalogue K43 and K44."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.agent.amounts import counted
from hostenv.checks.compiling import gpus, torch_cuda
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.facts.gpu_code import GpuTargets
from hostenv.facts.host import HostFacts
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import ServiceSettings, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.surroundings import CachedObject, CompileCache

_FETCHED_FOR = 10
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "fuse", "lustre", "gpfs", "9p", "virtiofs")
_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|cusparse|cusolver)\.so\.(\d+)")
_SHOWN = 3


def _public(version: str) -> str:
    try:
        return Version(version).public
    except ValueError:
        return version.partition("+")[0]


def _caches(facts: Facts) -> Iterator[Finding]:
    host = facts[Surroundings].host
    if host is None:
        yield CACHE.finding(
            object="compile caches",
            severity=Severity.UNKNOWN,
            message="not judged: which kernels are kept on that host (saved facts do not hold it)",
            fix="give the service a cache of its own: {root}/jit/{id} in service.env",
        )
        return
    for cache in host.caches:
        used = [each for each in cache.objects if _is_used(facts, cache, each)]
        yield from _broken(facts, cache, used)
        yield from _foreign(facts, cache, used)


def _places(facts: Facts) -> Iterator[Finding]:
    host = facts[Surroundings].host
    for cache in host.caches if host else ():  # without: said once, by jit-cache
        yield from _place(cache)


def _place(cache: CompileCache) -> Iterator[Finding]:
    named = cache.variable or "default"
    if not cache.usable:
        yield CACHE_PLACE.finding(
            object=cache.path,
            message=f"compiling a kernel fails at its first use: the {cache.name} cache is not writable",
            evidence=(f"{named}: {cache.path}", f"owner: {cache.owner or 'not there yet'}"),
            fix=f"chown it to the service's user, or name another folder in service.env.{named}",
        )
    if cache.noexec:
        yield CACHE_PLACE.finding(
            object=cache.path,
            message="compiled kernels do not load (failed to map segment): the filesystem is mounted noexec",
            evidence=(f"{named}: {cache.path} on {cache.filesystem}, noexec",),
            fix=f"name a folder on another filesystem in service.env.{named}",
        )
    elif cache.filesystem and cache.filesystem.split(".")[0] in _SHARED:
        yield CACHE_PLACE.finding(
            object=cache.path,
            severity=Severity.WARNING,
            message=f"kernels that other hosts compiled may be loaded: {cache.filesystem} is shared",
            evidence=(f"{named}: {cache.path}",),
            fix="name a folder on a disk of this host, for each build: {root}/jit/{id}",
        )


def _is_used(facts: Facts, cache: CompileCache, each: CachedObject) -> bool:
    """Whether the environment would load an object: its folders name the release and the GPU in some caches.

    flashinfer: ``RELEASE/ARCHS/...`` (jit/env.py); torch: ``py312_cu130/...`` (utils/cpp_extension.py). The
    others name nothing: what is there may be loaded.
    """
    first, _, rest = each.path.partition("/")
    if cache.name == "flashinfer":
        installed = facts[LoadFacts].installed.get("flashinfer-python")
        archs = re.findall(r"(\d+)(\d)[af]?", rest.partition("/")[0])
        known = {(cc.major, cc.minor) for cc in gpus(facts)}
        there = {(int(major), int(minor)) for major, minor in archs}
        return (
            installed is not None and first == installed and (not known or not there or bool(known & there))
        )
    if cache.name == "torch-extensions":
        cuda = torch_cuda(facts)
        flavour = re.search(r"_cu(\d+)\Z", first)
        return flavour is None or cuda is None or flavour[1] == f"{cuda.major}{cuda.minor}"
    return True


def _broken(facts: Facts, cache: CompileCache, used: Sequence[CachedObject]) -> Iterator[Finding]:
    """Yield what in a cache cannot load on this host, or brings another CUDA."""
    reasons: dict[tuple[str, Severity], list[CachedObject]] = {}
    for each in used:
        reason = _why_not(facts, each)
        if reason is not None:
            reasons.setdefault(reason, []).append(each)
    for (why, severity), objects in reasons.items():
        yield CACHE.finding(
            object=cache.path,
            severity=severity,
            message=f"{_kernels(objects)} used as they are, and {why}",
            evidence=_evidence(objects),
            fix=f"rm -rf {cache.path}, or give each build a cache of its own ({{root}}/jit/{{id}})",
        )


def _why_not(facts: Facts, each: CachedObject) -> tuple[str, Severity] | None:
    system, cuda = facts[HostFacts], torch_cuda(facts)
    if each.problem:
        return f"cannot be read: {each.problem}", Severity.ERROR
    if _newer(each.needs_glibc, system.system.glibc.or_else(None)):
        return f"need GLIBC_{each.needs_glibc}, which this host has not: compiled elsewhere", Severity.ERROR
    library = system.libraries.find("libstdc++.so.6")
    newest = library.newest("GLIBCXX") if library else None
    if newest is not None and _newer(each.needs_glibcxx, str(newest)):
        return (
            f"need GLIBCXX_{each.needs_glibcxx}, which this host has not: compiled elsewhere",
            Severity.ERROR,
        )
    majors = {int(found[1]) for name in each.needed if (found := _CUDA_LIBRARY.fullmatch(name))}
    other = sorted(majors - {cuda.major}) if cuda else []
    if not other:
        return None
    served = facts[GpuTargets].cuda
    why = f"are linked to CUDA {other[0]}, torch to CUDA {cuda}"
    if served is not None and other[0] > served.major:
        return f"{why}: they fail (35), the driver serves {served}", Severity.ERROR
    return why, Severity.WARNING


def _newer(needed: str | None, there: str | None) -> bool:
    if needed is None or there is None:
        return False
    return [int(part) for part in needed.split(".")] > [int(part) for part in re.findall(r"\d+", there)]


def _foreign(facts: Facts, cache: CompileCache, used: Sequence[CachedObject]) -> Iterator[Finding]:
    venv = facts[Surroundings].venv
    others = [each for each in used if each.built_for is not None and each.built_for != venv]
    if others:
        yield CACHE.finding(
            object=cache.path,
            severity=Severity.WARNING,
            message=f"{_kernels(others)} used as they are: compiled against another"
            f" environment ({others[0].built_for}), whatever torch that has",
            evidence=_evidence(others),
            fix="give each build a cache of its own: {root}/jit/{id} in service.env",
        )


def _kernels(objects: Sequence[object]) -> str:
    return f"{counted(len(objects), 'kernel')} kept there {'is' if len(objects) == 1 else 'are'}"


def _evidence(objects: Sequence[CachedObject]) -> tuple[str, ...]:
    lines = [f"{each.path}: needs {', '.join(each.needed[:6]) or 'nothing'}" for each in objects[:_SHOWN]]
    return (*lines, *([f"and {len(objects) - _SHOWN} more"] if len(objects) > _SHOWN else []))


def _fetched(facts: Facts) -> Iterator[Finding]:
    installed, service = facts[LoadFacts].installed, facts[ServiceSettings]
    if "flashinfer-python" not in installed or "flashinfer-cubin" in installed:
        return
    concerned = [name for cc, name in gpus(facts).items() if cc.major == _FETCHED_FOR]
    if concerned and "FLASHINFER_CUBIN_DIR" not in service.env:
        offline = service.offline
        yield FETCHED.finding(
            object="flashinfer-cubin",
            severity=Severity.ERROR if offline else Severity.NOTE,
            message=f"kernels of TensorRT-LLM are fetched at their first use on {concerned[0]}"
            + (", and this host is offline: they fail (failed to load cubin)" if offline else ""),
            evidence=(f"flashinfer-python {installed['flashinfer-python']}, no flashinfer-cubin",),
            fix=f"env.requires: flashinfer-cubin=={_public(installed['flashinfer-python'])}",
        )


CACHE = Rule(
    id="jit-cache",
    severity=Severity.ERROR,
    kind="K43",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/5145",
    check=_caches,
)
CACHE_PLACE = Rule(
    id="jit-cache-place",
    severity=Severity.ERROR,
    kind="K43",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/382",
    check=_places,
)
FETCHED = Rule(
    id="jit-fetched",
    severity=Severity.NOTE,
    kind="K44",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/1352",
    check=_fetched,
)

RULES = (CACHE, CACHE_PLACE, FETCHED)
"""Catalogue K43 and K44."""
