"""CUDA toolkits, and what kernels that compile at run time need, as the service's environment shows it."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from hostenv.agent.probe.command import Command, find
from hostenv.agent.probe.fact import Json, UnknownError, fact, known, unknown

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_TOOLS: Dict[str, Tuple[str, ...]] = {
    "gcc": ("-dumpfullversion", "-dumpversion"),
    "g++": ("-dumpfullversion", "-dumpversion"),
    "c++": ("-dumpfullversion", "-dumpversion"),
    "nvcc": ("--version",),
    "ninja": ("--version",),
}
_HOMES = ("/usr/local/cuda", "/usr/local/cuda-[0-9]*", "/opt/cuda", "/usr/lib/cuda")
_RELEASE = re.compile(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)")


class Toolchain:
    """The tools of one environment.

    ``environment`` holds what the service will see (PATH, CUDA_HOME); where it comes from is told in ``how``.
    """

    def __init__(self, environment: Mapping[str, str], how: str, more: List[str], tree: Tree) -> None:
        self._tree = tree
        self._path = environment.get("PATH", "")
        self._environment = environment
        self._how = how
        self._names = [*_TOOLS, *(name for name in more if name not in _TOOLS)]

    def read(self, timeout: float) -> Json:
        """Return what the service would find. Sizes and versions as the tools print them."""
        asked = {name: self._start(name) for name in self._names}
        return {
            "path": known(self._path, self._how),
            "commands": {name: self._tool(each, timeout) for name, each in asked.items()},
            "cuda_home": fact(self._how, _cuda_home, self._environment, self._tree),
            "toolkits": fact(", ".join(_HOMES), toolkits, self._tree),
            "libcuda_for_linking": fact(
                "the linker's folders", _linkable_libcuda, self._environment, self._tree
            ),
        }

    def unread(self, reason: str) -> Json:
        """Return the same where nothing of it could be read."""
        return {
            "path": known(self._path, self._how),
            "commands": {name: unknown(reason, f"PATH of {self._how}") for name in self._names},
            "cuda_home": unknown(reason, self._how),
            "toolkits": unknown(reason, ", ".join(_HOMES)),
            "libcuda_for_linking": unknown(reason, "the linker's folders"),
        }

    def _start(self, name: str) -> Any:
        program = find(name, self._path, self._tree)
        if program is None or name not in _TOOLS:
            return program
        try:
            return Command((program, *_TOOLS[name]), {"PATH": self._path})
        except UnknownError as error:
            return error

    def _tool(self, asked: Any, timeout: float) -> Json:
        how = f"PATH of {self._how}"
        if asked is None:
            return known(None, how)
        if isinstance(asked, str):
            return known({"path": asked, "version": None}, how)
        if isinstance(asked, UnknownError):
            return unknown(asked.reason, how)
        return fact(asked.shown, lambda: {"path": asked.argv[0], "version": _version(asked.result(timeout))})


def _version(text: str) -> Optional[str]:
    release = _RELEASE.search(text)
    if release:
        return release.group(2)
    number = re.search(r"\d+(\.\d+)*", text)
    return number.group(0) if number else None


def _cuda_home(environment: Mapping[str, str], tree: Tree) -> Json:
    """Return what CUDA_HOME means there, and what is wrong with it (``problem``)."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = environment.get(variable)
        if home:
            return {"path": home, "from": variable, "problem": _problem_of_home(home, tree)}
    nvcc = find("nvcc", environment.get("PATH", ""), tree)
    if nvcc:
        return {"path": os.path.dirname(os.path.dirname(nvcc)), "from": "nvcc on PATH", "problem": None}
    problem = _problem_of_home("/usr/local/cuda", tree)
    return {"path": None if problem else "/usr/local/cuda", "from": "default", "problem": problem}


def _problem_of_home(home: str, tree: Tree) -> Optional[str]:
    if not home.startswith("/") or ":" in home:
        return "is not one absolute folder"
    if not tree.is_folder(home):
        return "does not exist"
    return None if tree.is_executable(os.path.join(home, "bin", "nvcc")) else "holds no bin/nvcc"


def toolkits(tree: Tree) -> List[Json]:
    """Return the toolkits in their usual folders with the version of their nvcc, each real folder once."""
    names: Dict[str, List[str]] = {}
    for place in dict.fromkeys(place for pattern in _HOMES for place in tree.glob(pattern)):
        if tree.is_folder(place):
            names.setdefault(os.path.realpath(place), []).append(place)
    return [
        {
            "home": real,
            "also": [place for place in places if place != real],
            "nvcc": fact(f"{real}/version.json, nvcc --version", _nvcc_version, real),
        }
        for real, places in sorted(names.items())
    ]


def _nvcc_version(home: str) -> Optional[str]:
    """Return nvcc's version from ``version.json`` (CUDA >= 11.1), else from nvcc; ``None``: no nvcc there."""
    nvcc = os.path.join(home, "bin", "nvcc")
    if not os.access(nvcc, os.X_OK):
        return None
    try:
        with open(os.path.join(home, "version.json"), encoding="utf-8") as file:
            return str(json.load(file)["cuda_nvcc"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return _version(Command((nvcc, "--version")).result(5.0))


def _linkable_libcuda(environment: Mapping[str, str], tree: Tree) -> Optional[str]:
    """Return the ``libcuda.so`` that ``-lcuda`` would take (JIT links it), ``None`` where there is none."""
    folders = [folder for folder in environment.get("LIBRARY_PATH", "").split(":") if folder]
    home = _cuda_home(environment, tree)["path"]
    if home:
        folders += [f"{home}/lib64", f"{home}/lib64/stubs", f"{home}/lib/stubs"]
    folders += [*tree.glob("/usr/lib/*-linux-gnu"), "/usr/lib64", "/usr/lib", "/usr/local/lib"]
    places = (os.path.join(folder, "libcuda.so") for folder in folders)
    return next((place for place in places if tree.exists(place)), None)
