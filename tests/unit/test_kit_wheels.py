"""The wheel builder makes what uv installs and its RECORD is true."""

from __future__ import annotations

import subprocess
import zipfile
from typing import TYPE_CHECKING

import uv

from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib


def test_uv_installs_it(tmp_path: pathlib.Path) -> None:
    wheel = build_wheel(
        tmp_path,
        "Demo.Pkg",
        "1.0+cu130",
        {"demo/__init__.py": "x = 1\n", "demo_pkg-1.0+cu130.data/scripts/tool": "#!python\n"},
        entry_points="[console_scripts]\ndemo = demo:main\n",
        executable=["demo_pkg-1.0+cu130.data/scripts/tool"],
    )

    command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--offline", "--no-index", "--no-cache"]
    command += ["--target", str(tmp_path / "into"), str(wheel.path)]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)

    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "into/demo/__init__.py").read_text() == "x = 1\n"
    assert (tmp_path / "into/bin/demo").exists()


def test_same_arguments_same_bytes(tmp_path: pathlib.Path) -> None:
    one = build_wheel(tmp_path / "a", "demo", "1", {"demo.py": "x = 1\n"}, requires=["b>1"])
    two = build_wheel(tmp_path / "b", "demo", "1", {"demo.py": "x = 1\n"}, requires=["b>1"])

    assert one.sha256 == two.sha256
    assert one.path.read_bytes() == two.path.read_bytes()


def test_record_can_be_made_wrong(tmp_path: pathlib.Path) -> None:
    wheel = build_wheel(tmp_path, "demo", "1", {"demo.py": "x = 1\n"}, record={"demo.py": "sha256=wrong"})

    with zipfile.ZipFile(wheel.path) as archive:
        assert "demo.py,sha256=wrong,6" in archive.read("demo-1.dist-info/RECORD").decode()
