"""Every shared object of an environment and whether it loads: alone, and after ``import torch``."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hostenv.agent import loadersystem, objectcache, preload, pyvenv, reading
from hostenv.agent.companions import Companions
from hostenv.agent.elf import read_elf
from hostenv.agent.elfmodel import DF_STATIC_TLS, ElfError
from hostenv.agent.excerpts import laid_out
from hostenv.agent.hostfiles import HostFiles
from hostenv.agent.loader import Process
from hostenv.agent.loadermodel import File, LoadError, Refusal, System
from hostenv.agent.objectowners import Owners
from hostenv.agent.preload import Environment
from hostenv.agent.savedfiles import SavedFiles, saved_system
from hostenv.agent.verdicts import Judge, Verdict
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.elfmodel import Elf
    from hostenv.agent.wire import Wire

_OBJECT_NAME = re.compile(r"\.so(?:\.\d+)*\Z")
_MOST_FOLDERS = 1_000_000


class Tree(NamedTuple):
    """A walked environment: paths that may be shared objects, relative to its root, and all its folders."""

    paths: List[str]
    folders: List[str]


def objects(  # noqa: PLR0913  a request's fields, all by keyword
    wire: Wire,
    *,
    venv: str,
    environment: Optional[Mapping[str, str]] = None,
    package: str = "torch",
    gpu: bool = True,
    cache: Optional[str] = None,
    helpers: bool = True,
    cwd: str = "/",
    host: Optional[Mapping[str, Any]] = None,
    laid: Optional[Sequence[Dict[str, Any]]] = None,
    gone: Sequence[str] = (),
) -> Dict[str, Any]:
    """Judge every shared object below the ``site-packages`` of ``venv`` by the loader's rules.

    ``environment``: the variables of the service (LD_LIBRARY_PATH, LD_PRELOAD); ``cwd`` its working folder,
    which relative elements of an RPATH mean; ``package``: what is imported before the second judgement;
    ``host``: another machine's saved libraries (``{"libraries": a probe's part, "glibc": [2, 39]}``), against
    which the environment is judged instead of this machine's; ``cache``: a file that keeps the answer until
    something changes that it rests on; ``laid``: excerpts (:mod:`hostenv.agent.excerpts`; their bytes follow
    the request) that are to be seen at their paths below ``site-packages``, and ``gone``: paths at which
    nothing is: what other distributions would make. Nothing of the environment is run; only ``cache`` is
    written.

    Returns what :class:`hostenv.facts.objects.LoadFacts` reads, ``gpu_code`` as ``abi.gpu_code`` answers,
    whether the answer was ``cached``, and the ``seconds`` that it took.
    """
    started = time.monotonic()
    place = environment_at(venv)
    settings = {**loadersystem.environment_of(environment or {}), "cwd": cwd}
    key = objectcache.key(place, settings, package, gpu=gpu, host=host)
    cache = None if laid is not None else cache
    known = objectcache.load(cache, key) if cache else None
    if known is None:
        watch = objectcache.Watch()
        with laid_out(laid or (), () if laid is None else wire.data()) as files:
            seen: Dict[str, Optional[str]] = {**dict.fromkeys(gone), **files}
            known = judge_all(place, settings, package, host, seen, gpu=gpu, helpers=helpers, watch=watch)
        if cache:
            watch.save(cache, key, known)
        known["cached"] = False
    known["seconds"] = round(time.monotonic() - started, 3)
    return known


def judge_all(  # noqa: PLR0913  what the judgement rests on, all by keyword
    place: Environment,
    settings: Mapping[str, str],
    package: str,
    host: Optional[Mapping[str, Any]],
    laid: Mapping[str, Optional[str]],
    *,
    gpu: bool,
    helpers: bool,
    watch: objectcache.Watch,
) -> Dict[str, Any]:
    """Read and judge all objects; ``watch`` learns what the answer rests on."""
    tree = walk(place.site)
    program = _program(place.program)
    system = loadersystem.system_of(program, settings, cwd=settings["cwd"])
    files = HostFiles(gpu=gpu)
    if host is not None:
        here = (place.site, os.path.dirname(os.path.dirname(place.program)))
        files = SavedFiles(host["libraries"], host["glibc"], program.machine, here, gpu=gpu)
        files.keep_loader(program.interpreter)
        system = saved_system(system, host["libraries"], host["glibc"])
    files.lay({os.path.join(place.site, path): real for path, real in laid.items()})
    tree = _laid_over(tree, laid)
    judge = Judge(files)
    with contextlib.suppress(LoadError):  # judged again below, with symbols
        Process(system, files).start(place.program)  # reads what the program itself needs
    wanted = [os.path.join(place.site, path) for path in tree.paths]
    reading.read_all(files, judge, system, wanted, companions(place, package), helpers=helpers)
    alone, after, imported = processes(judge, files, system, place, package)
    companion = Companions(judge, place)
    found: List[Dict[str, Any]] = []
    strange: Dict[str, str] = {}
    for path in tree.paths:
        opened = files.open(os.path.join(place.site, path))
        if isinstance(opened, Refusal) and not opened.other_class:
            if _OBJECT_NAME.search(path):
                strange[path] = opened.message
            continue
        described = _described(judge, place.site, path, alone, after)
        if not described["after"]["loads"]:
            used = companion.as_used(after, path)
            if used is not None:
                described["used"] = told(used)
        found.append(described)
    watch.add(files, place, tree.folders)
    return {
        "site": place.site,
        "interpreter": place.program,
        "glibc": "{}.{}".format(*system.glibc),
        **_origins(place.site, found, package),
        "package": package,
        "cuda": preload.cuda_of(place, package, files),
        "preload": imported and told(imported),
        "objects": found,
        "not_objects": strange,
        "gpu_code": _gpu_code(files, place.site, tree.paths) if gpu else None,
        "cached": True,
    }


def _laid_over(tree: Tree, laid: Mapping[str, Optional[str]]) -> Tree:
    kept = set(tree.paths) - laid.keys()
    new = {path for path, real in laid.items() if real is not None and ".so" in path}
    return tree._replace(paths=sorted(kept | new))


def environment_at(venv: str) -> Environment:
    """Return where the Python code of ``venv`` lies; :class:`AgentError` where it is no environment."""
    absent = pyvenv.absence(venv)
    if absent:
        raise AgentError(f"{venv} {absent}", hint="name the folder that holds bin/ and lib/")
    sites = pyvenv.site_packages(venv)
    program = os.path.realpath(os.path.join(venv, "bin", "python"))
    if len(sites) != 1:
        raise AgentError(f"{venv} has {len(sites)} site-packages folders, not one")
    if not os.path.isfile(program):
        raise AgentError(
            f"{venv}/bin/python leads to {program}, which is not there",
            hint="build the environment again with an interpreter of this host",
        )
    folder = sites[0].split(os.sep)[1]
    prefix = os.path.dirname(os.path.dirname(program))
    places = [os.path.join(prefix, lib, folder, "lib-dynload") for lib in ("lib", "lib64")]
    standard = next((item for item in places if os.path.isdir(item)), places[0])
    tag = "cpython-" + re.sub(r"\D", "", folder)
    return Environment(program, os.path.join(os.path.abspath(venv), sites[0]), standard, tag)


def _program(path: str) -> Elf:
    try:
        return read_elf(path)
    except (ElfError, OSError) as error:
        raise AgentError(
            f"{path} is no ELF program: {error}",
            hint="bin/python must lead to the interpreter itself, not to a script that starts it",
        ) from error


def walk(root: str) -> Tree:
    """Return what below ``root`` may be a shared object, sorted; links to folders are not followed."""
    tree = Tree([], [root])
    start = len(root) + 1
    for folder in tree.folders:
        if len(tree.folders) > _MOST_FOLDERS:
            break
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        tree.folders.append(entry.path)
                    elif ".so" in entry.name and _is_file(entry):
                        tree.paths.append(entry.path[start:])
        except OSError:
            continue
    tree.paths.sort()
    return tree


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def companions(place: Environment, package: str) -> List[str]:
    """Return the files outside of ``site-packages`` that the processes will open first."""
    names = [*preload.rules()["interpreter"]]
    for entry in preload.rules()["packages"].get(package, ()):
        names += [*entry.get("standard", ()), *entry.get("afterwards", ())]
    found = [preload.extension(place, os.path.join(place.standard, name)) for name in dict.fromkeys(names)]
    return [place.program, *(path for path in found if path)]


def processes(
    judge: Judge, files: HostFiles, system: System, place: Environment, package: str
) -> Tuple[Process, Process, Optional[Verdict]]:
    """Return the interpreter's process, the same after ``import package``, and what became of the import."""
    alone = Process(system, files)
    started = preload.start(judge, alone, place)
    if started.loads is False:
        raise AgentError(f"the interpreter cannot start: {started.error}", outcome="failed")
    after = alone.fork()
    imported = preload.import_package(judge, after, place, package)
    return alone, after, imported


