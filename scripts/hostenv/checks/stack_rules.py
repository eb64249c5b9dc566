"""Rules on the stack's own versions: torch and its companions, one CUDA among them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.checks.object_tables import Picks, object_tables
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.gpu_code import GpuTargets
from hostenv.facts.objects import LoadFacts
from hostenv.facts.site import SiteFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.objects import SharedObject

_OF_MAJOR = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(1[1-9])(?:\..*)?")
"""Libraries whose SONAME is the toolkit's major in CUDA 12 and 13; cuFFT's, cuRAND's and others' are not."""
_BY_CUDA = re.compile(r"(?:_cu|/cu)1[1-9]")
_LABEL = re.compile(r"cu(1[1-9])\d")
_TRIO_OFFSET = 15
"""torchvision 0.N is built for torch 2.(N - 15), from 0.15 on."""
_SHOWN = 5


def _majors(facts: Facts) -> Iterator[Finding]:
    """Yield distributions whose objects need another CUDA than torch's, or than their own label's."""
    loads, site = facts[LoadFacts], facts[SiteFacts]
    owners = {site.within(each.path): each.owners for each in site.objects}
    needs: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in loads.objects:
        for owner in () if _is_variant(item.path) else owners.get(item.path, ()):
            for major in _cuda_of(item):
                needs[owner][major].append(item.path)
    torch = (loads.cuda or "").partition(".")[0]
    for owner, by_major in sorted(needs.items()):
        label = _LABEL.search(Version(owner.partition("==")[2]).local or "") if _is_version(owner) else None
        if label and label[1] not in by_major:
            yield _labelled(owner, label[0], by_major)
        elif torch and torch not in by_major and canonicalize_name(owner.partition("==")[0]) != "torch":
            yield _other_major(owner, torch, by_major, loads)


def _is_variant(path: str) -> bool:
    """Tell whether an object is one of several for different CUDA majors, of which one is taken."""
    group = object_tables().group_of(path)
    return (group is not None and group.picks is Picks.CUDA) or _BY_CUDA.search(path) is not None


def _cuda_of(item: SharedObject) -> set[str]:
    return {found[1] for name in item.needed if (found := _OF_MAJOR.fullmatch(name))}


def _is_version(owner: str) -> bool:
    try:
        Version(owner.partition("==")[2])
    except ValueError:
        return False
    return True


def _labelled(owner: str, label: str, by_major: Mapping[str, list[str]]) -> Finding:
    major, paths = next(iter(by_major.items()))
    return LABEL.finding(
        object=owner.partition("==")[0],
        message=f"{owner.replace('==', ' ')} is labelled {label} and its objects need CUDA {major}",
        evidence=[f"{path} needs a library of CUDA {major}" for path in paths[:_SHOWN]],
        fix="install the build whose label is true, from an index that serves it",
    )


def _other_major(owner: str, torch: str, by_major: Mapping[str, list[str]], loads: LoadFacts) -> Finding:
    major, paths = next(iter(by_major.items()))
    verdicts = {item.path: item.verdict.loads for item in loads.objects}
    fails = any(verdicts.get(path) is False for path in paths)
    then = "and it does not load here" if fails else "two CUDA runtimes are in one process"
    return MAJOR.finding(
        object=owner.partition("==")[0],
        message=f"{owner.replace('==', ' ')} is built for CUDA {major}, torch "
        f"{loads.installed.get('torch', '')} for "
        f"CUDA {torch}: {then}",
        evidence=[f"{path} needs a library of CUDA {major}" for path in paths[:_SHOWN]],
        fix=f"install its build for CUDA {torch}, or torch for CUDA {major}",
    )


def _trio(facts: Facts) -> Iterator[Finding]:
    """Yield torchvision and torchaudio of another torch; whether their objects load decides how bad it is."""
    installed, loads = facts[Installed], facts[LoadFacts]
    present = installed.by_name()
    torch = present.get(canonicalize_name("torch"))
    if torch is None:
        return
    for name in ("torchvision", "torchaudio"):
        each = present.get(canonicalize_name(name))
        if each is None:
            continue
        wanted = _wanted_torch(name, each.version)
        if wanted is None or wanted == _minor(torch.version):
            continue
        failing = [
            item for item in loads.objects if item.path.startswith(f"{name}/") and item.verdict.loads is False
        ]
        yield TRIO.finding(
            object=name,
            severity=Severity.ERROR
            if failing
            else Severity.WARNING
            if name == "torchvision"
            else Severity.NOTE,
            message=f"{name} {each.version} is made for torch {wanted}, installed is torch {torch.version}"
            + (": its operators do not exist" if failing else "; its objects load"),
            evidence=[f"{item.path}: {item.verdict.text}" for item in failing[:_SHOWN]],
            fix=f"install the {name} that is made for torch {_minor(torch.version)}",
        )


def _wanted_torch(name: str, version: str) -> str | None:
    try:
        release = Version(version).release
    except ValueError:
        return None
    if name == "torchaudio":
        return ".".join(map(str, release[:2]))
    return f"2.{release[1] - _TRIO_OFFSET}" if release[0] == 0 and release[1] >= _TRIO_OFFSET else None


def _minor(version: str) -> str | None:
    try:
        return ".".join(map(str, Version(version).release[:2]))
    except ValueError:
        return None


def _cpu_only(facts: Facts) -> Iterator[Finding]:
    loads = facts[LoadFacts]
    torch = loads.installed.get("torch")
    if torch is None or loads.package != "torch" or loads.cuda or "rocm" in torch:
        return
    users = [item.path for item in loads.objects if _cuda_of(item)]
    targets = facts.get(GpuTargets)
    gpus = [gpu.name for gpu in targets.gpus] if targets else []
    if users or gpus:
        yield CPU_ONLY.finding(
            object="torch",
            message=f"torch {torch} is built without CUDA: torch.cuda.is_available() is False, and "
            "kernels for a GPU "
            "do not load",
            evidence=[*(f"GPU: {name}" for name in gpus), *(f"{path} needs CUDA" for path in users[:_SHOWN])],
            fix="install torch from an index that serves it with CUDA, and keep its local version in the "
            "lock",
        )


def _companions(facts: Facts) -> Iterator[Finding]:
    site, installed = facts[SiteFacts], facts[Installed]
    paths = {site.within(each.path): each for each in site.objects}
    versions = {f"{each.key}=={each.version}": each.version for each in installed.distributions}
    for companion in stack_tables().companions:
        for path, file in paths.items():
            found = companion.library.fullmatch(path)
            if not found or path.endswith(".alt.so"):
                continue
            beside = [
                each.removeprefix(found["folder"]) for each in paths if each.startswith(found["folder"])
            ]
            for template in companion.opens:
                pattern = template.format(major=found["major"])
                if any(re.fullmatch(pattern, each) for each in beside):
                    continue
                yield COMPANION.finding(
                    object=path,
                    message=f"opens {_plain(pattern)} by name when it is first used, and there is none "
                    "beside it",
                    evidence=(companion.source,),
                    fix=f"install {companion.distribution} again, whole",
                )
            yield from _builtins(
                path, beside, [versions[owner] for owner in file.owners if owner in versions]
            )


def _builtins(path: str, beside: Iterable[str], versions: Iterable[str]) -> Iterator[Finding]:
    """NVRTC opens the builtins of its own minor; one of another minor is as good as none."""
    found = [match for each in beside if (match := re.fullmatch(r"libnvrtc-builtins\.so\.(\d+\.\d+)", each))]
    for version in versions:
        minor = _minor(version)
        if found and "libnvrtc.so" in path and minor not in {match[1] for match in found}:
            yield COMPANION.finding(
                object=path,
                message=f"is NVRTC {version} and opens libnvrtc-builtins.so.{minor}, beside it lies "
                f"{found[0][0]}",
                fix="install NVIDIA's NVRTC wheel again, and no other that brings the same folder",
            )


def _plain(pattern: str) -> str:
    return pattern.replace("\\.", ".").replace("\\d+", "*")


MAJOR = Rule(
    id="cuda-major-mixed",
    severity=Severity.WARNING,
    kind="K06",
    reference="https://github.com/sgl-project/sglang/issues/12949",
    check=_majors,
)
LABEL = Rule(
    id="cuda-label-false",
    severity=Severity.WARNING,
    kind="K06",
    reference="https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers",
    check=lambda _: (),
)
"""Found beside the majors."""
TRIO = Rule(
    id="torch-trio",
    severity=Severity.WARNING,
    kind="K07",
    reference="https://github.com/pytorch/vision#installation",
    check=_trio,
)
CPU_ONLY = Rule(
    id="torch-without-cuda",
    severity=Severity.ERROR,
    kind="K08",
    reference="torch/version.py: cuda",
    check=_cpu_only,
)
COMPANION = Rule(
    id="companion-missing",
    severity=Severity.ERROR,
    kind="K19",
    reference="https://github.com/pytorch/pytorch/issues/150399",
    check=_companions,
)
RULES = (MAJOR, LABEL, TRIO, CPU_ONLY, COMPANION)
