"""The rules on compiling at run time: each with its fault and a sound twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hostenv.checks.arch_list import ArchList
from hostenv.facts.gpu_code import DottedPair
from hostenv.facts.surroundings import ServiceSettings
from kit.hostfacts import recorded
from kit.surroundings import PTXAS, SERVICE, TOOLKIT, around, judged, loads, service, targets, told


def _commands(**versions: str | None) -> dict[str, Any]:
    """Return changes to the recorded host's commands; ``None``: not on PATH."""
    commands = recorded()["toolchain"]["commands"]
    for name, version in versions.items():
        key = {"cxx": "c++", "gxx": "g++"}.get(name, name)
        commands[key]["value"] = {"path": f"/usr/bin/{key}", "version": version} if version else None
    return {"toolchain.commands": commands}


_BLACKWELL_PTXAS = replace(
    PTXAS,
    tool="ptxas-blackwell",
    path=PTXAS.path + "-blackwell",
    version="12.9.86",
    targets=frozenset({"100a", "103a", "120a", "121a"}),
)


def test_a_ptxas_that_does_not_know_the_gpu() -> None:
    (found,) = judged(
        targets("12.1", driver="580.159.04"), around(toolkits=(replace(TOOLKIT, nvcc="13.0.88"),))
    )
    assert told([found]) == [("error", "triton-ptxas", "K36")]
    assert "sm_121a" in found.message
    assert "TRITON_PTXAS_PATH" in str(found.fix)


def test_blackwell_has_a_ptxas_of_its_own_where_triton_splits_them() -> None:
    both = around(assemblers=(PTXAS, _BLACKWELL_PTXAS))
    assert judged(targets("12.1"), both) == []
    old = replace(_BLACKWELL_PTXAS, targets=frozenset({"100a"}))
    (found,) = judged(targets("12.1"), around(assemblers=(PTXAS, old)))
    assert found.object == old.path
    assert "TRITON_PTXAS_BLACKWELL_PATH" in str(found.fix)


def test_a_ptxas_that_a_variable_names_and_that_is_not_there() -> None:
    gone = replace(
        PTXAS, path="/opt/ptxas", variable="TRITON_PTXAS_PATH", targets=frozenset(), problem="is not there"
    )
    (found,) = judged(around(assemblers=(gone,)))
    assert told([found]) == [("error", "triton-ptxas", "K36")]
    assert found.object == "TRITON_PTXAS_PATH"


def test_ninja_in_the_environment_and_not_on_the_service_path() -> None:
    (found,) = judged(host=_commands(ninja=None))
    assert told([found]) == [("error", "jit-command", "K37")]
    assert "{build}/bin" in str(found.fix)


def test_the_logins_path_only_warns() -> None:
    (found,) = judged(ServiceSettings(), host=_commands(ninja=None))
    assert told([found]) == [("warning", "jit-command", "K37")]


def test_who_has_its_kernels_compiled_needs_no_ninja() -> None:
    compiled = loads({"flashinfer-jit-cache": "0.6.12+cu130", "sglang": None})
    assert judged(compiled, host=_commands(ninja=None)) == []


def test_a_command_that_could_not_be_asked_is_unknown() -> None:
    commands = recorded()["toolchain"]["commands"]
    commands["ninja"] = {"unknown": "timed out", "how": "ninja --version"}
    assert told(judged(host={"toolchain.commands": commands})) == [("unknown", "jit-command", "K37")]


def test_no_c_compiler_for_triton() -> None:
    only_triton = loads({"sglang": None, "flashinfer-python": None, "flashinfer-cubin": None})
    assert told(judged(only_triton, host=_commands(gcc=None))) == [("error", "jit-command", "K37")]
    assert judged(only_triton, service({"CC": "/opt/gcc/bin/gcc"}), host=_commands(gcc=None)) == []


@pytest.mark.parametrize(
    ("home", "problem"), [(":/usr/local/cuda", "is not one absolute folder"), ("/opt/cuda", "does not exist")]
)
def test_a_cuda_home_that_leads_nowhere(home: str, problem: str) -> None:
    host = {"toolchain.cuda_home": {"path": home, "from": "CUDA_HOME", "problem": problem}}
    (found,) = judged(around(toolkits=()), service({"CUDA_HOME": home}), host=host)
    assert told([found]) == [("error", "jit-nvcc", "K37")]
    assert found.evidence == (f"CUDA_HOME={home}: {problem}",)


def test_an_environment_with_its_own_nvcc_is_proposed() -> None:
    own = replace(TOOLKIT, home="/srv/env/nvidia/cu13", origin="environment")
    host = {"toolchain.cuda_home": {"path": None, "from": "default", "problem": "does not exist"}}
    (found,) = judged(around(toolkits=(own,)), host=host)
    assert found.fix == 'service.env.CUDA_HOME = "/srv/env/nvidia/cu13"'


def test_no_python_headers() -> None:
    (found,) = judged(around(has_python_headers=False))
    assert told([found]) == [("error", "jit-python-headers", "K37")]


def test_no_libcuda_to_link() -> None:
    commands = recorded()["toolchain"]["libcuda_for_linking"]
    assert commands["value"]
    answer = recorded()
    answer["toolchain"]["libcuda_for_linking"]["value"] = None
    found = judged(host={"toolchain": answer["toolchain"]})
    assert told(found) == [("error", "jit-libcuda", "K37")]


