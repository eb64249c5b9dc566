"""Public threads of the catalogue, replayed as facts: the one finding that gates names the thread's cause.

Facts are those that the thread's reporter gave (driver, versions, paths); what it does not tell is the sound
host's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from kit.hostfacts import recorded
from kit.surroundings import (
    CACHE,
    HOST,
    KERNEL,
    SITE,
    TOOLKIT,
    LibraryFolder,
    around,
    judged,
    loads,
    service,
    targets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Thread:
    """What a thread tells, the rule that must find it, and words that the finding must hold."""

    where: str
    rule: str
    words: tuple[str, ...]
    facts: tuple[object, ...] = ()
    host: Mapping[str, Any] | None = None


def _libraries(names: str, **changes: Any) -> dict[str, Any]:
    """Return changes to the recorded host's libraries of these names (a prefix)."""
    found = recorded()["libraries"]["read"]
    for fact in found:
        if fact["value"]["name"].startswith(tuple(names.split())):
            fact["value"].update(changes)
    return {"libraries.read": found}


def _commands(**values: Any) -> dict[str, Any]:
    commands = recorded()["toolchain"]["commands"]
    for name, value in values.items():
        commands[name]["value"] = value
    return {"toolchain.commands": commands}


_WHEELS = replace(TOOLKIT, home=f"{SITE}/nvidia/cu13")
_COMPAT = "/usr/local/cuda/compat"

THREADS = (
    Thread(
        where="flashinfer-ai/flashinfer#5145",
        rule="jit-cache",
        words=("CUDA 13", "12.9", "(35)"),
        facts=(
            loads(cuda="12.9"),
            targets("9.0", driver="575.57.08", cuda="12.9"),
            around(
                {"caches": (replace(CACHE, objects=(replace(KERNEL, needed=("libcudart.so.13",)),)),)},
                toolkits=(replace(TOOLKIT, nvcc="12.9.86", headers="12.9"),),
            ),
        ),
    ),
    Thread(
        where="gpustack/gpustack#4678",
        rule="driver-compat",
        words=("803", "575.57.08", "580.159.04", "/etc/ld.so.conf.d/00-cuda-compat.conf"),
        facts=(
            around(
                {
                    "folders": (
                        LibraryFolder(
                            path=_COMPAT, told_by="/etc/ld.so.conf.d/00-cuda-compat.conf", libraries=()
                        ),
                    )
                }
            ),
        ),
        host=_libraries(
            "libcuda.so.1",
            path=f"{_COMPAT}/libcuda.so.1",
            real=f"{_COMPAT}/libcuda.so.575.57.08",
            driver_version="575.57.08",
        ),
    ),
    Thread(
        where="ls1intum/edutelligence#687",
        rule="toolkit-mixed",
        words=("13.2", "headers 13.0", "nvidia-cuda-nvcc==13.0.*"),
        facts=(
            around(toolkits=(replace(_WHEELS, nvcc="13.2.86"),)),
            targets("9.0", driver="595.45.04", cuda="13.2"),
        ),
    ),
    Thread(
        where="vllm-project/vllm#50705",
        rule="jit-nvcc-too-old",
        words=("12.8", "12.9", "12.0"),
        facts=(
            around(toolkits=(replace(TOOLKIT, nvcc="12.8.93", headers="12.8"),)),
            loads(cuda="12.8"),
            targets("12.0"),
        ),
    ),
    Thread(
        where="triton-lang/triton#8539",
        rule="triton-ptxas",
        words=("sm_121a", "TRITON_PTXAS_PATH"),
        facts=(targets("12.1"),),
    ),
    Thread(
        where="vllm-project/vllm#36077",
        rule="jit-nvcc",
        words=(":/usr/local/cuda-12.8", "one absolute folder"),
        facts=(around(toolkits=()), service({"CUDA_HOME": ":/usr/local/cuda-12.8"})),
        host={
            "toolchain.cuda_home": {
                "path": ":/usr/local/cuda-12.8",
                "from": "CUDA_HOME",
                "problem": "is not one absolute folder",
            }
        },
    ),
    Thread(
        where="vllm-project/vllm#49029",
        rule="jit-command",
        words=("ninja", "PATH", "{build}/bin"),
        facts=(service({"PATH": "/usr/bin:/bin"}),),
        host=_commands(ninja=None),
    ),
    Thread(
        where="NVIDIA/cuda-samples#378",
        rule="jit-host-compiler",
        words=("cospi", "glibc 2.41", "CUDA 12.8"),
        facts=(
            around(toolkits=(replace(TOOLKIT, nvcc="12.8.93", headers="12.8"),)),
            loads(cuda="12.8"),
        ),
        host={"system.glibc": "2.41"},
    ),
    Thread(
        where="k4yt3x/video2x#1226",
        rule="driver-library-mismatch",
        words=("565.57", "535.183", "install the user-space driver 535.183"),
        facts=(
            targets("8.6", driver="535.183", cuda="12.2"),
            around(toolkits=(replace(TOOLKIT, nvcc="12.2.140", headers="12.2"),)),
            loads(cuda="12.2"),
        ),
        host={
            **_libraries("libcuda libnvidia", driver_version="565.57"),
            "driver.kernel_module": {"version": "535.183", "open": False},
            "identity.container": {"kind": "docker", "id": "0" * 12, "evidence": ""},
        },
    ),
    Thread(
        where="canonical/lxd#5618",
        rule="device-node",
        words=("/dev/nvidia-uvm", "lxc.cgroup2.devices.allow: c 238"),
        host={
            "driver.device_nodes": [
                node for node in recorded()["driver"]["device_nodes"]["value"] if "uvm" not in node["path"]
            ],
            "identity.container": {"kind": "lxc", "id": "105", "evidence": ""},
        },
    ),
    Thread(
        where="NVIDIA/open-gpu-kernel-modules#862",
        rule="open-module-needed",
        words=("10de:2b85", "Above 4G Decoding", "Resizable BAR"),
        host={
            "driver.pci": [{"address": "0000:01:00.0", "device": "0x2b85", "driver": "nvidia"}],
            "gpus": [],
        },
    ),
    Thread(
        where="sgl-project/sglang#24633",
        rule="launch-arch",
        words=("trtllm_mla", "12.0", "flashinfer or triton"),
        facts=(
            service({}, "--attention-backend", "trtllm_mla"),
            loads({"sglang": "0.5.10"}),
            targets("12.0"),
        ),
    ),
    Thread(
        where="IBM/MAX-Object-Detector#131",
        rule="processor-too-old",
        words=("tensorflow", "avx", "cpu: host"),
        facts=(loads({"tensorflow": "2.2.0"}),),
        host={"system.cpu": {"model": "Common KVM processor", "count": 8, "flags": ["sse2", "sse4_2"]}},
    ),
)


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread.where)
def test_the_finding_names_the_cause(thread: Thread) -> None:
    sound = () if any(type(each) is type(around()) for each in thread.facts) else (around(),)
    found = judged(*sound, *thread.facts, host=thread.host)
    (first,) = [one for one in found if one.rule == thread.rule and one.severity == "error"]
    told = " ".join((first.object, first.message, *first.evidence, str(first.fix)))
    assert [word for word in thread.words if word not in told] == []
    others = [one.rule for one in found if one.severity == "error" and one.rule != thread.rule]
    assert others == [], "nothing else is blamed"


def test_the_threads_host_is_sound_without_them() -> None:
    assert HOST.caches == ()
    assert judged() == []
