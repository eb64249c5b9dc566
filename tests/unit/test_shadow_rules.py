"""The rules on libraries that come before the environment's own: each with its fault and a sound twin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.elf import read_elf
from hostenv.facts.objects import Load, LoadFacts, SharedObject
from kit.elf import needs_gcc, real, shared
from kit.surroundings import VENV, LibraryFolder, around, judged, loads, service, told

if TYPE_CHECKING:
    import pathlib

_CUDA = LibraryFolder(
    path="/usr/local/cuda-13.0/lib64", told_by="LD_LIBRARY_PATH", libraries=("libcublas.so.13", "libfoo.so.1")
)
_CUDNN = LibraryFolder(path="/usr/lib/cudnn", told_by="LD_LIBRARY_PATH", libraries=("libcudnn.so.9",))


def test_a_library_path_that_shadows_the_wheels() -> None:
    (found,) = judged(around({"folders": (_CUDA,)}))
    assert told([found]) == [("warning", "library-path-shadows", "K12")]
    assert found.evidence[0].endswith("libcublas.so.13")


def test_folders_that_shadow_nothing() -> None:
    own = replace(_CUDA, path=f"{VENV}/lib/python3.12/site-packages/nvidia/cu13/lib")
    harmless = replace(_CUDA, libraries=("libfoo.so.1",))
    configured = replace(_CUDA, told_by="/etc/ld.so.conf.d/cuda.conf")  # searched after RUNPATH
    assert judged(around({"folders": (own, harmless, configured)})) == []


def test_another_hosts_folders_are_unknown() -> None:
    elsewhere = replace(around(), host=None)
    found = judged(elsewhere, service({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}))
    assert ("unknown", "library-path-shadows", "K12") in told(found)


def test_a_preloaded_copy() -> None:
    (found,) = judged(service({"LD_PRELOAD": "/opt/libcublas.so.13:/usr/lib/libjemalloc.so.2"}))
    assert found.object == "/opt/libcublas.so.13"


def test_a_second_cudnn() -> None:
    assert told(judged(around({"folders": (_CUDNN,)}))) == [("warning", "cudnn-shadowed", "K13")]


def test_the_cudnn_that_torch_2_9_1_must_not_have() -> None:
    (found,) = judged(loads({"torch": "2.9.1", "nvidia-cudnn-cu13": "9.10.2.21"}))
    assert told([found]) == [("warning", "cudnn-known-bad", "K13")]
    assert judged(loads({"torch": "2.9.1", "nvidia-cudnn-cu13": "9.16.0.29"})) == []


def _needing(size: int) -> LoadFacts:
    fine = Load(loads=True)
    item = SharedObject(path="vendor/_C.so", alone=fine, after=fine, static_tls=size)
    return replace(loads(), objects=(item,))


@needs_gcc
@pytest.mark.parametrize("size", [1500, 2500])
def test_thread_storage_beyond_what_the_real_loader_keeps(tmp_path: pathlib.Path, size: int) -> None:
    model = '__attribute__((tls_model("initial-exec")))'
    path = shared(tmp_path, "a.so", f"__thread {model} char x[{size}]; char *f(void) {{ return x; }}")
    refused = "static TLS block" in real(path)
    expected = [("warning", "static-tls", "K17")] if refused else []
    assert read_elf(str(path)).tls_size == size
    assert told(judged(_needing(size))) == expected


def test_thread_storage_that_a_tunable_provides() -> None:
    tuned = service({"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=5000"})
    assert judged(_needing(2500), tuned) == []


def test_an_nccl_that_a_variable_names() -> None:
    (found,) = judged(service({"VLLM_NCCL_SO_PATH": "/usr/lib/libnccl.so.2"}))
    assert told([found]) == [("warning", "nccl-from-outside", "K20")]
    assert judged(service({"VLLM_NCCL_SO_PATH": f"{VENV}/lib/libnccl.so.2"})) == []


def test_what_sets_nccl_up_from_outside() -> None:
    plugin = replace(_CUDA, libraries=("libnccl-net.so.2",))
    (note,) = judged(around({"folders": (plugin,), "nccl": ("/etc/nccl.conf",)}))
    assert told([note]) == [("note", "nccl-from-outside", "K20")]
    assert note.evidence == (f"{_CUDA.path}/libnccl-net.so.2", "/etc/nccl.conf")
