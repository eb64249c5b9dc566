"""Whether GPU code runs on a GPU under a driver.

The rules, from NVIDIA's CUDA C++ Programming Guide ("Binary compatibility", "PTX compatibility", "Feature
set compiler targets"), each confirmed on an H200 where that GPU can show it (tests/data/arch):

* a cubin ``sm_XY`` runs on the same major and the same or a higher minor number;
* ``sm_XYa`` runs on exactly X.Y, ``sm_XYf`` on its family: the same major, the same or a higher minor;
* PTX ``compute_XY`` runs on X.Y and all that is later, ``compute_XYa`` and ``f`` as the cubins do;
* where no cubin fits, the driver takes the PTX of the highest architecture that fits, ``90a`` before ``90``.
  Where that is newer than the driver reads, it fails (222): older PTX beside it is not tried (measured:
  ``isa_new_over_old``, ``isa_90a_over_90``);
* a device-linked module without a fitting cubin is linked anew from its relocatable containers, cubins or
  PTX; one that fits in none of the ways fails it all (measured: ``rdc_*``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hostenv.checks.gpu_tables import gpu_objects, gpu_tables
from hostenv.facts.gpu_code import ImageKind, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostenv.facts.gpu_code import Container, DottedPair, GpuCode, GpuTargets, Image


class CodeVerdict(StrEnum):
    """What a launch does: ``RUNS``, or ``JIT`` after the driver compiled PTX, or fails; best first."""

    RUNS = "runs"
    JIT = "jit"
    UNKNOWN = "unknown"
    PTX_TOO_NEW = "ptx-too-new"
    NO_IMAGE = "no-image"


_RANK = {verdict: rank for rank, verdict in enumerate(CodeVerdict)}
_SPECIAL = ("", "f", "a")
USABLE = frozenset({CodeVerdict.RUNS, CodeVerdict.JIT})


@dataclass(frozen=True, kw_only=True, slots=True)
class PtxSupport:
    """The newest PTX ISA version that a driver surely reads; ``exact``: it reads nothing newer."""

    newest: DottedPair
    exact: bool

    def verdict(self, isa: DottedPair) -> CodeVerdict:
        """Say what becomes of PTX of that version."""
        if isa <= self.newest:
            return CodeVerdict.JIT
        return CodeVerdict.PTX_TOO_NEW if self.exact else CodeVerdict.UNKNOWN


def ptx_support(targets: GpuTargets) -> PtxSupport | None:
    """Return what PTX the driver reads, ``None`` where nothing is known of the driver.

    By the CUDA version that libcuda tells, else by the driver's branch, which gives a lower bound only
    where the branch is not in the table.
    """
    tables = gpu_tables()
    cuda, exact = targets.cuda, True
    if cuda is None:
        branch = _branch(targets.driver)
        older = [known for known in tables.driver if branch is not None and known <= branch]
        if not older:
            return None
        cuda, exact = tables.driver[max(older)], max(older) == branch
    readable = [isa for isa, needed in tables.ptx.items() if needed <= cuda]
    if not readable:
        return None
    newest_known = max(tables.ptx.values())
    return PtxSupport(newest=max(readable), exact=exact and cuda <= newest_known)


def container_verdict(
    images: Iterable[Image], capability: DottedPair, support: PtxSupport | None
) -> CodeVerdict:
    """Judge the images that are tried together for one GPU."""
    images = tuple(images)
    cubins = [_cubin(image, capability) for image in images if image.kind is ImageKind.CUBIN]
    if CodeVerdict.RUNS in cubins:
        return CodeVerdict.RUNS
    ptx = [image for image in images if image.kind is ImageKind.PTX and _ptx_fits(image, capability)]
    compiled = _compiled(ptx, support)
    if compiled is CodeVerdict.JIT:
        return CodeVerdict.JIT
    if CodeVerdict.UNKNOWN in cubins or any(
        image.kind in (ImageKind.OTHER, ImageKind.LTO) for image in images
    ):
        return CodeVerdict.UNKNOWN
    return compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectVerdict:
    """The verdict on one object for one GPU; ``unusable`` of its ``modules`` would fail there."""

    verdict: CodeVerdict
    modules: int
    unusable: int


def object_verdict(
    code: GpuCode, capability: DottedPair | None, support: PtxSupport | None, *, dispatches: bool = False
) -> ObjectVerdict:
    """Judge an object: as its worst module, or its best where the library ``dispatches`` by GPU itself.

    Code that no wrapper registers is not launched by the runtime: an object with nothing else is unknown,
    as is one that could not be read to its end or a GPU whose compute capability is not known.
    """
    launched = _launched(code)
    modules = sum(one.count for one in launched)
    if capability is None or code.problem is not None or not launched:
        return ObjectVerdict(verdict=CodeVerdict.UNKNOWN, modules=modules, unusable=0)
    judged = [(_module(one, code, capability, support), one.count) for one in launched]
    pick = min if dispatches else max
    return ObjectVerdict(
        verdict=pick((verdict for verdict, _ in judged), key=_RANK.__getitem__),
        modules=modules,
        unusable=sum(count for verdict, count in judged if _RANK[verdict] >= _RANK[CodeVerdict.PTX_TOO_NEW]),
    )


def _launched(code: GpuCode) -> list[Container]:
    """Return the containers that kernels are launched from: a device link of nothing holds none."""
    roles = {one.role for one in code.containers}
    wanted = {Role.MODULE, Role.LINKED} if Role.RELOCATABLE in roles else {Role.MODULE}
    return [one for one in code.containers if one.role in wanted]


def _module(
    container: Container, code: GpuCode, capability: DottedPair, support: PtxSupport | None
) -> CodeVerdict:
    verdict = container_verdict(container.images, capability, support)
    parts = [one for one in code.containers if one.role is Role.RELOCATABLE]
    if verdict in USABLE or container.role is not Role.LINKED or not parts:
        return verdict
    return max((container_verdict(part.images, capability, support) for part in parts), key=_RANK.__getitem__)


def _cubin(image: Image, capability: DottedPair) -> CodeVerdict:
    tables = gpu_tables()
    arch = tables.renamed.get(image.arch, image.arch)
    capability = tables.renamed.get(capability, capability)
    if arch == capability:
        return CodeVerdict.RUNS
    if image.suffix == "a" or arch.major != capability.major or arch.minor > capability.minor:
        return CodeVerdict.NO_IMAGE
    if tables.integrated & {arch, capability}:
        return CodeVerdict.UNKNOWN
    return CodeVerdict.RUNS


def _ptx_fits(image: Image, capability: DottedPair) -> bool:
    if image.suffix == "a":
        return image.arch == capability
    if image.suffix == "f" and image.arch.major != capability.major:
        return False
    return image.arch <= capability


def _compiled(fitting: Iterable[Image], support: PtxSupport | None) -> CodeVerdict:
    """Judge the PTX that the driver would take: of the highest architecture, the most special of several."""
    best = max(fitting, key=lambda image: (image.arch, _SPECIAL.index(image.suffix), image.isa), default=None)
    if best is None:
        return CodeVerdict.NO_IMAGE
    if support is None or best.isa is None:
        return CodeVerdict.UNKNOWN
    return support.verdict(best.isa)


def _branch(driver: str | None) -> int | None:
    first = (driver or "").partition(".")[0]
    return int(first) if first.isdecimal() else None


def gpu_entry(path: str, code: GpuCode, targets: GpuTargets) -> dict[str, object]:
    """Return what the report's JSON says of one object: ``cubins``, ``ptx``, and ``gpus``, one a GPU."""
    use, support = gpu_objects().use(path), ptx_support(targets)
    dispatches = use is not None and use.dispatches
    images = sorted(code.images, key=lambda image: (image.arch, image.suffix, image.isa or image.arch))
    gpus = []
    for gpu in targets.gpus:
        said = object_verdict(code, gpu.compute_capability, support, dispatches=dispatches)
        gpus.append(
            {
                "gpu": gpu.name,
                "compute_capability": str(gpu.compute_capability) if gpu.compute_capability else None,
                "verdict": said.verdict.value,
                "modules": said.modules,
                "unusable": said.unusable,
            }
        )
    return {
        "cubins": [image.target for image in images if image.kind is ImageKind.CUBIN],
        "ptx": [
            {"target": image.target, "isa": str(image.isa)} for image in images if image.kind is ImageKind.PTX
        ],
        "gpus": gpus,
    }
