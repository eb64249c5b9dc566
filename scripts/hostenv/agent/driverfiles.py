"""What the kernel has for the driver beside the loaded module: device numbers, and modules on the disk."""

from __future__ import annotations

import glob
import lzma
import os
import re
from typing import Any, Dict, List, Optional

_DEVICES = "/proc/devices"
_MODULES = "/lib/modules/{}/**/nvidia.ko*"
_LARGEST = 1 << 28
_VERSION = re.compile(rb"\0version=(\d{3}\.[0-9.]+)\0")
_LICENCE = re.compile(rb"\0license=([^\0]{1,40})\0")


def majors(path: str = _DEVICES) -> Optional[Dict[str, int]]:
    """Return the major numbers of NVIDIA's devices as the running kernel has them; ``None``: not told."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = re.findall(r"^\s*(\d+) (nvidia\S*)$", file.read(), re.MULTILINE)
    except OSError:
        return None
    return {name: int(number) for number, name in lines}


def modules(pattern: str = _MODULES) -> List[Dict[str, Any]]:
    """Return the driver's modules on the disk for the running kernel: what the next boot would load.

    What is compressed with something that Python does not read has no version.
    """
    return [_module(path) for path in sorted(glob.glob(pattern.format(os.uname().release), recursive=True))]


def _module(path: str) -> Dict[str, Any]:
    data = _content(path)
    version, licence = _VERSION.search(data), _LICENCE.search(data)
    return {
        "path": path,
        "version": version.group(1).decode() if version else None,
        "open": b"MIT" in licence.group(1) if licence else None,
    }


def _content(path: str) -> bytes:
    try:
        if path.endswith(".xz"):
            with lzma.open(path) as compressed:
                return compressed.read(_LARGEST)
        with open(path, "rb") as file:
            return file.read(_LARGEST)
    except (OSError, lzma.LZMAError, EOFError):
        return b""
