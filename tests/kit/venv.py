"""A small environment with a torch of its own: enough for the loader, and for ``import torch`` to be real."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kit.elf import PROGRAM, shared

if TYPE_CHECKING:
    import pathlib

TAG = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"

_TORCH = """
import ctypes, pathlib
_here = pathlib.Path(__file__).parent
ctypes.CDLL(str(_here / "lib" / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(str(next(_here.glob("_C.*"))))
"""


def environment(root: pathlib.Path, torch: str = "2.14.1", cuda: str = "13.0") -> pathlib.Path:
    """Make a venv at ``root`` with a torch of that version; return its ``site-packages``."""
    site = root / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(PROGRAM)
    (root / "pyvenv.cfg").write_text(f"home = {os.path.dirname(PROGRAM)}\n")  # noqa: PTH120
    major = cuda.partition(".")[0]
    cudart = f"libcudart.so.{major}"
    shared(site / "nvidia" / f"cu{major}" / "lib", cudart, "int cudaInit(void){return 0;}", _soname(cudart))
    libraries = site / "torch" / "lib"
    rpath = f"-Wl,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cu{major}/lib:$ORIGIN/lib"
    needs = ("-Wl,--no-as-needed", f"../../nvidia/cu{major}/lib/{cudart}", rpath)
    shared(libraries, "libc10.so", "int _ZN3c103newEv(void){return 1;}", _soname("libc10.so"))
    shared(libraries, "libtorch_global_deps.so", "", *needs)
    shared(site / "torch", f"_C.{TAG}-x86_64-linux-gnu.so", "", "-Wl,--no-as-needed", "lib/libc10.so", rpath)
    (site / "torch" / "__init__.py").write_text(_TORCH)
    (site / "torch" / "version.py").write_text(f"__version__ = '{torch}'\ncuda: str = '{cuda}'\n")
    distribution(site, "torch", torch, ["torch/__init__.py"])
    return site


def extension(site: pathlib.Path, path: str, source: str = "", *flags: str) -> pathlib.Path:
    """Make the object ``path`` below ``site``; gcc runs in ``site``, so that ``flags`` may name its files."""
    place = site / path
    place.parent.mkdir(parents=True, exist_ok=True)
    return shared(site, path, source, "-Wl,--no-as-needed", *flags)


def distribution(
    site: pathlib.Path, name: str, version: str, files: list[str], requires: tuple[str, ...] = ()
) -> None:
    """Write the ``dist-info`` of an installed distribution."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    head = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *head, "", "text"]))
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def _soname(name: str) -> str:
    return f"-Wl,-soname,{name}"
