"""What a running interpreter has mapped: of itself, and after ``import torch``.

The lists are data (``data/preload.json``), taken from the packages' own sources; what of them is there, and
what their libraries pull in, the simulation finds in the environment. Entries of a package are overlaid in
the order of ``from``: a later one replaces what it names.
"""

from __future__ import annotations

import fnmatch
import json
import os
import pkgutil
import re
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hostenv.agent.verdicts import Judge, SymbolFiles, Verdict

if TYPE_CHECKING:
    from hostenv.agent.loader import Process

_VERSION = re.compile(r"^__version__\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*['\"](\d+\.\d+)", re.MULTILINE)
_VERSION_FILE_LIMIT = 1 << 16


class Environment(NamedTuple):
    """Where an environment's Python code lies: the folders of ``sys.path`` that hold extensions.

    ``program`` is the interpreter's real path, ``tag`` its ABI (``cpython-312``).
    """

    program: str
    site: str
    standard: str
    tag: str


def rules() -> Dict[str, Any]:
    """Return the reviewed lists."""
    data = pkgutil.get_data("hostenv.agent", "data/preload.json")
    return json.loads(data or b"{}")  # type: ignore[no-any-return]


def start(judge: Judge, process: Process, environment: Environment) -> Verdict:
    """Start the interpreter in ``process`` with the extensions that it imports by itself."""
    verdict = judge.start(process, environment.program)
    if verdict.loads is not False:
        _standard(judge, process, environment, rules()["interpreter"])
    return verdict


def import_package(
    judge: Judge, process: Process, environment: Environment, package: str
) -> Optional[Verdict]:
    """Do in ``process`` what ``import package`` maps; ``None`` where the package is not installed.

    A verdict that does not load says why the import fails; what was mapped until then stays.
    """
    text = _version_file(environment, package, judge.files)
    found = _VERSION.search(text)
    if found is None or package not in rules()["packages"]:
        return None
    cuda = cuda_of(environment, package, judge.files)
    importer = _Importer(judge, process, environment, cuda.partition(".")[0] if cuda else None)
    return importer.run(plan_of(package, found.group(1)))


def cuda_of(environment: Environment, package: str, files: Optional[SymbolFiles] = None) -> Optional[str]:
    """Return the CUDA version that a package's ``version.py`` names (``13.0``); ``None`` for none.

    ``files`` show what is seen instead of the files that are there.
    """
    found = _CUDA.search(_version_file(environment, package, files))
    return found.group(1) if found else None


def _version_file(environment: Environment, package: str, files: Optional[SymbolFiles]) -> str:
    path: Optional[str] = os.path.join(environment.site, package, "version.py")
    path = files.real(path or "") if files else path
    return _read(path) if path else ""


def plan_of(package: str, version: str) -> Dict[str, Any]:
    """Return the lists that hold for a version of a package."""
    plan: Dict[str, Any] = {}
    for entry in rules()["packages"][package]:
        if _release(entry["from"]) <= _release(version):
            plan.update(entry)
    if plan["rescue"] == "components":
        plan["rescue"] = plan["components"]
    return plan


class _Importer:
    def __init__(self, judge: Judge, process: Process, environment: Environment, cuda: Optional[str]) -> None:
        self._judge = judge
        self._process = process
        self._environment = environment
        self._cuda = cuda

    def run(self, plan: Dict[str, Any]) -> Verdict:
        """Open all that the plan names; return the first verdict that ends the import."""
        self._try_standard(plan["standard"])
        for name in plan["globals"]:
            verdict = self._globally(plan, os.path.join(self._environment.site, name))
            if verdict.loads is False:
                return verdict
        for name in plan["extensions"]:
            path = self._extension(name)
            if path is None:
                return Verdict(loads=False, error=f"{name}: no such extension", library=name)
            verdict = self._open(path)
            if verdict.loads is False:
                return verdict
        for name in plan["attempted"]:
            path = self._extension(name)
            if path is not None:
                self._open(path)
        self._try_standard(plan["afterwards"])
        return Verdict(loads=True)

    def _extension(self, name: str) -> Optional[str]:
        stem = os.path.join(self._environment.site, name)
        return extension(self._environment, stem, self._judge.files)

    def _globally(self, plan: Dict[str, Any], path: str) -> Verdict:
        """Open the library of the package's dependencies for everyone, as ``_load_global_deps`` does."""
        if self._judge.judge(self._process, path).loads is not False:
            verdict = self._judge.open(self._process, path, everyone=True)
            if any(plan["marker"] in os.path.basename(item.name) for item in self._process.everything()):
                self._components(plan["components"], best_effort=plan["best_effort"])
            return verdict
        failed = self._judge.judge(self._process, path)
        if not any(pattern.partition(".")[0] in (failed.error or "") for _, pattern in plan["rescue"]):
            return failed
        missing = self._components(plan["rescue"], best_effort=False)
        if missing is not None:
            return failed._replace(error=f"{missing} not found in the system path")
        again = self._judge.judge(self._process, path)
        return again if again.loads is False else self._judge.open(self._process, path, everyone=True)

    def _components(self, components: Sequence[Sequence[str]], *, best_effort: bool) -> Optional[str]:
        """Open libraries by folder and pattern; return the first pattern that must be there and is not.

        One that does not load ends it, too (the package's own ``try``).
        """
        for folder, pattern in components:
            path = self._component(folder, pattern)
            if path is None and not best_effort:
                return pattern
            if path is not None and self._open(path).loads is False:
                break
        return None

    def _component(self, folder: str, pattern: str) -> Optional[str]:
        site = self._environment.site
        places = [os.path.join(site, "nvidia", folder, "lib")]
        if self._cuda:
            places.append(os.path.join(site, "nvidia", f"cu{self._cuda}", "lib"))
        places.append(os.path.join(site, folder, "lib"))
        for place in places:
            matches = fnmatch.filter(self._judge.files.names(place), pattern)
            if matches:
                return os.path.join(place, matches[0])
        return None

    def _open(self, path: str) -> Verdict:
        """Open ``path`` where it loads; a failed attempt leaves the process as it was."""
        verdict = self._judge.judge(self._process, path)
        return verdict if verdict.loads is False else self._judge.open(self._process, path)

    def _try_standard(self, names: Sequence[str]) -> None:
        _standard(self._judge, self._process, self._environment, names)


def extension(environment: Environment, stem: str, files: Optional[SymbolFiles] = None) -> Optional[str]:
    """Return the file that an import of the extension ``stem`` takes, by CPython's order of suffixes."""
    folder, name = os.path.split(stem)
    names = files.names(folder) if files else _names(folder)
    found = [entry for entry in names if entry.startswith(name + ".") and entry.endswith(".so")]
    suffixes = (f".{environment.tag}-", ".abi3.so", ".so")
    for suffix in suffixes:
        for entry in found:
            rest = entry[len(name) :]
            if rest == suffix or (suffix.endswith("-") and rest.startswith(suffix)):
                return os.path.join(folder, entry)
    return None


def _standard(judge: Judge, process: Process, environment: Environment, names: Sequence[str]) -> None:
    for name in names:
        path = extension(environment, os.path.join(environment.standard, name))
        if path is not None and judge.judge(process, path).loads is not False:
            judge.open(process, path)


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_VERSION_FILE_LIMIT)
    except OSError:
        return ""


def _release(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
