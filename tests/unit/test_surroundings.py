"""Reading what surrounds an environment: toolkits, assemblers, caches, loader folders, the driver's files."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import driverfiles, jitcaches, toolkit
from hostenv.agent.surroundings import library_folders, surroundings
from hostenv.facts.surroundings import Surroundings
from kit.environment import SITE, SilentWire, make_environment, put

if TYPE_CHECKING:
    import pathlib

_STRINGS = b"\0Cuda compilation tools, release 12.8, V12.8.93\0sm_90\0sm_90a\0sm_120a\0sm_11\0"


def _toolkit(home: pathlib.Path, cudart: int = 13000, nvcc: str | None = "13.0.88") -> pathlib.Path:
    put(home / "include/cuda_runtime_api.h", f"#define CUDART_VERSION  {cudart}\n")
    put(home / "include/crt/host_config.h", "#if __GNUC__ > 15\n#error -- unsupported GNU version!\n")
    put(home / "bin/nvcc", "#!/bin/sh\n").chmod(0o755)
    if nvcc:
        put(home / "version.json", json.dumps({"cuda_nvcc": {"name": "CUDA NVCC", "version": nvcc}}))
    return home


def _read(venv: pathlib.Path, **environment: str) -> Surroundings:
    settings = {"PATH": "/nowhere", "HOME": str(venv.parent), **environment}
    return Surroundings.from_dict(surroundings(SilentWire(), venv=str(venv), environment=settings))


def test_toolkits_of_wheels_and_of_cuda_home(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "env")
    own = _toolkit(venv / SITE / "nvidia/cu13", nvcc=None)
    put(own / "bin/nvcc", b"\x7fELF" + b"\0" * 80 + b"release 13.5, V13.5.37\0").chmod(0o755)
    home = _toolkit(tmp_path / "cuda", cudart=12080, nvcc="12.8.93")
    wheels, used = _read(venv, CUDA_HOME=str(home)).toolkits
    assert (wheels.origin, wheels.nvcc, wheels.headers) == ("environment", "13.5.37", "13.0")
    assert (used.origin, used.nvcc, used.headers, used.newest_gcc) == ("CUDA_HOME", "12.8.93", "12.8", 15)


def test_the_toolkit_of_wheels_counts_once_where_cuda_home_names_it(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "env")
    own = _toolkit(venv / SITE / "nvidia/cu13")
    (only,) = _read(venv, CUDA_HOME=str(own)).toolkits
    assert only.origin == "CUDA_HOME"


def test_an_nvcc_that_does_not_tell_its_version(tmp_path: pathlib.Path) -> None:
    home = _toolkit(tmp_path / "cuda", nvcc=None)
    (only,) = _read(make_environment(tmp_path / "env"), CUDA_HOME=str(home)).toolkits
    assert only.nvcc == "unknown"


@pytest.mark.parametrize("home", [":/usr/local/cuda", "/nowhere/cuda"])
def test_a_cuda_home_that_is_no_folder_is_no_toolkit(tmp_path: pathlib.Path, home: str) -> None:
    assert _read(make_environment(tmp_path / "env"), CUDA_HOME=home).toolkits == ()


def test_the_assembler_that_triton_would_call(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "env")
    put(venv / SITE / "triton/backends/nvidia/bin/ptxas", _STRINGS).chmod(0o755)
    (one,) = _read(venv).assemblers
    assert (one.version, sorted(one.targets)) == ("12.8.93", ["120a", "90", "90a"])
    (gone,) = _read(venv, TRITON_PTXAS_PATH="/nowhere/ptxas").assemblers
    assert (gone.variable, gone.problem) == ("TRITON_PTXAS_PATH", "is not there")


def test_an_assembler_that_lost_its_x_bit(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "env")
    put(venv / SITE / "triton/backends/nvidia/bin/ptxas", _STRINGS)
    (one,) = _read(venv).assemblers
    assert one.problem == "is not executable"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_constants_are_found_in_a_real_program(tmp_path: pathlib.Path) -> None:
    source = put(tmp_path / "a.c", 'const char *t = "sm_121a"; int main(void) { return *t == 0; }')
    subprocess.run(["gcc", str(source), "-o", str(tmp_path / "a")], check=True)
    assert toolkit.strings_of(str(tmp_path / "a")) == (None, ["121a"])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_objects_of_a_cache(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "cache/.cache/flashinfer/0.6.12/90a/cached_ops/norm"
    source = put(folder / "norm.c", 'int puts(const char *); int f(void) { return puts("x"); }')
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(folder / "norm.so")], check=True)
    put(
        folder / "build.ninja",
        "common_cflags = -isystem /srv/old/lib/python3.12/site-packages/torch/include\n",
    )
    put(folder / "half.so", b"\x7fELF")
    venv = make_environment(tmp_path / "env")
    host = _read(venv, FLASHINFER_WORKSPACE_BASE=str(tmp_path / "cache")).host
    assert host is not None
    (cache,) = host.caches
    assert (cache.name, cache.variable, cache.usable) == ("flashinfer", "FLASHINFER_WORKSPACE_BASE", True)
    half, norm = cache.objects
    assert half.problem is not None
    assert (norm.path, norm.built_for) == ("0.6.12/90a/cached_ops/norm/norm.so", "/srv/old")
    assert "libc.so.6" in norm.needed


def test_a_cache_that_is_named_is_told_before_it_is_there(tmp_path: pathlib.Path) -> None:
    host = _read(make_environment(tmp_path / "env"), TRITON_CACHE_DIR=str(tmp_path / "no/cache")).host
    assert host is not None
    (cache,) = host.caches
    assert (cache.name, cache.exists, cache.usable) == ("triton", False, True)


def test_default_caches_lie_below_the_services_home(tmp_path: pathlib.Path) -> None:
    put(tmp_path / ".triton/cache/x/launcher.so", b"")
    host = _read(make_environment(tmp_path / "env")).host
    assert host is not None
    assert [(cache.name, cache.variable) for cache in host.caches] == [("triton", None)]


def test_whose_caches() -> None:
    assert jitcaches.account("root", {}).home == "/root"
    assert jitcaches.account(None, {"HOME": "/srv/home"}).home == "/srv/home"
    assert jitcaches.account("nobody-of-that-name", {}).name == "nobody-of-that-name"


def test_folders_that_the_loader_is_told_of(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "lib/libcublas.so.13", b"")
    put(tmp_path / "lib/readme.txt", b"")
    first = library_folders(f"{tmp_path}/lib:relative:")[0]
    assert first == {
        "path": f"{tmp_path}/lib",
        "told_by": "LD_LIBRARY_PATH",
        "libraries": ["libcublas.so.13"],
    }


def test_device_numbers_of_the_running_kernel(tmp_path: pathlib.Path) -> None:
    devices = put(tmp_path / "devices", "Character devices:\n  1 mem\n195 nvidia\n238 nvidia-uvm\n")
    assert driverfiles.majors(str(devices)) == {"nvidia": 195, "nvidia-uvm": 238}
    assert driverfiles.majors(str(tmp_path / "none")) is None


def test_modules_on_the_disk(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / os.uname().release / "updates"
    content = b"\0license=Dual MIT/GPL\0version=590.44.01\0"
    put(folder / "nvidia.ko", content)
    put(folder / "dkms/nvidia.ko.xz", lzma.compress(content))
    put(folder / "dkms/nvidia.ko.zst", b"\x28\xb5\x2f\xfd")
    told: list[dict[str, Any]] = driverfiles.modules(f"{tmp_path}/{{}}/**/nvidia.ko*")
    assert [(one["version"], one["open"]) for one in told] == [
        ("590.44.01", True),
        (None, None),
        ("590.44.01", True),
    ]


def test_nothing_of_the_host_is_read_for_another_one(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "env")
    answer = surroundings(
        SilentWire(), venv=str(venv), environment={"CUDA_HOME": str(_toolkit(tmp_path / "c"))}, host=False
    )
    assert Surroundings.from_dict(answer).host is None
    assert answer["toolkits"] == []
