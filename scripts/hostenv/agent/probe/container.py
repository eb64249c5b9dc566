"""Which container a process is in, from what the kernel and container runtimes leave to be seen."""

from __future__ import annotations

import os
import re
from typing import Dict, Optional, Tuple

from hostenv.agent.probe.fact import Json, UnknownError
from hostenv.agent.probe.tree import Tree

NAMESPACES = ("mnt", "pid", "net", "uts", "user", "ipc", "cgroup", "time")

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first PID namespace: PROC_PID_INIT_INO of linux/include/linux/proc_ns.h."""

_HEX = r"([0-9a-f]{64})"
# How runtimes name a container's control group; the inner folders of LXC (/lxc/200/ns) come after the id.
_CGROUPS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("lxc", r"/lxc(?:\.payload)?[./]([^/]+)"),
        ("docker", rf"/docker[-/]{_HEX}"),
        ("podman", rf"/libpod-{_HEX}"),
        ("kubernetes", rf"/(?:cri-containerd|crio|docker)[-:]{_HEX}|kubepods\S*/{_HEX}"),
        ("systemd-nspawn", r"/systemd-nspawn@([^/]+)\.service|/machine-([^/]+)\.scope"),
    )
)
# What runtimes bind over files of the container shows its id in mountinfo, where cgroups are private.
_MOUNTS = (
    ("docker", re.compile(rf"/containers/{_HEX}/(?:hostname|hosts|resolv\.conf)")),
    ("podman", re.compile(rf"/overlay-containers/{_HEX}/userdata/")),
)
_KINDS = frozenset({"lxc", "docker", "podman", "systemd-nspawn", "kubernetes"})


def namespaces(process: str = "self", tree: Optional[Tree] = None) -> Dict[str, int]:
    """Return the inode of each namespace of a process; the kernel never gives one number to two that live."""
    found = {}
    for name in NAMESPACES:
        try:
            target = (tree or Tree()).link(f"/proc/{process}/ns/{name}")
        except FileNotFoundError:
            continue
        found[name] = int(target.partition("[")[2].rstrip("]"))
    return found


def of_cgroup(text: str) -> Optional[Json]:
    """Return kind and id of the container that ``/proc/PID/cgroup`` names, ``None`` where it names none."""
    for line in text.splitlines():
        path = line.rpartition(":")[2]
        for kind, pattern in _CGROUPS:
            match = pattern.search(path)
            if match:
                identifier = next(group for group in match.groups() if group)
                return {"kind": kind, "id": identifier.replace("\\x2d", "-")}
    return None


def own(tree: Tree) -> Json:
    """Return kind and id of the container that the agent runs in, and what shows it.

    The kernel decides: a process in the first PID namespace that shares process 1's mount namespace is in no
    container, whatever files an image has left behind (``/.dockerenv`` in a machine made from an image).
    """
    spaces = namespaces("self", tree)
    left, evidence = _marks(tree)
    if spaces.get("pid") == INITIAL_PID_NAMESPACE and not _differs_from_first(tree, spaces):
        seen = f"; {evidence} is a leftover" if left else ""
        return {"kind": "none", "id": None, "evidence": f"in the first PID namespace{seen}"}
    if left:
        return dict(left, evidence=evidence)
    if "pid" not in spaces:
        raise UnknownError("/proc/self/ns/pid is not there, and no runtime left a mark")
    if spaces["pid"] == INITIAL_PID_NAMESPACE:
        return {"kind": "other", "id": None, "evidence": "a mount namespace of its own, no runtime's mark"}
    return {"kind": "other", "id": None, "evidence": "not in the first PID namespace, no runtime's mark"}


def _differs_from_first(tree: Tree, spaces: Dict[str, int]) -> bool:
    try:
        return namespaces("1", tree).get("mnt") != spaces.get("mnt")
    except OSError:
        return False  # another user's: a container that shares the host's PID namespace is run by root


def _marks(tree: Tree) -> Tuple[Optional[Json], str]:
    """Return what runtimes left to be seen, those that tell the container's id first."""
    mounts = _text(tree, "/proc/self/mountinfo")
    for kind, pattern in _MOUNTS:
        match = pattern.search(mounts)
        if match:
            return {"kind": kind, "id": match.group(1)}, "/proc/self/mountinfo"
    for process in ("self", "1"):
        found = of_cgroup(_text(tree, f"/proc/{process}/cgroup"))
        if found:
            return found, f"/proc/{process}/cgroup"
    return _kind_alone(tree, mounts)


def _kind_alone(tree: Tree, mounts: str) -> Tuple[Optional[Json], str]:
    named = _text(tree, "/run/systemd/container").split("\n")[0]
    variable = re.search(r"(?:^|\0)container=([\w-]+)", _text(tree, "/proc/1/environ"))
    marks = (
        (named if named in _KINDS else None, "/run/systemd/container"),
        (variable.group(1) if variable else None, "container= of process 1"),
        ("podman" if tree.exists("/run/.containerenv") else None, "/run/.containerenv"),
        ("docker" if tree.exists("/.dockerenv") else None, "/.dockerenv"),
        ("lxc" if " fuse.lxcfs " in mounts else None, "lxcfs in /proc/self/mountinfo"),
    )
    found = [(kind, mark) for kind, mark in marks if kind in _KINDS]
    return ({"kind": found[0][0], "id": None}, found[0][1]) if found else (None, "")


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path)
    except OSError:
        return ""


def same_file(first: str, second: str) -> bool:
    """Whether two paths are one file: device and inode, links followed."""
    left, right = os.stat(first), os.stat(second)
    return (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)
