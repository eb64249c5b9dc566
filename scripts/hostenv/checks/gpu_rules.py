"""Rules on GPU code and the driver: catalogue group D and the driver's gates, K21 and K22."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent.amounts import counted
from hostenv.checks.finding import Severity
from hostenv.checks.gpu_code import CodeVerdict, object_verdict, ptx_support
from hostenv.checks.gpu_tables import gpu_objects, gpu_tables, matches
from hostenv.checks.judge import Rule
from hostenv.facts.gpu_code import CudaRuntime, GpuCodeFacts, GpuTargets, ImageKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.gpu_code import ObjectVerdict
    from hostenv.checks.gpu_tables import ObjectUse, VariantLoader
    from hostenv.checks.judge import Facts
    from hostenv.facts.gpu_code import DottedPair, GpuCode

GUIDE = "https://docs.nvidia.com/cuda/cuda-programming-guide/"
COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/"
TORCH = "torch/lib/libtorch_cuda*.so"


def capabilities(targets: GpuTargets) -> dict[DottedPair, str]:
    """Return the known compute capabilities and which GPUs have each (``GPU 0, GPU 1 (NVIDIA H200)``)."""
    found: dict[DottedPair, list[str]] = {}
    for gpu in targets.gpus:
        if gpu.compute_capability is not None:
            found.setdefault(gpu.compute_capability, []).append(gpu.name)
    return {capability: ", ".join(names) for capability, names in found.items()}


class _Judged:
    """One object that does not serve one kind of GPU, with what a message about it needs."""

    def __init__(self, path: str, code: GpuCode, capability: DottedPair, gpus: str) -> None:
        self.path, self.code, self.capability, self.gpus = path, code, capability, gpus
        self.use: ObjectUse | None = gpu_objects().use(path)

    def verdict(self, targets: GpuTargets) -> ObjectVerdict:
        dispatches = self.use is not None and self.use.dispatches
        return object_verdict(self.code, self.capability, ptx_support(targets), dispatches=dispatches)

    @property
    def used(self) -> bool:
        return self.use is None or self.use.used(self.capability)

    def severity(self, verdict: ObjectVerdict) -> Severity:
        """Worst where the object is used on such a GPU and nothing of it would run."""
        if not self.used:
            return Severity.NOTE
        optional = self.use is not None and self.use.optional
        return Severity.WARNING if optional or verdict.unusable < verdict.modules else Severity.ERROR

    def evidence(self, verdict: ObjectVerdict) -> tuple[str, ...]:
        cubins, ptx = _names(self.code, ImageKind.CUBIN), _names(self.code, ImageKind.PTX)
        served = f"compute capability {self.capability} ({self.gpus})"
        has = "has" if verdict.unusable == 1 else "have"
        lines = (
            f"{self.path}: cubins {cubins}; PTX {ptx}",
            f"{verdict.unusable} of {counted(verdict.modules, 'module')} {has} nothing for {served}",
        )
        return lines if self.use is None else (*lines, f"known: {self.use.source}")

    @property
    def instead(self) -> str | None:
        return self.use.instead if self.use else None


def _names(code: GpuCode, kind: ImageKind) -> str:
    images = sorted(
        (image for image in code.images if image.kind is kind),
        key=lambda i: (i.arch, i.suffix, i.isa or i.arch),
    )
    return ", ".join(f"{one.target} (ISA {one.isa})" if one.isa else one.target for one in images) or "none"


def _failing(facts: Facts, verdict: CodeVerdict) -> Iterator[tuple[_Judged, ObjectVerdict]]:
    code, targets = facts[GpuCodeFacts], facts[GpuTargets]
    for path, one in code.objects.items():
        for capability, gpus in capabilities(targets).items():
            judged = _Judged(path, one, capability, gpus)
            said = judged.verdict(targets)
            if said.verdict is verdict:
                yield judged, said


def _suffixed(judged: _Judged) -> bool:
    """Whether the object has code of the GPU's major number, kept from it by a suffix (or a higher minor)."""
    return any(
        image.kind is not ImageKind.LTO and image.suffix and image.arch.major == judged.capability.major
        for image in judged.code.images
    )


