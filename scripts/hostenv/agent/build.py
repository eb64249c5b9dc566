"""Making a build: one venv from verified wheels, finished under another name, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zlib
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from hostenv.agent import distinfo, overlaying, polite, record, running, tree, venv, wheels
from hostenv.agent.amounts import counted, megabytes
from hostenv.agent.files import put_in_place, remove, sync_folder, sync_volume, write_file
from hostenv.agent.layout import OWN, Layout
from hostenv.agent.store import Store
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer


def make(wire: Wire, *, root: str, build: str, who: Dict[str, Any], plan: Dict[str, Any]) -> Dict[str, Any]:
    """Make the build that ``plan`` describes, unless it is there; returns what was read of it.

    ``plan`` holds ``python`` and ``uv`` (absolute paths on the host), ``wheels`` (name, version, path,
    size, sha256 each), ``files`` (path below site-packages, mode, size, sha256, and the ``pristine``
    sha256 or ``None``: their bytes follow the request in that order), ``removed`` (path and pristine
    sha256), ``link_mode``, ``bytecode``, ``min_free``, ``io`` (``idle``: beside a live server),
    ``overlays`` (:mod:`hostenv.agent.overlaying`; their contents are in the store), and what is kept beside
    the build: ``inputs``, ``texts`` (path → text of series and overlays) and ``applied`` (path → sha256). A
    build that is there and is to be made anew (``remake``, or its interpreter is gone) is exchanged at one
    moment; refused while processes use it, unless ``despite_running``. Killed at any moment, what is left
    bears no id, and the next build removes it.
    """
    layout = Layout(root)
    files = _receive(wire, plan["files"])
    if plan["io"] == "idle":
        polite.stand_back()
    with sole_writer(layout, who) as descriptors:
        for folder in (layout.builds, layout.cache, layout.generations):
            os.makedirs(folder, exist_ok=True)
        _sweep(layout)
        finished = layout.build(build)
        if build not in layout.sound_builds() or plan["remake"]:
            if os.path.lexists(finished):
                _check_unused(finished, plan)
            plan["incomplete"] = _check_wheels(layout, plan)
            overlaying.check_paths(plan["overlays"], plan["wheels"])
            unfinished = os.path.join(layout.builds, f".tmp-{build}")
            _Job(wire, layout, plan, descriptors).fill(unfinished, finished, files)
            put_in_place(unfinished, finished)
            sync_folder(layout.builds)
            remove(unfinished)
    return read(finished)


def read(path: str) -> Dict[str, Any]:
    """Return what was kept beside a finished build when it was made."""
    with open(os.path.join(path, OWN, "facts.json"), encoding="utf-8") as file:
        facts: Dict[str, Any] = json.load(file)
    return facts


def facts(wire: Wire, *, root: str, build: str) -> Dict[str, Any]:
    """Return the kept facts of a finished build."""
    del wire
    return read(Layout(root).build(build))


class _Job:
    """One unfinished build being filled."""

    def __init__(self, wire: Wire, layout: Layout, plan: Dict[str, Any], descriptors: Sequence[int]) -> None:
        self._wire = wire
        self._plan = plan
        self._uv = venv.Uv(plan["uv"], layout.cache, descriptors)
        self._mode = venv.link_mode(layout, plan["link_mode"])
        self._store = Store(layout.store)
        self._descriptors = descriptors

    def fill(self, path: str, final: str, files: List[Tuple[Dict[str, Any], bytes]]) -> None:
        """Fill the folder ``path``, which will be renamed to ``final``; durable when it returns."""
        self._wire.event(phase="install", packages=len(self._plan["wheels"]))
        self._uv.create(path, self._plan["python"])
        self._uv.install(path, self._plan["wheels"], self._mode)
        settled = self._settle(path)
        self._plan["applied"] = {
            **self._lay(path),
            **self._plan["applied"],
        }  # a series may go over an overlay
        _place(venv.site_packages(path), files, self._plan["removed"])
        if self._plan["bytecode"] == "compile":
            self._wire.event(phase="bytecode")
            venv.compile_bytecode(path, final, self._descriptors)
        self._wire.event(phase="manifest")
        with _writing_back(path):
            _keep(path, self._plan, settled)
        self._wire.event(phase="sync")
        sync_volume(path)

    def _lay(self, path: str) -> overlaying.Laid:
        if not self._plan["overlays"]:
            return {}
        self._wire.event(phase="overlays")
        clone = self._mode == "clone"
        return overlaying.lay_overlays(path, self._plan["overlays"], self._store, clone=clone)

    def _settle(self, path: str) -> Dict[str, str]:
        """Decide by rule whose bytes lie where two distributions own one path: uv's order is a race.

        The winners are installed again, in the rule's order, so that the last one's bytes stay, scripts
        included. Returns path → winner.
        """
        disputes = record.contested(record.installed(path))
        settled = {tree.text(contested): record.winner(claims) for contested, claims in disputes.items()}
        wheels = {f"{_normal(each['name'])}=={each['version']}": each for each in self._plan["wheels"]}
        for owner in sorted(set(settled.values()), key=record.order):
            name, _, version = owner.partition("==")
            self._uv.reinstall(path, wheels[f"{_normal(name)}=={version}"], self._mode)
        return settled


@contextlib.contextmanager
def _writing_back(path: str) -> Iterator[None]:
    """Have the disk take what was written while the processors hash it: the sync after it waits less."""

    def sync() -> None:
        with contextlib.suppress(OSError):  # the sync that counts comes after, and tells
            sync_volume(path)

    early = threading.Thread(target=sync, name="sync", daemon=True)
    early.start()
    try:
        yield
    finally:
        early.join()


def _keep(path: str, plan: Dict[str, Any], settled: Dict[str, str]) -> None:
    """Read the environment once and keep beside it what was read: facts, manifest, stat cache."""
    own = os.path.join(path, OWN)
    os.mkdir(own)
    looked = tree.scan(path, cache=os.path.join(own, "stat"))
    canonical = looked.canonical()
    described = {
        "tree": looked.summary(canonical),
        "settled": settled,
        "applied": plan["applied"],
        "incomplete": plan["incomplete"],
        "overlaid": {
            each["name"]: overlay["name"] for overlay in plan["overlays"] for each in overlay["distributions"]
        },
        **record.describe(looked),
    }
    contents = {
        "facts.json": json.dumps(described).encode(),
        "inputs.json": json.dumps(plan["inputs"], indent=1, sort_keys=True).encode(),
        "manifest.z": zlib.compress(canonical, 1),
    }
    for name, content in contents.items():
        write_file(os.path.join(own, name), content)
    for name, content in plan["texts"].items():
        target = _inside(own, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write_file(target, content.encode("utf-8", "surrogateescape"))


def _normal(name: str) -> str:
    return distinfo.normalised(name)


def _receive(wire: Wire, described: List[Dict[str, Any]]) -> List[Tuple[Dict[str, Any], bytes]]:
    """Take the bytes of the plan's files, each checked against its digest."""
    received = memoryview(b"".join(wire.data()))
    files = []
    start = 0
    for each in described:
        content = bytes(received[start : start + each["size"]])
        start += each["size"]
        if hashlib.sha256(content).hexdigest() != each["sha256"]:
            raise AgentError(f"{each['path']}: the bytes that arrived are not those announced")
        files.append((each, content))
    return files


