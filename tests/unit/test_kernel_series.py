"""The shipped series for sglang-kernel: a leftover beside the library must not break the import (K58).

The function before and after lies in the patch's own hunk, so upstream's file is not needed here. With
``HOSTENV_WHEELS`` naming a folder that holds the real wheel (615 MB), the whole patched file is run as well.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostenv.spec.series import load_series
from hostenv.steps.pristine import PristineWheel
from hostenv.steps.series import compute

SERIES = pathlib.Path(__file__).parents[2] / "patches" / "sglang-kernel-0.4.4"
WHEEL = "sglang_kernel-0.4.4-cp310-abi3-manylinux2014_x86_64.whl"
LOADER = "sgl_kernel/load_utils.py"

# A module by the stable ABI, declared by hand: no Python.h needed.
SOURCE = """
struct { long refs; void *type, *init; long index; void *copy; const char *name, *doc; long size;
         void *methods, *slots, *traverse, *clear, *free; } def =
       { .refs = 1, .name = "common_ops", .size = -1 };
extern void *PyModule_Create2(void *, int);
void *PyInit_common_ops(void) { return PyModule_Create2(&def, 3); }
"""


@pytest.fixture(scope="module", name="library")
def _library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if not shutil.which("gcc"):
        pytest.skip("gcc builds the small extension module")
    folder = tmp_path_factory.mktemp("common_ops")
    library = folder / "common_ops.abi3.so"
    argv = ("gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library))
    subprocess.run(argv, input=SOURCE.encode(), check=True)
    shutil.copy(library, f"{library}.bak")
    (folder / "common_ops.py").write_text("raise ImportError\n")
    return library


def filter_of(side: str) -> Any:
    """Return ``_filter_compiled_extensions`` as it is on one side (``old`` or ``new``) of the patch."""
    hunks = load_series(SERIES).patches[0].changes[0].hunks
    (lines,) = [
        getattr(h, side)
        for h in hunks
        if b"def _filter_compiled_extensions(file_list):\n" in getattr(h, side)
    ]
    start = lines.index(b"def _filter_compiled_extensions(file_list):\n")
    end = lines.index(b"def _load_architecture_specific_ops():\n")
    namespace: dict[str, Any] = {"Path": Path, "importlib": importlib}
    code = ast.parse(b"".join(lines[start:end]))
    exec(compile(code, side, "exec"), namespace)  # noqa: S102  the patched function is what is tested
    return namespace["_filter_compiled_extensions"]


def loads(file: str) -> bool:
    """Load ``file`` as upstream's loader does; say whether it is the module."""
    spec = importlib.util.spec_from_file_location("common_ops", file)
    if spec is None or spec.loader is None:
        return False
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.__name__ == "common_ops"


def listings(library: pathlib.Path) -> list[list[str]]:
    """Return the folder's files in every order in which a directory may list them."""
    return [list(order) for order in itertools.permutations(map(str, library.parent.iterdir()))]


def test_pristine_may_choose_the_leftover(library: pathlib.Path) -> None:
    chosen = {filter_of("old")(files)[0] for files in listings(library)}
    assert chosen == {str(library), f"{library}.bak"}
    assert not loads(f"{library}.bak")


def test_patched_takes_the_library_in_every_order(library: pathlib.Path) -> None:
    for files in listings(library):
        assert filter_of("new")(files) == [str(library)]
    assert loads(str(library))


def test_patched_chooses_as_the_import_system_does(tmp_path: pathlib.Path) -> None:
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    for suffix in (*suffixes, ".so.1", ".cpython-27m.so", ".abi3.so.orig", ".pyd", ".py"):
        (tmp_path / f"common_ops{suffix}").touch()
    (tmp_path / "common_ops").mkdir()
    found = filter_of("new")(sorted(map(str, tmp_path.iterdir()), reverse=True))
    assert [pathlib.Path(file).name for file in found] == [f"common_ops{suffix}" for suffix in suffixes]


RUN = """
import glob, sys, types
torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False),
                              version=types.SimpleNamespace(cuda="13.0"))
sys.modules["torch"] = torch
listing = glob.glob
glob.glob = lambda pattern: sorted(listing(pattern), reverse=True)  # the leftover first
import load_utils
print(load_utils._load_architecture_specific_ops().__file__)
"""


@pytest.mark.skipif(
    not (pathlib.Path(os.environ.get("HOSTENV_WHEELS", "/nonexistent")) / WHEEL).is_file(),
    reason=f"HOSTENV_WHEELS names no folder with {WHEEL}",
)
def test_the_real_wheels_loader(library: pathlib.Path, tmp_path: pathlib.Path) -> None:
    wheel = pathlib.Path(os.environ["HOSTENV_WHEELS"]) / WHEEL
    (patched,) = compute(load_series(SERIES), wheel).files
    assert patched.path == LOADER
    with PristineWheel(wheel, dist="sglang-kernel", version="0.4.4") as shipped:
        pristine = shipped.read(LOADER)
    assert pristine is not None
    (tmp_path / "sm100").mkdir()
    for file in (library, pathlib.Path(f"{library}.bak")):
        shutil.copy(file, tmp_path / "sm100")
    results = []
    for content in (pristine.content, patched.content):
        (tmp_path / "load_utils.py").write_bytes(content)
        argv = (sys.executable, "-B", "-c", RUN)
        results.append(subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False))
    assert "Could not load any common_ops library" in results[0].stderr
    assert results[1].stdout.strip() == str(tmp_path / "sm100" / library.name)
