"""Rules on libraries that come before or beside the environment's own: catalogue K12, K13, K17 and K20."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from hostenv.checks.compiling import pair
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.facts.objects import LoadFacts
from hostenv.facts.surroundings import ServiceSettings, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts

_OF_NVIDIA = re.compile(r"(?:nvidia|torch)/")
_CUDNN = "libcudnn"
_NCCL_FILES = ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH", "TORCH_NCCL_SO_PATH")
_NCCL_PLUGIN = re.compile(r"libnccl-(?:net|tuner|profiler)[\w-]*\.so[.\d]*")
_SHOWN = 6
_TLS_SURPLUS = 1664
_SLOW_CUDNN = ("2.9.1", (9, 15))
"""torch 2.9.1 with a cuDNN before 9.15: conv3d (pytorch/pytorch#168167)."""


def _own_names(facts: Facts) -> set[str]:
    """Return the SONAMEs that the environment brings itself, of CUDA's and torch's libraries."""
    return {item.name for item in facts[LoadFacts].objects if _OF_NVIDIA.match(item.path)}


def _shadowed(rule_id: str, facts: Facts) -> Iterator[Finding]:
    return (finding for finding in _shadows(facts) if finding.rule == rule_id)


def _shadows(facts: Facts) -> Iterator[Finding]:
    service, around = facts[ServiceSettings], facts[Surroundings]
    library_path = service.env.get("LD_LIBRARY_PATH", "")
    if around.host is None:
        if library_path:
            yield SHADOWED.finding(
                object="LD_LIBRARY_PATH",
                severity=Severity.UNKNOWN,
                message="not judged: what lies in its folders on that host (saved facts do not hold it)",
                evidence=(f"service.env: LD_LIBRARY_PATH={library_path}",),
            )
        return
    own = _own_names(facts)
    for folder in around.host.folders:
        if folder.told_by != "LD_LIBRARY_PATH" or is_within(folder.path, around.venv):
            continue
        names = sorted(own.intersection(folder.libraries))
        cudnn = [name for name in names if name.startswith(_CUDNN)]
        others = [name for name in names if not name.startswith(_CUDNN)]
        if others:
            yield _shadowing(SHADOWED, folder.path, others, "another version than the wheels pin is mapped")
        if cudnn:
            text = "cuDNN's parts of two versions meet (CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH)"
            yield _shadowing(CUDNN, folder.path, cudnn, text)
    for name in (*_preloaded(service), *around.host.preloaded):
        if posixpath.basename(name) in own and not is_within(name, around.venv):
            yield _shadowing(
                SHADOWED, name, [posixpath.basename(name)], "it is mapped into every process first"
            )


def _shadowing(rule: Rule, place: str, names: list[str], what: str) -> Finding:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return rule.finding(
        object=place,
        message=f"libraries of the environment are shadowed: {what}, unless an RPATH comes first",
        evidence=(f"in {place}, and in the environment: {shown}",),
        fix=f"take {place} out of service.env.LD_LIBRARY_PATH: the wheels find their own libraries",
    )


def _preloaded(service: ServiceSettings) -> list[str]:
    return [name for name in re.split(r"[:\s]+", service.env.get("LD_PRELOAD", "")) if name]


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _slow_cudnn(facts: Facts) -> Iterator[Finding]:
    installed = facts[LoadFacts].installed
    torch, (bad, first) = installed.get("torch", ""), _SLOW_CUDNN
    name = next((each for each in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13") if each in installed), None)
    version = pair(installed[name]) if name else None
    if torch.partition("+")[0] == bad and version and (version.major, version.minor) < first:
        yield KNOWN_BAD.finding(
            object=str(name),
            message="multimodal models: sglang refuses to start, and conv3d is slow and takes much memory"
            f" (torch {bad} with cuDNN {version})",
            evidence=(f"torch {torch}", f"{name} {installed[str(name)]}"),
            fix=f"env.overrides: {name}==9.16.0.29 (torch's own pin is left on purpose)",
        )


def _static_tls(facts: Facts) -> Iterator[Finding]:
    """Yield that objects opened later may ask for more than glibc keeps for them.

    Measured with glibc 2.36: an object of 1664 bytes loads, one of 1800 does not (elf/dl-tls.c, surplus).
    """
    objects = facts[LoadFacts].objects
    wanting = [item for item in objects if item.static_tls and item.verdict.loads is not False]
    total = sum(item.static_tls for item in wanting)
    tuned = "optional_static_tls" in facts[ServiceSettings].env.get("GLIBC_TUNABLES", "")
    if total > _TLS_SURPLUS and not tuned:
        largest = max(wanting, key=lambda item: item.static_tls)
        yield STATIC_TLS.finding(
            object=largest.path,
            message="where all are imported, the last fails (cannot allocate memory in static TLS block):"
            f" together they need {total} bytes, {_TLS_SURPLUS} are kept",
            evidence=tuple(f"{item.path}: {item.static_tls} bytes" for item in wanting[:_SHOWN]),
            fix=f'service.env.GLIBC_TUNABLES = "glibc.rtld.optional_static_tls={2 * total}"',
        )


def _nccl(facts: Facts) -> Iterator[Finding]:
    service, around = facts[ServiceSettings], facts[Surroundings]
    for name in _NCCL_FILES:
        path = service.env.get(name)
        if path and not is_within(path, around.venv):
            yield NCCL.finding(
                object=name,
                severity=Severity.WARNING,
                message="collectives use another libnccl than torch's: ranks on other hosts hang or fail at"
                " init unless theirs is the same file",
                evidence=(f"service.env: {name}={path}",),
                fix=f"take {name} out of service.env",
            )
    host = around.host
    folders = host.folders if host else ()
    plugins = [
        f"{one.path}/{name}" for one in folders for name in one.libraries if _NCCL_PLUGIN.fullmatch(name)
    ]
    plugin = service.env.get("NCCL_NET_PLUGIN")
    seen = [*plugins, *([f"NCCL_NET_PLUGIN={plugin}"] if plugin else []), *(host.nccl if host else ())]
    if seen:
        yield NCCL.finding(
            object=seen[0],
            message="NCCL is set up from outside of the environment: all hosts of a group must have the same",
            evidence=tuple(seen),
        )


SHADOWED = Rule(
    id="library-path-shadows",
    severity=Severity.WARNING,
    kind="K12",
    reference="https://github.com/pytorch/pytorch/issues/134929",
    check=lambda facts: _shadowed("library-path-shadows", facts),
)
CUDNN = Rule(
    id="cudnn-shadowed",
    severity=Severity.WARNING,
    kind="K13",
    reference="https://github.com/pytorch/pytorch/issues/188892",
    check=lambda facts: _shadowed("cudnn-shadowed", facts),
)
KNOWN_BAD = Rule(
    id="cudnn-known-bad",
    severity=Severity.WARNING,
    kind="K13",
    reference="https://github.com/pytorch/pytorch/issues/168167",
    check=_slow_cudnn,
)
STATIC_TLS = Rule(
    id="static-tls",
    severity=Severity.WARNING,
    kind="K17",
    reference="https://github.com/NVIDIA/DALI/issues/5519",
    check=_static_tls,
)
NCCL = Rule(
    id="nccl-from-outside",
    severity=Severity.NOTE,
    kind="K20",
    reference="https://github.com/vllm-project/vllm/issues/42354",
    check=_nccl,
)
RULES = (SHADOWED, CUDNN, KNOWN_BAD, STATIC_TLS, NCCL)
"""Catalogue K12, K13, K17 and K20."""
