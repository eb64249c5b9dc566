"""The interpreters that are on this machine, for tests of the far side."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

SYSTEM = ("/usr/bin", "/usr/local/bin")
FAR_SIDES = ("3.8", "3.9", "3.11", "3.12", "3.13")


def patch_levels(version: str) -> dict[str, str]:
    """Return the real interpreters of a minor version that are here: version → path, the oldest first."""
    roots = [
        pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions",
        pathlib.Path("~/.local/share/uv/python").expanduser(),
    ]
    folders = [path for root in roots for path in sorted(root.glob(f"*{version}.*/bin"))]
    folders += [pathlib.Path(os.path.realpath(sys.executable)).parent, *map(pathlib.Path, SYSTEM)]
    found: dict[str, str] = {}
    for path in (folder / f"python{version}" for folder in folders):
        asked = "import sys, venv; print(sys.version.split()[0])"
        if path.exists() and not path.is_symlink():
            answer = subprocess.run([path, "-I", "-c", asked], check=False, capture_output=True, text=True)
            if answer.returncode == 0:
                found.setdefault(answer.stdout.strip(), str(path))
    return dict(sorted(found.items(), key=lambda each: [int(part) for part in each[0].split(".")]))


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
