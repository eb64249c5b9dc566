"""Making a build: one venv from verified wheels, finished under another name, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zipfile
from typing import Any, Dict, List, Sequence, Tuple

from hostenv.agent import venv
from hostenv.agent.files import sync_folder, sync_volume, write_file
from hostenv.agent.layout import OWN, Layout
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer

_GIB = 1 << 30


def make(wire: Wire, *, root: str, build: str, who: Dict[str, Any], plan: Dict[str, Any]) -> Dict[str, Any]:
    """Make the build that ``plan`` describes, unless it is there; returns what was read of it.

    ``plan`` holds ``python`` and ``uv`` (absolute paths on the host), ``wheels`` (name, version, path,
    size, sha256 each), ``files`` (path below site-packages, mode, size, owner: their bytes follow the
    request in that order), ``removed``, ``link_mode``, ``bytecode``, ``min_free`` and ``inputs`` (kept
    beside the build). Killed at any moment, what is left bears no id, and the next build removes it.
    """
    layout = Layout(root)
    files = _receive(wire, plan["files"])
    with sole_writer(layout, who) as descriptors:
        for folder in (layout.builds, layout.cache, layout.generations):
            os.makedirs(folder, exist_ok=True)
        _sweep(layout)
        finished = layout.build(build)
        if build not in layout.sound_builds():
            _discard(finished)
            _check_room(layout, plan)
            unfinished = os.path.join(layout.builds, f".tmp-{build}")
            _fill(wire, layout, unfinished, plan, files, descriptors)
            os.rename(unfinished, finished)
            sync_folder(layout.builds)
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


def _fill(  # noqa: PLR0913  the one place where all of it comes together
    wire: Wire,
    layout: Layout,
    path: str,
    plan: Dict[str, Any],
    files: List[Tuple[Dict[str, Any], bytes]],
    descriptors: Sequence[int],
) -> None:
    """Fill the folder of an unfinished build; durable when it returns."""
    uv = venv.Uv(plan["uv"], layout.cache, descriptors)
    wire.event(phase="venv")
    uv.create(path, plan["python"])
    wire.event(phase="install", packages=len(plan["wheels"]))
    uv.install(path, plan["wheels"], venv.link_mode(layout, plan["link_mode"]))
    site = venv.site_packages(path)
    wire.event(phase="arrange")
    settled = venv.settle_conflicts(site, plan["wheels"])
    _place(site, files, plan["removed"])
    if plan["bytecode"] == "compile":
        wire.event(phase="bytecode")
        venv.compile_bytecode(path, layout.build(plan["inputs"]["build"]), descriptors)
    wire.event(phase="manifest")
    _keep(wire, path, plan, {"settled": settled})
    wire.event(phase="sync")
    sync_volume(path)


def _keep(wire: Wire, path: str, plan: Dict[str, Any], known: Dict[str, Any]) -> None:
    raise NotImplementedError


def _receive(wire: Wire, described: List[Dict[str, Any]]) -> List[Tuple[Dict[str, Any], bytes]]:
    """Take the bytes of the plan's files, each checked against its digest."""
    import hashlib  # noqa: PLC0415

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


def _place(site: str, files: List[Tuple[Dict[str, Any], bytes]], removed: Sequence[str]) -> None:
    """Lay a series' results over the installed files; RECORD stays as shipped."""
    for path in removed:
        os.unlink(_inside(site, path))
    for each, content in files:
        target = _inside(site, each["path"])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write_file(target, content, each["mode"])


def _inside(site: str, path: str) -> str:
    """Return ``path`` below ``site``; a path that leaves it, by its words or by a link, is refused."""
    target = os.path.normpath(os.path.join(site, path))
    parent = os.path.realpath(os.path.dirname(target))
    real = os.path.realpath(site)
    if os.path.isabs(path) or not (parent + "/").startswith(real + "/"):
        raise AgentError(f"{path!r} leaves site-packages", outcome="input")
    return target


def _check_room(layout: Layout, plan: Dict[str, Any]) -> None:
    """Refuse where the unpacked wheels (in uv's cache and in the build) would not leave ``min_free``."""
    unpacked = 0
    for wheel in plan["wheels"]:
        with _opened(wheel["path"]) as archive:
            unpacked += sum(entry.file_size for entry in archive.infolist())
    volume = os.statvfs(layout.root)
    free = volume.f_bavail * volume.f_frsize
    needed = 2 * unpacked + plan["min_free"]
    if free < needed:
        message = f"{layout.root}: {needed / _GIB:.1f} GiB needed, {free / _GIB:.1f} GiB free"
        raise AgentError(message, hint="nox -s prune -- HOST removes what nothing uses", outcome="refused")


def _opened(path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        message = f"{path}: not a readable wheel: {error}"
        raise AgentError(message, hint="remove it; it is fetched again") from error


def _sweep(layout: Layout) -> None:
    """Remove what killed builds left. Under the lock, nothing unfinished has an owner."""
    for name in os.listdir(layout.builds):
        if name.startswith(".tmp-"):
            _discard(os.path.join(layout.builds, name))


def _discard(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
