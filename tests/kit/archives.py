"""Archives of interpreters, packed from one that is on this machine."""

from __future__ import annotations

import pathlib
import subprocess
import tarfile

import pytest

from kit.pythons import find_python
from kit.remotes import PYTHON


def another_python() -> tuple[str, str]:
    """Return a minor version that a host here does not find by itself, and an interpreter of it."""
    for minor in ("3.12", "3.13", "3.10", "3.9"):
        found = find_python(minor)
        if found and minor != PYTHON and not pathlib.Path(f"/usr/bin/python{minor}").exists():
            return minor, found
    pytest.skip("no second CPython is here: pyenv or uv can install one")


def version_of(python: str) -> str:
    program = "import platform; print(platform.python_version())"
    told = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def pack_python(python: str, minor: str, archive: pathlib.Path) -> None:
    """Pack an interpreter in python-build-standalone's layout, without what no build needs."""
    prefix = pathlib.Path(python).resolve().parents[1]
    left_out = ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "__pycache__")

    def trimmed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = member.name.rpartition("/")[2]
        return None if name in left_out or name.startswith("config-") or name.endswith(".a") else member

    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for path in (f"bin/python{minor}", f"lib/python{minor}"):
            packed.add(prefix / path, f"python/{path}", filter=trimmed)
