"""The rules on driver, kernel module and device nodes: each with its fault and a sound twin."""

from __future__ import annotations

from typing import Any

import pytest

from hostenv.checks.driver_tables import driver_tables
from kit.hostfacts import recorded
from kit.surroundings import LibraryFolder, ModuleFile, around, judged, told

_NODES = recorded()["driver"]["device_nodes"]["value"]


def _libcuda(**changes: Any) -> dict[str, Any]:
    libraries = recorded()["libraries"]["read"]
    for fact in libraries:
        if fact.get("value", {}).get("name") == "libcuda.so.1":
            fact["value"].update(changes)
    return {"libraries.read": libraries}


def _gpu(name: str) -> dict[str, Any]:
    gpus = recorded()["gpus"]["value"]
    gpus[0]["name"] = name
    return {"gpus": gpus}


_COMPAT = {
    "path": "/usr/local/cuda/compat/libcuda.so.1",
    "real": "/usr/local/cuda/compat/libcuda.so.590.44.01",
    "driver_version": "590.44.01",
}


def test_the_recorded_host_is_sound() -> None:
    assert judged() == []


def test_forward_compatibility_on_a_geforce_names_who_put_it_first() -> None:
    folder = LibraryFolder(
        path="/usr/local/cuda/compat", told_by="/etc/ld.so.conf.d/00-cuda-compat.conf", libraries=()
    )
    host = {**_libcuda(**_COMPAT), **_gpu("NVIDIA GeForce RTX 4090")}
    (found,) = judged(around({"folders": (folder,)}), host=host)
    assert told([found]) == [("error", "driver-compat", "K23")]
    assert "804" in found.message
    assert found.fix == "take the line out of /etc/ld.so.conf.d/00-cuda-compat.conf, then ldconfig"


def test_forward_compatibility_on_a_data_centre_gpu_is_a_warning() -> None:
    assert told(judged(host=_libcuda(**_COMPAT))) == [("warning", "driver-compat", "K23")]


def test_forward_compatibility_older_than_the_module_fails() -> None:
    old = {**_COMPAT, "driver_version": "570.86.10"}
    (found,) = judged(host=_libcuda(**old))
    assert found.severity == "error"
    assert "803" in found.message


@pytest.mark.parametrize(
    ("model", "supported"),
    [
        ("NVIDIA H200", True),
        ("NVIDIA A100-SXM4-80GB", True),
        ("Tesla T4", True),
        ("NVIDIA L40S", True),
        ("NVIDIA GeForce RTX 5090", False),
        ("NVIDIA RTX A6000", False),
    ],
)
def test_which_gpus_support_forward_compatibility(model: str, *, supported: bool) -> None:
    assert driver_tables().may_forward(model) is supported


def test_user_space_of_another_driver_than_the_module() -> None:
    version = {"version": "590.44.01", "open": True}
    found = judged(host={"driver.kernel_module": version, "identity.container": None})
    assert told(found) == [("error", "driver-library-mismatch", "K24")]
    assert "580.159.04" in found[0].message
    assert "590.44.01" in found[0].message
    assert len(found[0].also) == 3


def test_in_a_container_the_user_space_follows_the_host() -> None:
    container = {"kind": "lxc", "id": "105", "evidence": ""}
    version = {"version": "590.44.01", "open": True}
    found = judged(host={"driver.kernel_module": version, "identity.container": container})
    assert "install the user-space driver 590.44.01" in str(found[0].fix)


def test_an_unknown_module_is_no_match() -> None:
    found = judged(host={"driver.kernel_module": None})
    assert ("unknown", "driver-library-mismatch", "K24") in told(found)


def test_a_module_on_the_disk_that_the_next_boot_would_load() -> None:
    file = ModuleFile(path="/lib/modules/6.8/updates/dkms/nvidia.ko", version="590.44.01", open=True)
    assert told(judged(around({"modules": (file,)}))) == [("warning", "driver-changes-at-boot", "K24")]
    same = ModuleFile(path=file.path, version="580.159.04", open=True)
    assert judged(around({"modules": (same,)})) == []


def test_a_missing_uvm_node_with_the_lines_for_its_container() -> None:
    nodes = [node for node in _NODES if "uvm" not in node["path"]]
    container = {"kind": "lxc", "id": "105", "evidence": ""}
    (found,) = judged(host={"driver.device_nodes": nodes, "identity.container": container})
    assert told([found]) == [("error", "device-node", "K25")]
    assert "lxc.cgroup2.devices.allow: c 238:* rwm" in str(found.fix)


