"""Kernel, distribution, processor, memory."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any, Dict

from hostenv.agent.probe.fact import Json, UnknownError, fact

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_NAMES_OF_MODEL = ("model name", "Model", "cpu model", "CPU part")


def read(tree: Tree) -> Json:
    """Return the facts about the system; sizes are bytes."""
    return {
        "kernel": fact("uname(2)", lambda: os.uname().release),
        "architecture": fact("uname(2)", lambda: os.uname().machine),
        "distribution": fact("/etc/os-release", _distribution, tree),
        "glibc": fact("confstr(CS_GNU_LIBC_VERSION) of the agent's python3", _glibc),
        "cpu": fact("/proc/cpuinfo", _cpu, tree),
        "memory": fact("/proc/meminfo", _memory, tree),
    }


def _distribution(tree: Tree) -> Dict[str, Any]:
    path = "/etc/os-release" if tree.exists("/etc/os-release") else "/usr/lib/os-release"
    values: Dict[str, str] = {}
    for line in tree.text(path, 1 << 16).splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            values[name.strip()] = "".join(shlex.split(value))
    if "ID" not in values:
        raise UnknownError("has no ID", path)
    return {
        "id": values["ID"],
        "version": values.get("VERSION_ID"),
        "name": values.get("PRETTY_NAME", values["ID"]),
    }


def _glibc() -> str:
    try:
        told = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:
        told = ""
    name, _, version = told.partition(" ")
    if name != "glibc" or not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise UnknownError("the agent's python3 does not run on glibc")
    return version


def _cpu(tree: Tree) -> Dict[str, Any]:
    """Return model, number of processors and flags (arm's are called Features); the first processor's."""
    text = tree.text("/proc/cpuinfo")
    first: Dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        first[name.strip()] = value.strip()
    flags = first.get("flags") or first.get("Features") or ""
    return {
        "model": next((first[name] for name in _NAMES_OF_MODEL if first.get(name)), None),
        "count": len(re.findall(r"^processor\s*:", text, re.MULTILINE)) or None,
        "flags": sorted(set(flags.split())),
    }


def _memory(tree: Tree) -> Dict[str, Any]:
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", tree.text("/proc/meminfo"), re.MULTILINE))
    if "MemTotal" not in sizes:
        raise UnknownError("has no MemTotal")
    available = sizes.get("MemAvailable")
    return {
        "total": int(sizes["MemTotal"]) << 10,
        "available": None if available is None else int(available) << 10,
    }
