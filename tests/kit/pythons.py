"""The interpreters that are on this machine, for tests of the far side."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

FAR_SIDES = ("3.8", "3.9", "3.11", "3.12", "3.13")


def find_python(version: str) -> str | None:
    """Return a real interpreter of a minor version: pyenv's, uv's, or on PATH; ``None`` without one."""
    roots = [
        pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions",
        pathlib.Path("~/.local/share/uv/python").expanduser(),
    ]
    found = [path for root in roots for path in root.glob(f"*{version}.*/bin/python{version}")]
    on_path = shutil.which(f"python{version}")
    for candidate in (*map(str, found), *([on_path] if on_path else [])):
        answer = subprocess.run([candidate, "-c", "import sys"], check=False, capture_output=True)
        if answer.returncode == 0:  # a shim of pyenv fails where the version is not there
            return candidate
    return None
