"""What uv is given; compiling bytecode: faults of sources are none, faults of the compilation are."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import uv

from hostenv.agent.venv import compile_bytecode, render
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    import pathlib

_WORKER_DIES = (
    "import os, concurrent.futures as f\n"
    "with f.ProcessPoolExecutor(1) as pool: pool.submit(os._exit, 9).result()"
)


def venv_with(folder: pathlib.Path, script: str) -> pathlib.Path:
    """Return a venv whose interpreter is a shell script."""
    (folder / "lib/python3.11/site-packages").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin/python").chmod(0o755)
    return folder


def test_a_build_of_overlays_alone_is_a_lock_that_uv_takes(tmp_path: pathlib.Path) -> None:
    """Where every distribution of a lock is overlaid: uv wants ``packages`` (PEP 751), be it empty."""
    (tmp_path / "pylock.toml").write_text(render([]))
    command = (uv.find_uv_bin(), "pip", "sync", "--offline", "--no-config", "--no-cache", "--dry-run")
    ran = subprocess.run(
        [*command, "--python", sys.executable, "--target", tmp_path / "t", tmp_path / "pylock.toml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", "signal 9"),
        ("exit 137", "exit 137"),
        (f"exec {sys.executable} -c '{_WORKER_DIES}'", "BrokenProcessPool"),
    ],
)
def test_a_compilation_that_was_killed_is_an_error(tmp_path: pathlib.Path, script: str, said: str) -> None:
    with pytest.raises(AgentError, match="compiling bytecode ended early") as caught:
        compile_bytecode(str(venv_with(tmp_path, script)), "/srv/final", ())
    assert said in caught.value.message


def test_a_source_that_does_not_compile_is_no_fault(tmp_path: pathlib.Path) -> None:
    path = venv_with(tmp_path, f'exec {sys.executable} "$@"')
    site = path / "lib/python3.11/site-packages"
    (site / "good.py").write_text("ONE = 1\n")
    (site / "template.py").write_text("class {{ name }}:\n")
    (site / "binary.py").write_bytes(b"\0\xff")
    compile_bytecode(str(path), "/srv/final", ())
    assert [found.name.partition(".")[0] for found in site.rglob("*.pyc")] == ["good"]