def _dropped(judged: _Judged) -> bool:
    """Whether the GPU is older than everything that a current toolkit compiles for."""
    newest = max(gpu_tables().lowest_capability)
    return judged.capability < gpu_tables().lowest_capability[newest] and all(
        image.arch > judged.capability for image in judged.code.images
    )


def _cause(judged: _Judged) -> Rule:
    if _dropped(judged):
        return ARCH_DROPPED
    if matches(TORCH, judged.path):
        return TORCH_ARCH
    return ARCH_SUFFIX if _suffixed(judged) else NO_IMAGE


def _no_image(rule_name: str, facts: Facts) -> Iterator[Finding]:
    for judged, said in _failing(facts, CodeVerdict.NO_IMAGE):
        rule = _cause(judged)
        if rule.id == rule_name:
            yield rule.finding(
                object=judged.path,
                severity=judged.severity(said),
                message=_no_image_message(judged, said),
                evidence=judged.evidence(said),
                fix=_fix(rule, judged),
            )


def _no_image_message(judged: _Judged, said: ObjectVerdict) -> str:
    where = f"on {judged.gpus} (compute capability {judged.capability})"
    if not judged.used:
        return f"nothing in it for the GPU, and not used there: {where}"
    part = "every launch fails" if said.unusable == said.modules else "some launches fail"
    return f'{part} with "no kernel image is available" at the first use {where}'


def _fix(rule: Rule, judged: _Judged) -> str | None:
    if not judged.used:
        return f"use {judged.instead} there" if judged.instead else None
    major, minor = judged.capability.major, judged.capability.minor
    if judged.instead:
        return f"use {judged.instead}, or a build with sm_{major}{minor}"
    if rule is ARCH_DROPPED:
        return "lock the flavour of torch and of the kernels for CUDA 12 (cu126, cu128)"
    if rule is TORCH_ARCH:
        return f"lock a torch whose CUDA flavour has sm_{major}{minor} (Blackwell: cu128 or later)"
    return f"install a build of it that has sm_{major}{minor} or PTX for an earlier architecture"


def _ptx_too_new(facts: Facts) -> Iterator[Finding]:
    targets = facts[GpuTargets]
    for judged, said in _failing(facts, CodeVerdict.PTX_TOO_NEW):
        support = ptx_support(targets)
        newest = support.newest if support else "an unknown version"
        yield PTX_TOO_NEW.finding(
            object=judged.path,
            severity=judged.severity(said),
            message=(
                'launches fail with "the provided PTX was compiled with an unsupported toolchain" (222) on'
                f" {judged.gpus}: there is only PTX for it, newer than the driver reads"
            ),
            evidence=(
                *judged.evidence(said),
                f"driver {targets.driver or 'of unknown version'} reads PTX ISA up to {newest}",
            ),
            fix="upgrade the driver, or install a build with machine code for the GPU",
        )


def _unread(facts: Facts) -> Iterator[Finding]:
    code = facts[GpuCodeFacts]
    for path, reason in code.unreadable.items():
        yield UNREAD.finding(object=path, message=f"its GPU code is not known: {reason}")
    for path, one in code.objects.items():
        if one.problem is not None:
            yield UNREAD.finding(
                object=path,
                message=f"its GPU code cannot be read to the end, the file is damaged: {one.problem}",
                fix="compare the file with its RECORD, and install its distribution anew",
            )


def _unknown_gpu(facts: Facts) -> Iterator[Finding]:
    for gpu in facts[GpuTargets].gpus:
        if gpu.compute_capability is None:
            yield UNKNOWN_GPU.finding(
                object=gpu.name,
                message="no GPU code is judged for it: its compute capability is not known",
                fix="state gpus.compute-capability in the spec, or give the host a newer nvidia-smi",
            )


