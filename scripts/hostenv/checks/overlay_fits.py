"""Whether an overlay's binaries can work on a host, told from its description: before a byte is copied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hostenv.checks import gpu_rules
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, judge
from hostenv.facts.gpu_code import CudaRuntime, DottedPair, GpuCodeFacts, GpuTargets, TargetGpu

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from hostenv.spec.overlay import Overlay
    from hostenv.spec.rules import OverlayUse, Waiver

_COUNT = re.compile(r"x(\d+)")


def has_gpu_code(overlay: Overlay) -> bool:
    """Tell whether there is anything to hold against GPUs."""
    return any(binary.gpu for binary in overlay.binaries)


def misfits(overlay: Overlay, *, arch: str, glibc: str | None, python: str) -> Iterator[str]:
    """Say what keeps an overlay from working on a host of this architecture, glibc and minor Python."""
    where = f"overlays/{overlay.name}"
    if overlay.binaries and overlay.origin.python != python:
        yield f"{where}: its binaries were built for Python {overlay.origin.python}, the build has {python}"
    for binary in overlay.binaries:
        if binary.machine not in {arch, "unknown"}:
            yield f"{where}: {binary.path} is for {binary.machine}, the host is {arch} (K56)"
        elif binary.glibc and glibc and _numbers(binary.glibc) > _numbers(glibc):
            yield f"{where}: {binary.path} needs glibc {binary.glibc}, the host has {glibc} (K14)"


def gpu_misfits(
    overlay: Overlay, use: OverlayUse, targets: GpuTargets, waivers: Sequence[Waiver], *, today: dt.date
) -> Iterator[str]:
    """Say which GPU code would not run on the host's GPUs, or lacks what ``require-arch`` demands.

    The rules are those of verify_abi, waivers applied.
    """
    demanded = tuple(
        TargetGpu(name=f"require-arch {arch}", compute_capability=DottedPair.parse(arch))
        for arch in use.require_arch
    )
    wanted = GpuTargets(gpus=(*targets.gpus, *demanded), driver=targets.driver, cuda=targets.cuda)
    runtime = CudaRuntime(version=None, source="not looked at before the copy")
    verdict = judge(Facts(gpu_code(overlay), wanted, runtime), gpu_rules.RULES, waivers, today=today)
    for finding in verdict.findings:
        if finding.severity is Severity.ERROR:
            objects = ", ".join((finding.object, *finding.also))
            kind = f" ({finding.kind})" if finding.kind else ""
            yield f"overlays/{overlay.name}: {objects}: {finding.message}{kind}"


def gpu_code(overlay: Overlay) -> GpuCodeFacts:
    """Return the GPU code of an overlay's binaries, by path in site-packages."""
    return GpuCodeFacts.from_dict(
        {
            "objects": {
                binary.path: {
                    "containers": [_container(words) for words in binary.gpu],
                    "problem": binary.problem,
                }
                for binary in overlay.binaries
                if binary.gpu
            },
            "unreadable": {},
        }
    )


def _container(words: str) -> dict[str, Any]:
    role, *images = words.split(" ")
    count = _COUNT.fullmatch(images[-1]) if images else None
    return {
        "role": role,
        "images": images[:-1] if count else images,
        "count": int(count[1]) if count else 1,
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
