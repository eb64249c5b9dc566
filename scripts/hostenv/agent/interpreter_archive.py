"""An interpreter out of an archive: python-build-standalone's layout, unpacked under its hash.

::

    ROOT/pythons/SHA256[:16]/python/bin/python3.12

The archive (``install_only``, gzip) holds one folder, ``python``; only regular files, folders and links that
stay inside it are taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import shutil
import subprocess
import tarfile
import zlib
from typing import Any, Dict, Iterator, Set

from hostenv.agent.files import sync_folder, sync_volume
from hostenv.agent.layout import Layout
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer

DIGITS = 16
"""Hexadecimal digits of the archive's sha256 that name its folder."""

PLACES = os.path.join("*", "python", "bin")
"""Where interpreters lie, below ``ROOT/pythons``."""

_TOP = "python"
_ASK = "import json,sys;print(json.dumps([sys.implementation.name,sys.version.split()[0]]))"


def unpack(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire, *, root: str, who: Dict[str, Any], archive: str, sha256: str, version: str
) -> Dict[str, str]:
    """Unpack an archive of exactly these bytes, unless that is done; return ``path`` and ``version``.

    The folder appears whole or not at all. Raises :class:`AgentError` for other bytes, for a member that
    leaves the folder, and where the interpreter is not CPython ``version`` or does not start here.
    """
    wire.event(phase="python")
    layout = Layout(root)
    with sole_writer(layout, who):
        os.makedirs(layout.pythons, exist_ok=True)
        _sweep(layout)
        place = os.path.join(layout.pythons, sha256[:DIGITS])
        if not os.path.isdir(place):
            unfinished = os.path.join(layout.pythons, f".tmp-{sha256[:DIGITS]}")
            _require_hash(archive, sha256)
            _extract(archive, unfinished)
            _require_version(_executable(unfinished, version), version)
            sync_volume(unfinished)
            os.rename(unfinished, place)
            sync_folder(layout.pythons)
    return {"path": _executable(place, version), "version": version}


def _require_hash(path: str, sha256: str) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != sha256:
        message = f"{path}: its sha256 is {digest.hexdigest()}, the spec says {sha256}"
        raise AgentError(message, hint="the archive is another one than supply.python means")


def _extract(archive: str, folder: str) -> None:
    os.mkdir(folder)
    extra = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for member in _checked(opened):
                opened.extract(member, folder, **extra)  # type: ignore[arg-type]  # filter: since 3.8.17
    except (tarfile.TarError, zlib.error, EOFError) as error:
        message = f"{archive}: cannot be unpacked: {error}"
        raise AgentError(message, hint="supply.python must name an install_only .tar.gz") from error


def _checked(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members, none of which leads out of the folder by name or through a link."""
    links: Set[str] = set()
    for member in opened:
        path = posixpath.normpath(member.name)
        inside = path.split("/")[0] == _TOP and not member.name.startswith("/")
        through = any(link == path or path.startswith(link + "/") for link in links)
        if not inside or through or not _stays(member, path):
            raise AgentError(f"{opened.name!r}: {member.name!r} leads out of the archive's folder")
        if member.issym():
            links.add(path)
        yield member


def _stays(member: tarfile.TarInfo, path: str) -> bool:
    if member.isreg() or member.isdir():
        return True
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
    elif member.islnk():
        target = posixpath.normpath(member.linkname)
    else:
        return False
    return not member.linkname.startswith("/") and target.split("/")[0] == _TOP


def _executable(place: str, version: str) -> str:
    minor = ".".join(version.split(".")[:2])
    return os.path.join(place, _TOP, "bin", f"python{minor}")


def _require_version(path: str, version: str) -> None:
    told = None
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        argv = (path, "-I", "-S", "-B", "-c", _ASK)
        done = subprocess.run(argv, capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
        told = json.loads(done.stdout)
    if told != ["cpython", version]:
        found = " ".join(told) if told else "nothing that starts here"
        message = f"the archive's interpreter is {found}, supply.python says cpython {version}"
        raise AgentError(message, hint="choose an archive for this host's architecture and C library")


def _sweep(layout: Layout) -> None:
    """Remove what a killed session left: under the lock nothing unfinished has an owner."""
    for name in os.listdir(layout.pythons):
        if name.startswith(".tmp-"):
            shutil.rmtree(os.path.join(layout.pythons, name))