def test_an_nvcc_that_cannot_make_code_for_the_gpu() -> None:
    old = around(toolkits=(replace(TOOLKIT, nvcc="12.8.93", headers="12.8"),))
    cu12 = loads(cuda="12.8")
    found = [one for one in judged(old, cu12, targets("12.0")) if one.rule == "jit-nvcc-too-old"]
    assert told(found) == [("error", "jit-nvcc-too-old", "K38")]
    assert "12.9" in found[0].message  # flashinfer 0.6 refuses 12.8 for every 12.x
    newer = loads({"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2"}, cuda="12.8")
    assert judged(old, newer, targets("12.0")) == []


def test_an_nvcc_of_another_cuda_than_torch() -> None:
    (found,) = judged(loads(cuda="12.8"))
    assert told([found]) == [("warning", "jit-cuda-other-major", "K38")]


def test_an_nvcc_newer_than_the_driver() -> None:
    newer = around(toolkits=(replace(TOOLKIT, nvcc="13.3.33", headers="13.3"),))
    (note,) = judged(newer)
    assert told([note]) == [("note", "jit-newer-than-driver", "K22")]
    found = judged(targets("8.6", driver="570.133.20", cuda="12.8"))
    assert ("error", "jit-newer-than-driver", "K22") in told(found)


def test_a_toolkit_of_wheels_with_two_minors() -> None:
    mixed = replace(TOOLKIT, home="/srv/env/nvidia/cu13", nvcc="13.5.37")
    wheels = loads({"nvidia-cuda-nvcc": "13.5.37", "nvidia-cuda-runtime": "13.0.96"})
    found = judged(around(toolkits=(mixed,)), wheels)
    assert ("error", "toolkit-mixed", "K39") in told(found)
    (one,) = [each for each in found if each.rule == "toolkit-mixed"]
    assert "nvidia-cuda-nvcc==13.0.*" in str(one.fix)
    (note,) = judged(around(toolkits=(TOOLKIT, replace(mixed, origin="environment"))), wheels)
    assert told([note]) == [("note", "toolkit-mixed", "K39")]


def test_a_gcc_newer_than_nvcc_takes() -> None:
    host = _commands(gxx="16.1.0")
    (found,) = judged(host=host)
    assert told([found]) == [("error", "jit-host-compiler", "K41")]
    assert judged(service({"NVCC_CCBIN": "/usr/bin/g++-13"}), host=host) == []
    assert judged(service({"NVCC_APPEND_FLAGS": "-allow-unsupported-compiler"}), host=host) == []


def test_glibc_headers_that_contradict_cuda_12() -> None:
    cuda12 = around(toolkits=(replace(TOOLKIT, nvcc="12.8.93", headers="12.8"),))
    found = judged(cuda12, loads(cuda="12.8"), host={"system.glibc": "2.41"})
    assert told(found) == [("error", "jit-host-compiler", "K41")]
    assert judged(host={"system.glibc": "2.41"}) == []


def test_cuda_13_without_its_core_libraries() -> None:
    (found,) = judged(around(toolkits=(replace(TOOLKIT, cccl=False),)))
    assert told([found]) == [("warning", "jit-host-compiler", "K41")]


def test_a_list_of_architectures_without_the_gpu() -> None:
    (found,) = judged(service({"FLASHINFER_CUDA_ARCH_LIST": "9.0a"}), targets("12.0"), around(assemblers=()))
    assert told([found]) == [("error", "jit-arch-list", "K40")]
    assert judged(service({"FLASHINFER_CUDA_ARCH_LIST": "9.0a"})) == []
    (only,) = judged(service({"TORCH_CUDA_ARCH_LIST": "8.0;8.6"}))
    assert told([only]) == [("warning", "jit-arch-list", "K40")]


def test_a_word_that_is_no_architecture() -> None:
    (found,) = judged(service({"TORCH_CUDA_ARCH_LIST": "9.0 sm_90"}))
    assert "'sm_90'" in found.message


@pytest.mark.parametrize(
    ("written", "gpu", "covered"),
    [
        ("8.0", "8.6", True),
        ("9.0a", "9.0", True),
        ("12.0a", "12.1", False),
        ("12.0f", "12.1", True),
        ("9.0+PTX", "12.0", True),
        ("8.0;9.0", "12.0", False),
        ("Hopper", "9.0", True),
    ],
)
def test_what_an_architecture_covers(written: str, gpu: str, *, covered: bool) -> None:
    # CUDA C++ Programming Guide, "Binary compatibility" and "PTX compatibility"
    assert ArchList.parse(written).covers(DottedPair.parse(gpu)) is covered


def test_a_rocm_that_tvm_ffi_takes_before_cuda() -> None:
    rocm, old = around({"rocm": True}), loads({"apache-tvm-ffi": "0.1.11"})
    assert told(judged(rocm, old)) == [("warning", "jit-rocm-first", "K40")]
    assert judged(rocm, old, service({"TVM_FFI_GPU_BACKEND": "cuda"})) == []
    assert judged(rocm, loads({"apache-tvm-ffi": "0.1.15.post2"})) == []


def test_saved_facts_of_another_host_are_enough_for_its_nvcc() -> None:
    elsewhere = replace(around(), host=None)
    found = judged(elsewhere, SERVICE)
    assert told(found) == [("unknown", "jit-cache", "K43")]
