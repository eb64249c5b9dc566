"""Which machine this is: what stays when it boots, and what tells one boot and one namespace from others."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import pwd
import re
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from hostenv.agent.probe import container, disks
from hostenv.agent.probe.fact import Json, UnknownError, fact

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read(tree: Tree) -> Json:
    """Return the facts of identity. GPU UUIDs stand with the GPUs; the SSH key shown by the wire is SSH's."""
    return {
        "machine_id": fact("/etc/machine-id", _machine_id, tree),
        "boot_id": fact(_BOOT_ID, _boot_id, tree),
        "boot_id_own": fact("/proc/self/mountinfo", _boot_id_own, tree),
        "boot_clock": fact("clock_gettime(CLOCK_REALTIME) - CLOCK_BOOTTIME", _boot_clock),
        "hostname": fact("uname(2)", lambda: os.uname().nodename),
        "host_keys": fact("/etc/ssh/ssh_host_*_key.pub", _host_keys, tree),
        "namespaces": fact("/proc/self/ns", container.namespaces, "self", tree),
        "container": fact("kernel namespaces and runtimes' marks", container.own, tree),
        "user": fact("geteuid(2)", _user),
    }


def _machine_id(tree: Tree) -> str:
    text = tree.text("/etc/machine-id", 256)
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise UnknownError(f"is no machine id: {text[:40]!r}" if text else "the file is empty")
    return text


def _boot_id(tree: Tree) -> str:
    text = tree.text(_BOOT_ID, 256)
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        raise UnknownError(f"is no boot id: {text[:40]!r}")
    return text


def _boot_id_own(tree: Tree) -> bool:
    """Whether something is mounted over the kernel's boot id: LXC gives each container its own."""
    return any(mount.point == _BOOT_ID for mount in disks.mounts(tree))


def _boot_clock() -> float:
    """Return when this kernel started, in seconds since 1970: equal within milliseconds in all containers."""
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), 3)


def _host_keys(tree: Tree) -> List[str]:
    """Return the fingerprints of the keys that sshd usually shows, as ``ssh-keygen -l`` prints them."""
    found: List[str] = []
    for name in tree.names("/etc/ssh"):
        if not re.fullmatch(r"ssh_host_\w+_key\.pub", name):
            continue
        fields = tree.text(f"/etc/ssh/{name}", 1 << 16).split()
        if len(fields) < 2:  # noqa: PLR2004  kind, key, comment
            continue
        try:
            digest = hashlib.sha256(base64.b64decode(fields[1], validate=True)).digest()
        except binascii.Error:
            continue
        found.append("SHA256:" + base64.b64encode(digest).decode().rstrip("="))
    if not found:
        raise UnknownError("no public host key is there")
    return found


def _user() -> Dict[str, Any]:
    number = os.geteuid()
    name: Optional[str]
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = None
    return {"uid": number, "name": name}
