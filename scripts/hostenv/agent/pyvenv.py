"""What a venv says of its interpreter, without running it."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List, Optional

from hostenv.agent import regular

_LARGEST = 1_000_000
_FOLDER = re.compile(r"(python|pypy)(\d+)\.(\d+)([a-z]*)\Z")


def describe(root: str) -> Dict[str, Any]:
    """Return implementation, version and ABI of the venv at ``root``, and the system below it.

    The version is what ``pyvenv.cfg`` was given when the venv was made (a patch level may be older than the
    interpreter of today); X.Y and the ABI come from the folder that holds ``site-packages``. What is not
    told is ``None``.
    """
    settings = read(root)
    folder = _library_folder(root)
    found = _FOLDER.match(folder or "")
    system = os.uname()
    stated = settings.get("version_info") or settings.get("version") or ""
    release = re.match(r"\d+\.\d+\.\d+", stated)
    return {
        "implementation": _implementation(settings, found.group(1) if found else "python"),
        "version": release.group() if release else None,
        "python": f"{found.group(2)}.{found.group(3)}" if found else None,
        "abi": _abi(found.group(1), found.group(2) + found.group(3), found.group(4)) if found else None,
        "present": os.path.exists(os.path.join(root, "bin", "python")),
        "system_site": settings.get("include-system-site-packages", "false").lower() == "true",
        "machine": system.machine,
        "system": system.sysname,
        "system_release": system.release,
        "system_version": system.version,
        "libc": _libc(),
    }


def read(root: str) -> Dict[str, str]:
    """Return the keys of ``pyvenv.cfg``, in lower case; none where there is no such regular file."""
    try:
        content = regular.read(os.path.join(root, "pyvenv.cfg"), _LARGEST)
    except OSError:
        return {}
    pairs = [line.partition("=") for line in content.decode("utf-8", "replace").splitlines()]
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals}


def site_packages(root: str) -> List[str]:
    """Return the ``site-packages`` folders of a venv, relative to it; one in a sound venv."""
    found = glob.glob(os.path.join(glob.escape(root), "lib", "*", "site-packages"))
    return sorted(os.path.relpath(path, root) for path in found if not os.path.islink(path))


def absence(root: str) -> Optional[str]:
    """Return why no venv can be at ``root``, to follow its name; ``None`` where a folder is there."""
    if os.path.isdir(root):
        return None
    return "is a file, not a folder" if os.path.lexists(root) else "is not there"


def _library_folder(root: str) -> Optional[str]:
    found = site_packages(root)
    return found[0].split(os.sep)[1] if len(found) == 1 else None


def _implementation(settings: Dict[str, str], folder: str) -> str:
    return settings.get("implementation", "PyPy" if folder == "pypy" else "CPython").lower()


def _abi(name: str, digits: str, flags: str) -> Optional[str]:
    return f"cp{digits}{flags}" if name == "python" else None


def _libc() -> Optional[str]:
    """Return ``glibc 2.36``, or ``None`` on a system without glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None
