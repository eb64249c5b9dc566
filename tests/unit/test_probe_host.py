"""The whole probe over the agent: by every interpreter, against other tools, changing nothing."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent.probe import disks, driver, libraries, system
from hostenv.agent.probe.tree import Tree
from hostenv.facts.host import HostFacts
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from kit.pythons import FAR_SIDES, find_python
from kit.schema import violations

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs" / "schema" / "facts.schema.json").read_text(encoding="utf-8")
)


def probe(python: str = sys.executable, **questions: Any) -> Any:
    with agent_on(LocalTransport("here"), python=python) as agent:
        return agent.call("probe.host", **questions)


@pytest.mark.parametrize("version", FAR_SIDES)
def test_every_interpreter_of_a_host_can_probe(version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    answer = probe(python, root="/opt/hostenv", exports=True)
    assert violations(answer, SCHEMA) == []
    facts = HostFacts.from_dict(answer, name="here")
    assert facts.identity.hostname.value == platform.node()
    assert facts.system.kernel.value == platform.release()


def listing(*folders: pathlib.Path) -> Mapping[str, tuple[int, ...]]:
    """Return everything below the folders that a write would change; access times aside."""
    found = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            state = path.lstat()
            found[str(path)] = (
                state.st_ino,
                state.st_mode,
                state.st_size,
                state.st_mtime_ns,
                state.st_ctime_ns,
            )
    return found


def test_a_probe_changes_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    venv = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (home / ".bashrc").write_text("touch ~/started\n")
    (home / ".local" / "bin").mkdir(parents=True)
    (home / "sitecustomize.py").write_text("open('imported', 'w')\n")
    for name in ("python3", "uv"):
        (home / ".local" / "bin" / name).symlink_to(venv / "bin" / "python")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    watched, devices = (tmp_path, pathlib.Path(sys.prefix, "bin")), pathlib.Path("/dev")
    before, nodes = listing(*watched), set(devices.iterdir())
    probe(root=str(home / "hostenv"), venvs=[str(venv)], models=[str(home)], exports=True)
    assert listing(*watched) == before
    assert set(devices.iterdir()) == nodes


def test_secrets_of_the_environment_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_neverneverland")
    monkeypatch.setenv("MY_OPAQUE", "neverneverland")
    assert "neverland" not in json.dumps(probe())


def test_the_services_path_decides_what_jit_finds(tmp_path: pathlib.Path) -> None:
    ninja = tmp_path / "bin" / "ninja"
    ninja.parent.mkdir()
    ninja.write_text("#!/bin/sh\necho 1.13.0.git\n")
    ninja.chmod(0o755)
    environment = {"PATH": f"relative::{tmp_path}/bin", "CUDA_HOME": f":{tmp_path}"}
    tools = probe(environment=environment, commands=["ptxas", "ninja"])["toolchain"]
    assert tools["commands"]["ninja"]["value"] == {"path": str(ninja), "version": "1.13.0"}
    assert tools["commands"]["gcc"]["value"] is None
    assert tools["commands"]["ptxas"]["value"] is None
    # catalogue K37, malformed CUDA_HOME (vllm-project/vllm#36077)
    assert tools["cuda_home"]["value"]["problem"] == "is not one absolute folder"


def test_the_answer_is_quick_and_small() -> None:
    answer = probe()
    assert len(json.dumps(answer)) < 200_000


def test_disks_are_those_of_statvfs_and_findmnt() -> None:
    [told] = disks.read(Tree(), ["/dev/shm/not/there"])  # noqa: S108  asked about, not used
    volume = os.statvfs("/dev/shm")  # noqa: S108
    assert told["value"]["total"] == volume.f_blocks * volume.f_frsize
    assert told["value"]["exists"] is False
    if shutil.which("findmnt"):
        oracle = subprocess.run(
            ["findmnt", "-n", "-o", "FSTYPE", "--target", "/dev/shm"],  # noqa: S108
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert told["value"]["filesystem"] == oracle.stdout.split()[-1]


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare for a mount"
)
def test_noexec_is_seen(tmp_path: pathlib.Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(pathlib.Path(disks.__file__).parents[3])!r})\n"
        "import json; from hostenv.agent.probe import disks; from hostenv.agent.probe.tree import Tree\n"
        f"print(json.dumps(disks.read(Tree(), [{str(tmp_path / 'a b' / 'c')!r}])))\n"
    )
    (tmp_path / "a b").mkdir()
    shell = f"mount -t tmpfs -o noexec,ro none '{tmp_path}/a b' && exec {sys.executable} -c \"$0\""
    answer = subprocess.run(["unshare", "-m", "sh", "-c", shell, code], check=True, capture_output=True)
    value = json.loads(answer.stdout)[0]["value"]
    assert (value["noexec"], value["read_only"], value["filesystem"]) == (True, True, "tmpfs")
    assert value["mount"] == str(tmp_path / "a b")


@pytest.mark.skipif(not shutil.which("nm"), reason="nm is the oracle")
def test_exports_are_those_that_nm_lists() -> None:
    found = libraries.Libraries(Tree(), "", platform.machine(), [])
    for name in ("libc.so.6", "libm.so.6"):
        value = found.read([name], exports=True)[0]["value"]
        oracle = subprocess.run(
            ["nm", "-D", "--defined-only", value["real"]], check=True, capture_output=True, text=True
        )
        listed = {
            line.split()[-1] for line in oracle.stdout.splitlines() if line.split()[-2] not in {"A", "a"}
        }
        assert set(value["exports"]) >= listed
        assert {each for each in value["exports"] if "@" not in each} <= {
            line.split()[-1].partition("@")[0] for line in oracle.stdout.splitlines()
        }


@pytest.mark.skipif(not shutil.which("ldconfig"), reason="ldconfig is the oracle")
def test_the_cache_is_the_one_that_ldconfig_prints() -> None:
    oracle = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True, env={"PATH": "/sbin:/usr/sbin:/usr/bin"})  # fmt: skip # noqa: E501
    found = libraries.Libraries(Tree(), "", platform.machine(), [])
    native = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64"}[platform.machine()]
    listed = {line.split()[0] for line in oracle.stdout.splitlines() if f"({native})" in line}
    assert set(found.cache) == listed


def test_a_library_that_ld_library_path_puts_first(tmp_path: pathlib.Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    found = libraries.Libraries(Tree(), f"relative:{tmp_path}", platform.machine(), [])
    assert found.find("libcuda.so.1") == (f"{tmp_path}/libcuda.so.1", "LD_LIBRARY_PATH")
    assert "unknown" in found.read(["libcuda.so.1"], exports=False)[0]


def test_without_a_cache_the_default_folders_are_searched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libx.so.1").write_text("")
    found = libraries.Libraries(Tree(str(tmp_path)), "", platform.machine(), [])
    assert found.find("libx.so.1") == ("/lib64/libx.so.1", "default folders")
    assert "No such file" in found.read(["liby.so.1"], exports=False)[0]["unknown"]


@pytest.mark.parametrize(
    ("flags", "folders"),
    [
        ("", []),
        ("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3", ["x86-64-v2"]),
        ("abm avx avx2 bmi1 bmi2 f16c fma movbe xsave", []),  # v3 without v2: the loader stops
    ],
)
def test_processor_folders(flags: str, folders: list[str]) -> None:
    assert libraries.hwcaps(flags.split()) == folders


def test_the_kernels_files_of_a_real_gpu_host(tmp_path: pathlib.Path) -> None:
    gpu = tmp_path / "proc" / "driver" / "nvidia" / "gpus" / "0000:00:06.0"
    gpu.mkdir(parents=True)
    (gpu.parents[1] / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  ()  \n"
        "GCC version:  gcc version 15.3.0 (GCC) \n"
    )
    (gpu / "information").write_text(
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t GPU-5d3f6a52-7c1e-4b0a-9e55-0c1a2b3c4d5e\n"
        "Bus Location: \t 0000:00:06.0\nDevice Minor: \t 0\nGPU Excluded:\t No\n"
    )
    told = driver.read(Tree(str(tmp_path)))
    assert told["kernel_module"]["value"] == {"version": "580.159.04", "open": True}
    assert told["kernel_gpus"]["value"] == [
        {
            "pci": "0000:00:06.0",
            "name": "NVIDIA H200",
            "uuid": "GPU-5d3f6a52-7c1e-4b0a-9e55-0c1a2b3c4d5e",
            "minor": 0,
        }
    ]


def test_a_masked_driver_folder_leaves_the_pci_bus(tmp_path: pathlib.Path) -> None:
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)  # what container tools mount there
    device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:41:00.0"
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("device", "0x2bb1"), ("class", "0x030200")):
        (device / name).write_text(f"{text}\n")
    module = tmp_path / "sys" / "module" / "nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text("580.95.05\n")
    told = driver.read(Tree(str(tmp_path)))
    assert told["kernel_module"]["value"] == {"version": "580.95.05", "open": None}
    assert told["kernel_gpus"]["unknown"] == "hidden in this container"
    assert told["pci"]["value"] == [{"address": "0000:41:00.0", "device": "0x2bb1", "driver": None}]


def test_an_arm_hosts_processor(tmp_path: pathlib.Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(
        "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n\nprocessor\t: 1\n"
    )
    cpu = system.read(Tree(str(tmp_path)))["cpu"]["value"]
    assert cpu == {"model": "0xd4f", "count": 2, "flags": ["asimd", "fp", "sve"]}


def test_files_of_a_host_that_make_no_sense_are_unknown(tmp_path: pathlib.Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text("NAME='unclosed\n")
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "proc" / "driver" / "nvidia" / "version").write_text("nonsense\n")
    (tmp_path / "proc" / "meminfo").write_text("nonsense\n")
    told = system.read(Tree(str(tmp_path)))
    assert "unknown" in told["distribution"]
    assert "unknown" in told["memory"]
    assert "unknown" in driver.read(Tree(str(tmp_path)))["kernel_module"]