def test_a_node_with_the_number_of_another_boot() -> None:
    nodes = [{**node, "major": 511} if node["path"] == "/dev/nvidia-uvm" else node for node in _NODES]
    (found,) = judged(host={"driver.device_nodes": nodes})
    assert told([found]) == [("error", "device-node", "K25")]
    assert "511" in found.message


def test_nodes_that_cuda_does_not_open_are_left_alone() -> None:
    """A host of eight GPUs has switches with numbers of their own (/proc/devices of an H200 host)."""
    switch = {"path": "/dev/nvidia-nvswitchctl", "major": 239, "minor": 255, "mode": 0o600, "usable": False}
    assert judged(host={"driver.device_nodes": [*_NODES, switch]}) == []


def test_a_node_that_may_not_be_opened() -> None:
    nodes = [{**node, "usable": False} if node["path"] == "/dev/nvidia0" else node for node in _NODES]
    (found,) = judged(host={"driver.device_nodes": nodes})
    assert found.object == "/dev/nvidia0"


def test_a_host_without_gpus_needs_no_nodes() -> None:
    changes: dict[str, Any] = {
        "driver.device_nodes": [],
        "driver.pci": [],
        "driver.kernel_gpus": [],
        "gpus": [],
        "driver.kernel_module": None,
    }
    assert "device-node" not in [one.rule for one in judged(host=changes)]


def test_gpus_that_a_container_hides() -> None:
    (found,) = judged(host={"gpus": None, "driver.kernel_gpus": None})
    assert told([found]) == [("unknown", "gpu-facts-hidden", "K26")]
    assert "PCI 0000:00:06.0: 10de:2335, driver nvidia" in found.evidence


def test_a_host_that_shows_nothing_at_all_is_unknown() -> None:
    changes = {"gpus": None, "driver.kernel_gpus": None, "driver.pci": None}
    assert ("unknown", "gpu-facts-hidden", "K26") in told(judged(host=changes))
    none: dict[str, Any] = {"gpus": None, "driver.kernel_gpus": None, "driver.pci": []}
    assert "gpu-facts-hidden" not in [one.rule for one in judged(host=none)]


def test_a_stub_in_the_place_of_the_driver() -> None:
    stub = "/usr/local/cuda/lib64/stubs"
    folder = LibraryFolder(path=stub, told_by="LD_LIBRARY_PATH", libraries=("libcuda.so.1",))
    changes = {
        "path": f"{stub}/libcuda.so.1",
        "real": f"{stub}/libcuda.so",
        "driver_version": None,
        "size": 61264,
    }
    (found,) = judged(around({"folders": (folder,)}), host=_libcuda(**changes))
    assert told([found]) == [("error", "libcuda-no-driver", "K27")]
    assert f"{stub} is named by LD_LIBRARY_PATH" in found.evidence


def test_no_libcuda_beside_a_gpu() -> None:
    gone = {"path": None, "real": None, "driver_version": None}
    assert told(judged(host=_libcuda(**gone))) == [("error", "libcuda-no-driver", "K27")]


@pytest.mark.parametrize(("is_open", "expected"), [(False, "error"), (None, "unknown")])
def test_blackwell_needs_the_open_module(*, is_open: bool | None, expected: str) -> None:
    changes = {
        "driver.pci": [{"address": "0000:01:00.0", "device": "0x2bb1", "driver": "nvidia"}],
        "driver.kernel_module": {"version": "580.159.04", "open": is_open},
    }
    assert told(judged(host=changes)) == [(expected, "open-module-needed", "K29")]


def test_blackwell_that_the_right_module_does_not_start() -> None:
    changes = {
        "driver.pci": [{"address": "0000:01:00.0", "device": "0x2b85", "driver": "nvidia"}],
        "gpus": [],
    }
    (found,) = judged(host=changes)
    assert told([found]) == [("error", "open-module-needed", "K29")]
    assert "Above 4G Decoding" in str(found.fix)


def test_blackwell_with_the_open_module_is_sound() -> None:
    assert (
        judged(host={"driver.pci": [{"address": "0000:01:00.0", "device": "0x2bb1", "driver": "nvidia"}]})
        == []
    )
