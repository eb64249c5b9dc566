"""Why an object does not load, in words: the catalogue's kind, whose fault, what can be typed."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.checks.demangle import demangle, shown
from hostenv.checks.object_tables import provider_of

if TYPE_CHECKING:
    from hostenv.facts.objects import Load, LoadFacts

_TORCH = re.compile(r"_Z(?:T[ISV]|GV)?(?:N?K?)?.{0,8}(?:3c10|2at|5torch|6caffe2)|aoti_torch_|torch_")
_OLD_STRING = re.compile(r"[ERKPv]Ss")
"""std::string before C++11 among mangled parameters, where the whole name cannot be read."""
_DRIVER = re.compile(r"cu(?:[A-Z]\w+)\Z")
_PYTHON = re.compile(r"_?Py[A-Z_]")
_KERNELS = ("sgl-kernel", "sglang-kernel")
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One object that does not load. ``path`` is relative to site-packages, or a package's name."""

    path: str
    load: Load
    facts: LoadFacts
    machine: int | None = None

    @property
    def owner(self) -> str | None:
        """``name-version`` of the distribution that brought it."""
        return self.facts.owners.get(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Why an object does not load. Faults with the same ``key`` have one cause."""

    key: str
    what: str
    kind: str | None = None
    evidence: tuple[str, ...] = ()
    fix: str | None = None


def cause_of(fault: Fault) -> Cause:
    """Explain a fault."""
    load = fault.load
    if load.loads is None:
        return _unknown(fault)
    if load.symbol is not None:
        return _symbol(fault, load.symbol)
    if load.version is not None:
        return _version(fault, load.version)
    if load.library is not None:
        return _library(fault, load.library)
    text = load.text or "does not load"
    return Cause(key=text, what=text, kind="K56" if "CPU ISA" in text else None)


def wants_torch(fault: Fault) -> bool:
    """Say whether what is missing is torch's to define."""
    return bool(fault.load.symbol and _TORCH.match(fault.load.symbol))


def _unknown(fault: Fault) -> Cause:
    told = fault.load.unknown or "a fact is missing"
    library = told.rpartition(" may be in ")[2] if " may be in " in told else None
    what = f"may not load: what {library} defines was not saved" if library else f"may not load: {told}"
    fix = "probe the host with its libraries' exports" if library else None
    return Cause(key=library or told, what=what, evidence=(told,), fix=fix)


def _symbol(fault: Fault, symbol: str) -> Cause:
    version = f", version {fault.load.version}" if fault.load.version else ""
    evidence = [f"{_at(fault)} needs {shown(symbol)}{version}", *_built_for(fault)]
    if _TORCH.match(symbol):
        return _torch(fault, symbol, tuple(evidence))
    key, kind, what, fix = f"symbol {symbol}", None, f"undefined symbol {shown(symbol)}", None
    if symbol.startswith("nccl"):
        kind, what = "K09", f"libnccl is too old, or another package's: it has no {symbol}"
        fix = "uv pip install --reinstall the one NCCL wheel that torch pins, and uninstall the other"
    elif _DRIVER.match(symbol):
        kind, what = "K28", f"the driver's libcuda has no {symbol}"
        fix = "install a newer driver"
    elif _PYTHON.match(symbol):
        kind, what = "K46", f"the interpreter has no {symbol}: the extension is for another Python"
        fix = "install its wheel for this Python"
    elif fault.load.version:
        kind, what = "K12", f"a library that others shadow or that is too old: no {symbol}{version}"
        fix = "unset LD_LIBRARY_PATH, or install the version that the package pins"
    return Cause(key=key, kind=kind, what=what, evidence=tuple(evidence), fix=fix)


def _torch(fault: Fault, symbol: str, evidence: tuple[str, ...]) -> Cause:
    owner = fault.owner or fault.path
    installed = fault.facts.installed.get("torch")
    built = fault.facts.built_for.get(owner)
    name = owner.rpartition("-")[0].replace("_", "-").lower()
    readable = demangle(symbol)
    old = "std::string" in readable if readable else bool(_OLD_STRING.search(symbol))
    kind = "K01" if name in _KERNELS else "K03" if old else "K02"
    target = f" for torch {built[0]}" if built else " for another torch"
    what = (
        f"{owner} was built{target}; installed is torch {installed or 'none'}, which has not {shown(symbol)}"
    )
    if old:
        what += " (the old std::string ABI, _GLIBCXX_USE_CXX11_ABI=0)"
    fix = f"install torch=={built[0]}, or the {name} that is built for torch {installed}" if built else None
    return Cause(
        key=f"torch of {owner}",
        kind=kind,
        what=what,
        evidence=evidence,
        fix=fix or f"install the {name or owner} that is built for torch {installed}",
    )


def _version(fault: Fault, version: str) -> Cause:
    library = fault.load.library or "a library"
    evidence = (f"{_at(fault)} needs version {version} of {library}", *_built_for(fault))
    if version.startswith("GLIBC_"):
        what = f"needs {version}, the host's glibc is {fault.facts.glibc}"
        fix = "use a build for this glibc (its manylinux tag tells), or a host with a newer one"
        return Cause(key=f"version {version} {library}", kind="K14", what=what, evidence=evidence, fix=fix)
    if version.startswith(("GLIBCXX_", "CXXABI_")):
        what = f"needs {version}, which {library} has not: built with a newer GCC"
        fix = "install a newer libstdc++ on the host, or a build with an older GCC"
        return Cause(key=f"version {version} {library}", kind="K15", what=what, evidence=evidence, fix=fix)
    what = f"needs version {version}, which {library} has not: another copy shadows the right one"
    fix = "unset LD_LIBRARY_PATH, or install the version that the package pins"
    return Cause(key=f"version {version} {library}", kind="K12", what=what, evidence=evidence, fix=fix)


def _library(fault: Fault, library: str) -> Cause:
    name = posixpath.basename(library)
    evidence = (f"{_at(fault)}: {fault.load.text}", *_built_for(fault))
    if (
        fault.machine in _MACHINES
        and library.endswith("/" + fault.path)
        and "cannot open" in str(fault.load.text)
    ):
        what = f"is for {_MACHINES[fault.machine or 0]}, this interpreter is not"
        return Cause(
            key="machine", kind="K56", what=what, evidence=evidence, fix="install the wheel for this machine"
        )
    if "/" in library:
        said = (fault.load.text or "").partition(": ")[2]
        kind = "K16" if "executable stack" in said else "K53"
        fix = (
            "install its distribution again"
            if kind == "K53"
            else "patchelf --clear-execstack on it, or a newer build"
        )
        return Cause(
            key=f"file {posixpath.normpath(library)}",
            kind=kind,
            what=f"{name}: {said}",
            evidence=evidence,
            fix=fix,
        )
    known = provider_of(name)
    if known is None:
        return Cause(key=f"library {name}", kind="K18", what=f"no {name}", evidence=evidence)
    kind, brings, fix = known
    return Cause(
        key=f"library {name}",
        kind=kind,
        what=f"no {name}: {brings} should bring it",
        evidence=evidence,
        fix=fix,
    )


def _at(fault: Fault) -> str:
    requirer = fault.load.requirer
    if requirer is None:
        return fault.path
    site = fault.facts.site + "/"
    return requirer.removeprefix(site)


def _built_for(fault: Fault) -> tuple[str, ...]:
    built = fault.facts.built_for.get(fault.owner or "")
    if not built:
        return ()
    installed = fault.facts.installed.get("torch", "none")
    return (f"{fault.owner} is built for torch {built[0]} ({built[1]}); installed: torch {installed}",)
