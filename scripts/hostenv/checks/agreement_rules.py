"""Rules on packages that must agree on one version: flashinfer's parts, and all that share tvm-ffi."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.facts.distributions import Installed
from hostenv.facts.objects import LoadFacts
from hostenv.facts.site import SiteFacts
from hostenv.facts.surroundings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts

_LABEL = re.compile(r"cu(1[1-9])\d")
_FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
_BYPASS = "FLASHINFER_DISABLE_VERSION_CHECK"
_LEAVES_OUT = Version("0.7")
_TVM_FFI = "apache-tvm-ffi"


def _flashinfer(facts: Facts) -> Iterator[Finding]:
    installed = facts[Installed].by_name()
    found = {
        name: installed[key].version for name in _FLASHINFER if (key := canonicalize_name(name)) in installed
    }
    try:
        publics = {name: Version(version).public for name, version in found.items()}
    except ValueError:
        return
    service = facts.get(ServiceSettings)
    bypassed = bool(service and service.env.get(_BYPASS))
    if "flashinfer-python" in publics and len(set(publics.values())) > 1:
        pinned = " ".join(f"{name}=={publics['flashinfer-python']}" for name in publics)
        leaves_out = Version(publics["flashinfer-python"]) >= _LEAVES_OUT and not bypassed
        yield FLASHINFER.finding(
            object="flashinfer-python",
            severity=Severity.WARNING if leaves_out else None,
            message="flashinfer's parts have different versions: " + _skewed(bypassed, leaves_out),
            evidence=[f"{name} {version}" for name, version in found.items()],
            fix=f"uv pip install {pinned}",
        )
    elif bypassed:
        yield FLASHINFER.finding(
            object=f"service.env.{_BYPASS}",
            severity=Severity.WARNING,
            message="flashinfer's versions agree, and the check that would tell when they no longer do "
            "is off",
            fix=f"remove {_BYPASS} from the service's environment",
        )
    loads = facts.get(LoadFacts)
    cache = found.get("flashinfer-jit-cache")
    label = _LABEL.search(Version(cache).local or "") if cache else None
    if label and loads and loads.cuda and label[1] != loads.cuda.partition(".")[0]:
        yield FLASHINFER.finding(
            object="flashinfer-jit-cache",
            message=f"flashinfer-jit-cache {cache} holds kernels for {label[0]}, torch is for CUDA "
            f"{loads.cuda}",
            fix=f"install the flashinfer-jit-cache for CUDA {loads.cuda}",
        )


def _skewed(bypassed: bool, leaves_out: bool) -> str:  # noqa: FBT001  two facts, one caller
    """Say what comes of it: jit/env.py of 0.7.2 leaves parts of another version out, earlier ones raise."""
    if bypassed:
        return "its own check is off, and kernels of another version run"
    if leaves_out:
        return "the others are left out, their kernels are fetched or compiled at first use"
    return "importing it fails"


def _tvm_ffi(facts: Facts) -> Iterator[Finding]:
    """Yield a range of apache-tvm-ffi that nothing meets, and copies of its library beside the one."""
    installed, site = facts[Installed], facts[SiteFacts]
    demands: dict[str, Requirement] = {}
    for each in installed.distributions:
        for line in (line for line in each.requires if "tvm" in line):
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if canonicalize_name(requirement.name) == _TVM_FFI and requirement.marker is None:
                demands[f"{each.name} {each.version} requires {requirement}"] = requirement
    if demands and not _can_meet(demands.values()):
        yield TVM_RANGE.finding(
            object=_TVM_FFI,
            message="no version of apache-tvm-ffi is what all that share it require: one of them fails, "
            "or crashes",
            evidence=tuple(demands),
            fix="move the one that stands alone to a release that takes the others' tvm-ffi",
        )
    copies = [each for each in site.objects if each.name == "libtvm_ffi.so"]
    if len({owner for each in copies for owner in each.owners}) > 1:
        yield TVM_COPY.finding(
            object=site.within(copies[-1].path),
            message="is a second libtvm_ffi.so: which of them a process has depends on what it imports first",
            evidence=[
                f"{site.within(each.path)}: {' and '.join(each.owners) or 'nobody'}" for each in copies
            ],
            fix="remove the distribution that brings its own, or update it",
        )


def _can_meet(requirements: Iterable[Requirement]) -> bool:
    """Tell whether some version meets all: one that a bound names, or the next above or below it."""
    wanted = list(requirements)
    candidates: set[str] = {"999999"}
    for each in (specifier for requirement in wanted for specifier in requirement.specifier):
        version = each.version.removesuffix(".*")
        candidates |= {version, f"{version}.post1", f"{version}.1", f"{version}a0"}
    return any(
        all(each.specifier.contains(version, prereleases=True) for each in wanted) for version in candidates
    )


FLASHINFER = Rule(
    id="flashinfer-skew",
    severity=Severity.ERROR,
    kind="K42",
    reference="https://github.com/vllm-project/vllm/issues/49804",
    check=_flashinfer,
)
TVM_RANGE = Rule(
    id="tvm-ffi-range",
    severity=Severity.ERROR,
    kind="K45",
    reference="https://github.com/flashinfer-ai/flashinfer/issues/1913",
    check=_tvm_ffi,
)
TVM_COPY = Rule(
    id="tvm-ffi-copies",
    severity=Severity.WARNING,
    kind="K45",
    reference="https://github.com/apache/tvm-ffi/issues/697",
    check=lambda _: (),
)
"""Found beside the range."""

RULES = (FLASHINFER, TVM_RANGE, TVM_COPY)