def _place(site: str, files: List[Tuple[Dict[str, Any], bytes]], removed: Sequence[Dict[str, Any]]) -> None:
    """Lay a series' results over the installed files; RECORD stays as shipped.

    Where something else lies than the wheel's own file (another distribution owns the path, too), nothing
    is placed or removed at all.
    """
    for each in [*(described for described, _ in files), *removed]:
        _check_pristine(_inside(site, each["path"]), each)
    for each in removed:
        os.unlink(_inside(site, each["path"]))
    for each, content in files:
        target = _inside(site, each["path"])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write_file(target, content, each["mode"])


def _check_pristine(target: str, each: Dict[str, Any]) -> None:
    found = None
    with contextlib.suppress(FileNotFoundError), open(target, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != each["pristine"]:
        expected = each["pristine"] or "no file"
        message = f"{each['path']}: the series expects {expected}, and {found or 'none'} lies there"
        raise AgentError(
            message, hint="another distribution owns this path, too: env.excludes leaves one out"
        )


def _inside(site: str, path: str) -> str:
    """Return ``path`` below ``site``; a path that leaves it, by its words or by a link, is refused."""
    target = os.path.normpath(os.path.join(site, path))
    parent = os.path.realpath(os.path.dirname(target))
    real = os.path.realpath(site)
    if os.path.isabs(path) or not (parent + "/").startswith(real + "/"):
        raise AgentError(f"{path!r} leaves site-packages", outcome="input")
    return target


def _check_unused(finished: str, plan: Dict[str, Any]) -> None:
    """Refuse to exchange a build under processes that use it: their lazy imports would meet other files."""
    users = [] if plan["despite_running"] else running.users_of([finished])
    if users:
        named = "; ".join(f"pid {each['pid']} {each['name']} ({each['how']})" for each in users[:8])
        message = f"{finished} has {counted(len(users), 'running process', 'running processes')}: {named}"
        raise AgentError(message, hint="stop them, or pass --despite-running", outcome="refused")


def _check_wheels(layout: Layout, plan: Dict[str, Any]) -> Dict[str, List[str]]:
    """Refuse where the unpacked wheels (in uv's cache and in the build) would not leave ``min_free``.

    Returns what wheels lack of their own RECORD: file name → paths.
    """
    contents = {os.path.basename(wheel["path"]): wheels.read(wheel["path"]) for wheel in plan["wheels"]}
    unpacked = sum(each.size for each in contents.values())
    volume = os.statvfs(layout.root)
    free = volume.f_bavail * volume.f_frsize
    laid = sum(size for overlay in plan["overlays"] for _, _, _, size, _ in overlay["files"])
    needed = 2 * unpacked + laid + plan["min_free"]
    if free < needed:
        message = f"{layout.root}: {megabytes(needed)} needed, {megabytes(free)} free"
        raise AgentError(message, hint="nox -s prune -- HOST removes what nothing uses", outcome="refused")
    return {name: each.absent for name, each in contents.items() if each.absent}


def _sweep(layout: Layout) -> None:
    """Remove what killed builds left. Under the lock, nothing unfinished has an owner."""
    left = ((layout.builds, ".tmp-"), (layout.cache, venv.RENDERED), (layout.cache, ".tmp"))  # the last: uv's
    for folder, prefix in left:
        for name in os.listdir(folder):
            if name.startswith(prefix):
                remove(os.path.join(folder, name))