def told(verdict: Verdict) -> Dict[str, Any]:
    """Return a verdict as JSON, without what it does not say."""
    return {name: value for name, value in verdict._asdict().items() if value is not None or name == "loads"}


def _origins(site: str, found: List[Dict[str, Any]], package: str) -> Dict[str, Any]:
    """Return owners of the objects that do not load, what they were built for, and what is installed."""
    owners = Owners(site)
    failing = [item["path"] for item in found if not item["after"]["loads"]]
    folders = owners.of(failing)
    origins = {folder: owners.built_for(folder, package) for folder in set(folders.values())}
    return {
        "owners": {path: folder[: -len(".dist-info")] for path, folder in folders.items()},
        "built_for": {
            folder[: -len(".dist-info")]: list(origin) for folder, origin in origins.items() if origin
        },
        "installed": owners.installed(),
    }


def _described(judge: Judge, site: str, path: str, alone: Process, after: Process) -> Dict[str, Any]:
    full = os.path.join(site, path)
    opened = judge.files.open(full)
    described: Dict[str, Any] = {
        "path": path,
        "alone": told(judge.judge(alone, full)),
        "after": told(judge.judge(after, full)),
    }
    if isinstance(opened, File):
        described["machine"] = opened.elf.machine
        described["needed"] = list(opened.elf.needed)
        if opened.elf.flags & DF_STATIC_TLS and opened.elf.tls_size:
            described["static_tls"] = opened.elf.tls_size
        if opened.elf.short > 0:
            described["short"] = opened.elf.short
        if opened.elf.soname:
            described["soname"] = opened.elf.soname
    return described


def _gpu_code(files: HostFiles, site: str, paths: List[str]) -> Dict[str, Any]:
    """Return what ``abi.gpu_code`` answers, from the same pass over the files."""
    found: Dict[str, Any] = {}
    for path in paths:
        full = os.path.join(site, path)
        opened = files.open(full)
        if isinstance(opened, File) and not os.path.islink(full):
            code = (files.gpu or {}).get(opened.identity)
            if code is not None:
                found[path] = code
    return {"objects": found, "unreadable": {}}