def _driver_too_old(facts: Facts) -> Iterator[Finding]:
    runtime, targets = facts[CudaRuntime], facts[GpuTargets]
    if runtime.version is None:
        return
    needed = gpu_tables().minimum_driver.get(runtime.version.major)
    if targets.driver is None or needed is None:
        yield DRIVER_TOO_OLD.finding(
            object="driver",
            severity=Severity.UNKNOWN,
            message=f"not judged: whether a driver {targets.driver or 'of unknown version'} serves CUDA"
            f" {runtime.version}",
        )
    elif _numbers(targets.driver) < _numbers(needed):
        yield DRIVER_TOO_OLD.finding(
            object="driver",
            message=f"every CUDA call fails at start (35, driver version is insufficient): driver"
            f" {targets.driver} is older than CUDA {runtime.version.major} needs",
            evidence=(f"needed: {needed} or later", f"CUDA runtime {runtime.version}: {runtime.source}"),
            fix=f"upgrade the driver to {needed}, or lock the flavour of the environment for an older CUDA",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def _variant(facts: Facts) -> Iterator[Finding]:
    code, targets = facts[GpuCodeFacts], facts[GpuTargets]
    for loader in gpu_objects().picks:
        if not any(matches(loader.present, path) for path in code.objects) and not any(
            matches(variant.path, path) for variant in loader.when for path in code.objects
        ):
            continue
        yield from _variant_of(loader, code, capabilities(targets))


def _variant_of(loader: VariantLoader, code: GpuCodeFacts, gpus: dict[DottedPair, str]) -> Iterator[Finding]:
    picked = {capability: loader.picked(capability) for capability in gpus}
    for capability, pattern in picked.items():
        if pattern and not any(matches(pattern, path) for path in code.objects):
            yield VARIANT.finding(
                object=pattern,
                message=f"the import fails on {gpus[capability]}: on compute capability {capability}"
                f" {loader.distribution} loads {pattern}, and there is none",
                evidence=(loader.source,),
                fix=f"install {loader.distribution} anew; put an overlay where it is loaded from",
            )
    for path in code.objects:
        if matches(loader.fallback, path):
            yield VARIANT.finding(
                object=path,
                severity=Severity.WARNING,
                message="an old file: loaded silently in place of the variant whenever that one fails",
                evidence=(loader.source,),
                fix=f"remove {path}",
            )


NO_IMAGE = Rule(
    id="gpu-no-image",
    severity=Severity.ERROR,
    kind="K31",
    reference=GUIDE,
    check=lambda facts: _no_image("gpu-no-image", facts),
)
TORCH_ARCH = Rule(
    id="torch-no-image",
    severity=Severity.ERROR,
    kind="K30",
    reference="https://github.com/pytorch/pytorch/issues/172352",
    check=lambda facts: _no_image("torch-no-image", facts),
)
ARCH_SUFFIX = Rule(
    id="gpu-arch-suffix",
    severity=Severity.ERROR,
    kind="K33",
    reference=GUIDE,
    check=lambda facts: _no_image("gpu-arch-suffix", facts),
)
ARCH_DROPPED = Rule(
    id="gpu-arch-dropped",
    severity=Severity.ERROR,
    kind="K34",
    reference="https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/",
    check=lambda facts: _no_image("gpu-arch-dropped", facts),
)
PTX_TOO_NEW = Rule(
    id="ptx-newer-than-driver",
    severity=Severity.ERROR,
    kind="K22",
    reference="https://docs.nvidia.com/cuda/parallel-thread-execution/",
    check=_ptx_too_new,
)
DRIVER_TOO_OLD = Rule(
    id="driver-older-than-runtime",
    severity=Severity.ERROR,
    kind="K21",
    reference=COMPATIBILITY,
    check=_driver_too_old,
)
VARIANT = Rule(
    id="gpu-variant",
    severity=Severity.ERROR,
    kind="K32",
    reference="https://github.com/sgl-project/sglang/issues/35526",
    check=_variant,
)
UNREAD = Rule(id="gpu-code-unread", severity=Severity.UNKNOWN, reference=GUIDE, check=_unread)
UNKNOWN_GPU = Rule(
    id="gpu-capability-unknown", severity=Severity.UNKNOWN, reference=GUIDE, check=_unknown_gpu
)

RULES = (
    *(NO_IMAGE, TORCH_ARCH, ARCH_SUFFIX, ARCH_DROPPED, PTX_TOO_NEW),
    *(DRIVER_TOO_OLD, VARIANT, UNREAD, UNKNOWN_GPU),
)
"""Catalogue K21, K22 and K30 to K34, and what could not be known."""
