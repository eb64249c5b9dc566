"""The GPUs of a probed or saved host as the rules on GPU code want them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.facts.gpu_code import DottedPair, GpuTargets, TargetGpu

if TYPE_CHECKING:
    from hostenv.facts.fact import Fact
    from hostenv.facts.host import HostFacts


def gpu_targets(host: HostFacts) -> GpuTargets:
    """Return the host's GPUs and driver; what could not be read stays unknown (``None``).

    Where nvidia-smi did not answer, the GPUs that the kernel shows are there without compute capability.
    """
    if host.gpus.is_known:
        gpus = tuple(
            TargetGpu(name=f"GPU {gpu.index}, {gpu.name}", compute_capability=_pair(gpu.compute_capability))
            for gpu in host.gpus.value
        )
    else:
        seen = host.driver.kernel_gpus.or_else(())
        gpus = tuple(
            TargetGpu(name=f"GPU at {gpu.pci}, {gpu.name or 'unknown model'}", compute_capability=None)
            for gpu in seen
        )
    module = host.driver.kernel_module
    return GpuTargets(
        gpus=gpus,
        driver=module.value.version if module.is_known else host.driver.smi.or_else(None),
        cuda=_pair(host.driver.cuda),
    )


def _pair(fact: Fact[str]) -> DottedPair | None:
    try:
        return DottedPair.parse(fact.value) if fact.is_known else None
    except ValueError:
        return None
