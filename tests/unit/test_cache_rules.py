"""The rules on kernels compiled or fetched before: each with its fault and a sound twin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kit.surroundings import CACHE, KERNEL, PTXAS, TOOLKIT, around, judged, loads, service, targets, told

if TYPE_CHECKING:
    from hostenv.facts.surroundings import CachedObject, CompileCache, Surroundings


def _with(*objects: CachedObject, cache: CompileCache = CACHE) -> Surroundings:
    return around({"caches": (replace(cache, objects=objects),)})


def test_a_cache_of_this_environment_is_sound() -> None:
    assert judged(_with(KERNEL)) == []


def test_kernels_linked_to_another_cuda() -> None:
    old = replace(KERNEL, needed=("libcudart.so.12", "libc.so.6"))
    (found,) = judged(_with(old, replace(old, path="0.6.12/90a/cached_ops/rope/rope.so")))
    assert told([found]) == [("warning", "jit-cache", "K43")]
    assert "2 kernels" in found.message
    assert found.fix is not None
    assert found.fix.startswith("rm -rf /root/.cache/flashinfer")


def test_kernels_linked_to_a_cuda_that_the_driver_does_not_serve() -> None:
    cu12 = around(
        {"caches": (replace(CACHE, objects=(KERNEL,)),)},
        toolkits=(replace(TOOLKIT, nvcc="12.8.93", headers="12.8"),),
    )
    (found,) = judged(cu12, loads(cuda="12.8"), targets("9.0", driver="570.133.20", cuda="12.8"))
    assert told([found]) == [("error", "jit-cache", "K43")]
    assert "(35)" in found.message


@pytest.mark.parametrize("path", ["0.6.9/90a/cached_ops/norm/norm.so", "0.6.12/120f/cached_ops/norm/norm.so"])
def test_kernels_of_another_release_or_gpu_are_left_alone(path: str) -> None:
    assert judged(_with(replace(KERNEL, path=path, needed=("libcudart.so.12",)))) == []


def test_kernels_compiled_on_a_newer_system() -> None:
    (glibc,) = judged(_with(replace(KERNEL, needs_glibc="2.43")))
    assert told([glibc]) == [("error", "jit-cache", "K43")]
    (glibcxx,) = judged(_with(replace(KERNEL, needs_glibcxx="3.4.99")))
    assert "GLIBCXX_3.4.99" in glibcxx.message


def test_kernels_compiled_against_another_environment() -> None:
    (found,) = judged(_with(replace(KERNEL, built_for="/root/old-env")))
    assert told([found]) == [("warning", "jit-cache", "K43")]
    assert "/root/old-env" in found.message


def test_a_damaged_kernel() -> None:
    assert told(judged(_with(replace(KERNEL, problem="file too short")))) == [("error", "jit-cache", "K43")]


def test_torch_extensions_of_another_cuda_are_left_alone() -> None:
    cache = replace(CACHE, name="torch-extensions", path="/root/.cache/torch_extensions")
    other = replace(KERNEL, path="py312_cu128/op/op.so", needed=("libcudart.so.12",))
    assert judged(_with(other, cache=cache)) == []
    same = replace(other, path="py312_cu130/op/op.so")
    assert told(judged(_with(same, cache=cache))) == [("warning", "jit-cache", "K43")]


def test_a_cache_that_cannot_be_written() -> None:
    cache = replace(CACHE, usable=False, variable="TRITON_CACHE_DIR", path="/var/cache/triton")
    (found,) = judged(_with(cache=cache))
    assert told([found]) == [("error", "jit-cache-place", "K43")]
    assert "service.env.TRITON_CACHE_DIR" in str(found.fix)


def test_a_cache_on_a_filesystem_without_programs_or_shared() -> None:
    assert told(judged(_with(cache=replace(CACHE, noexec=True)))) == [("error", "jit-cache-place", "K43")]
    shared = replace(CACHE, filesystem="nfs4")
    assert told(judged(_with(cache=shared))) == [("warning", "jit-cache-place", "K43")]


def test_kernels_that_are_fetched_at_first_use() -> None:
    blackwell, without = targets("10.0"), loads({"flashinfer-cubin": None})
    aside = around(assemblers=(PTXAS,))
    (note,) = judged(blackwell, without, aside)
    assert told([note]) == [("note", "jit-fetched", "K44")]
    (found,) = judged(blackwell, without, aside, service(offline=True))
    assert told([found]) == [("error", "jit-fetched", "K44")]
    assert judged(without, service(offline=True)) == []
