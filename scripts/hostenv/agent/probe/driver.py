"""The NVIDIA driver as the kernel's own files show it, device nodes and PCI devices included.

Read before nvidia-smi is started, which as root loads modules and makes device nodes.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any, Dict, List

from hostenv.agent.probe.fact import Json, UnknownError, fact

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers, without the programming interface."""


def read(tree: Tree) -> Json:
    """Return what the kernel says."""
    return {
        "kernel_module": fact("/proc/driver/nvidia/version", _kernel_module, tree),
        "kernel_gpus": fact("/proc/driver/nvidia/gpus/*/information", _kernel_gpus, tree),
        "pci": fact("/sys/bus/pci/devices", _pci, tree),
        "device_nodes": fact("stat(2) of /dev/nvidia*", _device_nodes, tree),
    }


def _kernel_module(tree: Tree) -> Dict[str, Any]:
    """Return the version of the loaded module, and whether it is the open one (``None``: not told).

    >>> # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  ()
    """
    try:
        line = tree.text("/proc/driver/nvidia/version", 4096).splitlines()[0]
    except (FileNotFoundError, IndexError):
        pass
    else:
        match = _VERSION.search(line)
        if not match:
            raise UnknownError(f"names no version: {line[:120]!r}")
        return {"version": match.group(1), "open": "Open Kernel Module" in line}
    how = "/sys/module/nvidia/version"
    if tree.exists(how):
        return {"version": tree.text(how, 256), "open": None}
    raise UnknownError("no NVIDIA kernel module is loaded, or the container hides it", f"/proc and {how}")


def _kernel_gpus(tree: Tree) -> List[Dict[str, Any]]:
    folder = "/proc/driver/nvidia/gpus"
    found = []
    for address in tree.names(folder):
        text = tree.text(f"{folder}/{address}/information", 1 << 16)
        values = dict(re.findall(r"^([\w ]+):[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
        minor = values.get("Device Minor", "")
        found.append(
            {
                "pci": address,
                "name": values.get("Model"),
                "uuid": _uuid(values.get("GPU UUID")),
                "minor": int(minor) if minor.isdigit() else None,
            }
        )
    if not found:
        hidden = tree.is_folder("/proc/driver/nvidia")
        raise UnknownError("hidden in this container" if hidden else "no driver's folder is there", folder)
    return found


def _uuid(value: Any) -> Any:
    # A GPU that has not been opened since boot shows question marks.
    return value if value and value.startswith("GPU-") and "?" not in value else None


def _pci(tree: Tree) -> List[Dict[str, Any]]:
    folder = "/sys/bus/pci/devices"
    if not tree.is_folder(folder):
        raise UnknownError("no PCI bus is shown")
    found = []
    for address in tree.names(folder):
        try:
            vendor = tree.text(f"{folder}/{address}/vendor", 64)
            kind = tree.text(f"{folder}/{address}/class", 64)
            device = tree.text(f"{folder}/{address}/device", 64)
        except OSError:
            continue  # a device that went away
        if vendor != _NVIDIA or kind[:6] not in _DISPLAY:
            continue
        try:
            driver = os.path.basename(tree.link(f"{folder}/{address}/driver"))
        except OSError:
            driver = None
        found.append({"address": address, "device": device, "driver": driver})
    return found


def _device_nodes(tree: Tree) -> List[Dict[str, Any]]:
    """Return the nodes of NVIDIA's driver; MIG's capabilities lie in a folder of their own."""
    paths = [f"/dev/{name}" for name in tree.names("/dev") if name.startswith("nvidia")]
    paths += [f"/dev/nvidia-caps/{name}" for name in tree.names("/dev/nvidia-caps")]
    found = []
    for path in paths:
        try:
            state = os.stat(tree.path(path))
        except OSError:
            continue
        if stat.S_ISCHR(state.st_mode):
            real = tree.path(path)
            found.append(
                {
                    "path": path,
                    "major": os.major(state.st_rdev),
                    "minor": os.minor(state.st_rdev),
                    "mode": stat.S_IMODE(state.st_mode),
                    "usable": os.access(real, os.R_OK | os.W_OK),
                }
            )
    return found
