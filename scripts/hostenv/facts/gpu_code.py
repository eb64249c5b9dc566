"""GPU code as the agent read it, and the GPUs and driver it is to run on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from packaging.version import Version

from hostenv.document import (
    choice,
    list_of,
    mapping_of,
    natural,
    optional,
    parsed,
    read,
    table_of,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hostenv.document import Table
    from hostenv.facts.objects import LoadFacts

_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
_IMAGE = re.compile(r"(sm|compute|lto|kind\d+)_(\d{1,9})([af]?)(?::(\d{1,6})\.(\d{1,6}))?")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True, order=True, slots=True)
class DottedPair:
    """A version of two numbers: a compute capability (9.0), a PTX ISA version, a CUDA version."""

    major: int
    minor: int

    @classmethod
    def parse(cls, written: str) -> DottedPair:
        """Read ``9.0``; raise ``ValueError`` for anything else."""
        found = _VERSION.fullmatch(written)
        if not found:
            raise ValueError("two numbers with a dot between are expected")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class ImageKind(StrEnum):
    """What an image is: machine code, PTX, LTO-IR for nvJitLink, or something hostenv does not know."""

    CUBIN = "sm"
    PTX = "compute"
    LTO = "lto"
    OTHER = "kind"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """One image of a fat binary. ``arch`` is ``90a``'s (9, 0), ``suffix`` its ``a``; ``isa`` only PTX has."""

    kind: ImageKind
    arch: DottedPair
    suffix: str = ""
    isa: DottedPair | None = None

    @classmethod
    def parse(cls, written: str) -> Image:
        """Read the agent's ``sm_90a``, ``compute_80:9.0``, ``lto_80``; raise ``ValueError`` for others."""
        found = _IMAGE.fullmatch(written)
        if not found:
            raise ValueError("no image of a fat binary")
        kind, number, suffix = found[1], int(found[2]), found[3]
        known = ImageKind.OTHER if kind.startswith("kind") else ImageKind(kind)
        isa = DottedPair(int(found[4]), int(found[5])) if found[4] else None
        if (known is ImageKind.PTX) is (isa is None):
            raise ValueError("PTX, and only PTX, has an ISA version")
        return cls(kind=known, arch=DottedPair(*divmod(number, 10)), suffix=suffix, isa=isa)

    @property
    def target(self) -> str:
        """The name that nvcc has for it: ``sm_90a``, ``compute_80``."""
        return f"{self.kind.value}_{self.arch.major}{self.arch.minor}{self.suffix}"


class Role(StrEnum):
    """How the object uses a container; see :mod:`hostenv.agent.gpucode`."""

    MODULE = "module"
    LINKED = "linked"
    RELOCATABLE = "relocatable"
    LOOSE = "loose"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """Images that are tried together for one GPU; ``count`` containers of the object are alike."""

    role: Role
    images: tuple[Image, ...]
    count: int = 1

    @classmethod
    def from_table(cls, table: Table) -> Container:
        """Read one entry of the agent's answer."""
        return cls(
            role=table.get("role", choice(Role)),
            images=table.get("images", list_of(parsed(Image.parse, "image"))),
            count=table.get("count", natural),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCode:
    """The GPU code of one shared object. ``problem``: why its walk ended early; what follows is not known."""

    containers: tuple[Container, ...]
    problem: str | None = None

    @classmethod
    def from_table(cls, table: Table) -> GpuCode:
        """Read one object of the agent's answer."""
        return cls(
            containers=table.get("containers", list_of(table_of(Container.from_table))),
            problem=table.get("problem", optional(text)),
        )

    @property
    def images(self) -> frozenset[Image]:
        """Every image of the object, each once, loose ones included: what cuobjdump would list."""
        return frozenset(image for container in self.containers for image in container.images)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCodeFacts:
    """The GPU code of an environment: path relative to site-packages → code, objects without any left out.

    ``unreadable``: path → why it could not be read.
    """

    objects: Mapping[str, GpuCode]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, answer: Any) -> GpuCodeFacts:
        """Read what the agent's ``abi.gpu_code`` answers."""
        return read(answer, table_of(cls._from_table), document="the agent's answer to abi.gpu_code")

    @classmethod
    def _from_table(cls, table: Table) -> GpuCodeFacts:
        return cls(
            objects=table.get("objects", mapping_of(table_of(GpuCode.from_table))),
            unreadable=table.get("unreadable", mapping_of(text)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetGpu:
    """One GPU that code shall run on: how to call it (``GPU 0, NVIDIA H200``) and what it is, where known."""

    name: str
    compute_capability: DottedPair | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTargets:
    """The GPUs of a host and its driver, as far as they are known.

    ``driver`` is its version (``580.159.04``); ``cuda`` the CUDA version that libcuda says it serves
    (nvidia-smi's ``CUDA Version``), which is what PTX goes by: cuda-compat raises it, not the module's.
    """

    gpus: tuple[TargetGpu, ...]
    driver: str | None
    cuda: DottedPair | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaRuntime:
    """The CUDA version that the environment's runtime is of, and what shows it (``libcudart.so.13``).

    ``version`` is ``None`` where the environment holds no CUDA runtime.
    """

    version: DottedPair | None
    source: str


def runtime_of(loads: LoadFacts) -> CudaRuntime:
    """Return the CUDA version of an environment's runtime, from its wheel or from torch."""
    for name in _RUNTIMES:
        if name in loads.installed:
            try:
                release = Version(loads.installed[name]).release
            except ValueError:
                continue
            return CudaRuntime(
                version=DottedPair(*(*release, 0)[:2]), source=f"{name} {loads.installed[name]}"
            )
    if loads.cuda:
        return CudaRuntime(version=DottedPair.parse(loads.cuda), source=f"torch for CUDA {loads.cuda}")
    return CudaRuntime(version=None, source="no CUDA runtime in the environment")
