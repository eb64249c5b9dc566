"""verify_abi judges by the service's own environment: its PATH, CUDA_HOME, arguments and caches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kit.elf import needs_gcc, shared
from kit.hostfacts import write_saved_facts

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Ran, Repository

PTXAS = b"\0Cuda compilation tools, release 12.8, V12.8.93\0sm_90a\0sm_100a\0"
TORCH = '__version__ = "2.11.0"\ncuda = "13.0"\n'


@pytest.fixture
def stack(repository: Repository) -> Repository:
    """Return a repository whose build holds what compiles at run time, by name."""
    repository.wheel("flashinfer-python", "0.6.12", {"flashinfer/__init__.py": ""})
    repository.wheel("triton", "3.6.0", {"triton/backends/nvidia/bin/ptxas": PTXAS})
    repository.wheel("torch", "2.11.0", {"torch/version.py": TORCH, "torch/__init__.py": ""})
    return repository


def service(repository: Repository, *args: str, **env: str) -> None:
    """Write the spec with a service of these arguments and variables."""
    variables = "\n".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    more = f"[service]\nargs = {json.dumps(args)}\n[service.env]\n{variables}"
    repository.spec("flashinfer-python==0.6.12", "triton==3.6.0", "torch==2.11.0", more=more)


def of_rule(ran: Ran, rule: str) -> list[dict[str, Any]]:
    """Return the findings of a rule."""
    return [each for each in ran.host["checks"]["findings"] if each["rule"] == rule]


def test_commands_are_looked_up_as_the_service_will(stack: Repository, tmp_path: pathlib.Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    service(stack, PATH=f"{tools}:/nowhere", CUDA_HOME=":/usr/local/cuda")
    stack.build_waived()

    ran = stack.run("verify_abi")

    assert {each["object"] for each in of_rule(ran, "jit-command")} >= {"ninja", "gcc"}
    assert {each["severity"] for each in of_rule(ran, "jit-command")} == {"error"}
    (home,) = of_rule(ran, "jit-nvcc")
    assert home["severity"] == "error"
    assert home["evidence"] == ["CUDA_HOME=:/usr/local/cuda: is not one absolute folder"]

    ninja = tools / "ninja"
    ninja.write_text("#!/bin/sh\necho 1.13.2\n")
    ninja.chmod(0o755)
    assert "ninja" not in {each["object"] for each in of_rule(stack.run("verify_abi"), "jit-command")}


@needs_gcc
def test_the_caches_that_the_service_names_are_part_of_its_environment(
    stack: Repository, tmp_path: pathlib.Path
) -> None:
    kept = tmp_path / "kept/.cache/flashinfer/0.6.12/90a/cached_ops/norm"
    shared(tmp_path, "libcudart.so.12", "int cudart(void) { return 1; }", "-Wl,-soname,libcudart.so.12")
    shared(
        kept, "norm.so", "int cudart(void); int f(void) { return cudart(); }", f"{tmp_path}/libcudart.so.12"
    )
    service(stack, FLASHINFER_WORKSPACE_BASE=str(tmp_path / "kept"))
    stack.build_waived()

    (found,) = of_rule(stack.run("verify_abi"), "jit-cache")

    assert found["kind"] == "K43"
    assert found["object"] == str(tmp_path / "kept/.cache/flashinfer")
    assert "linked to CUDA 12, torch to CUDA 13.0" in found["message"]
    service(stack, FLASHINFER_WORKSPACE_BASE="{root}/jit/{id}")
    assert of_rule(stack.run("verify_abi"), "jit-cache") == []


def test_arguments_and_lists_are_judged_for_the_gpus_of_saved_facts(
    stack: Repository, tmp_path: pathlib.Path
) -> None:
    facts = write_saved_facts(tmp_path / "h200.json")
    service(stack, "--attention-backend", "cutlass_mla", FLASHINFER_CUDA_ARCH_LIST="12.0f")
    stack.build_waived()
    (stack.site() / "triton/backends/nvidia/bin/ptxas").chmod(0o755)

    ran = stack.run("verify_abi", "--facts", str(facts))

    assert [each["severity"] for each in of_rule(ran, "launch-arch")] == ["error"]
    assert [each["severity"] for each in of_rule(ran, "jit-arch-list")] == ["error"]
    assert of_rule(ran, "triton-ptxas") == []  # it knows sm_90a
    assert [each["severity"] for each in of_rule(ran, "jit-cache")] == ["unknown"]
