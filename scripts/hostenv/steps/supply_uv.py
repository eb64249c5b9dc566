"""The uv that makes builds on a host behind SSH: this controller's release, brought by hash."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import SupplyError, UnreachableError
from hostenv.machine import uv
from hostenv.machine.bulk import File
from hostenv.spec.lock import Lock, LockEntry
from hostenv.spec.lockplatform import LockPlatform
from hostenv.steps.fetch import wheel_of
from hostenv.steps.supply_stream import Total

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostenv.machine.agent import Agent
    from hostenv.steps.depot import Depot
    from hostenv.steps.pylock import PylockPackage
    from hostenv.steps.supply_stream import Sender

_ANY_PLATFORM = {"python": "3.12", "glibc": "2.17"}
"""uv's wheels are for every Python 3 and manylinux_2_17 (0.13.9)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UvBinary:
    """A uv executable on the controller that runs on hosts of one architecture."""

    version: str
    path: pathlib.Path
    sha256: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size

    def place(self, root: str) -> str:
        """Return where it lies on a host: a folder that its bytes name."""
        return f"{root}/tools/uv-{self.version}-{self.sha256[:16]}/{self.path.name}"


def own_version() -> str:
    """Return the version of the uv in hostenv's own environment."""
    import importlib.metadata  # noqa: PLC0415  15 ms; only hosts behind SSH need it

    return importlib.metadata.version("uv")


def is_own_arch(arch: str) -> bool:
    """Tell whether hosts of ``arch`` (as ``uname -m`` says) can run the controller's own uv."""
    return platform.machine() == arch and platform.system() == "Linux"


@functools.cache
def own_binary() -> UvBinary:
    """Return the controller's own uv; it is hashed once a process."""
    path = uv.binary().resolve()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return UvBinary(version=own_version(), path=path, sha256=digest)


def is_there(agent: Agent, root: str, binary: UvBinary) -> bool:
    """Tell whether the host has it, with these bytes: it is hashed there."""
    digest: str | None = agent.call("file.digest", path=binary.place(root))
    return digest == binary.sha256


def bring(reach: Sender, root: str, binary: UvBinary, *, on_progress: Callable[[int], None]) -> str:
    """Put the executable on the host where it is not there; return its path. The host's lock is held."""
    if not is_there(reach.agent, root, binary):
        file = File(path=binary.path.name, size=binary.size, sha256=binary.sha256)
        folder = binary.place(root).rpartition("/")[0]
        try:
            reach.send_files(binary.path.parent, folder, [file], on_progress=Total(on_progress).add)
        except UnreachableError as error:
            hint = "run the session again: uv is sent anew, what else is there stays"
            raise UnreachableError(f"{error.message}, while uv was sent", hint=error.hint or hint) from error
    return binary.place(root)


def binary_for(arch: str, depot: Depot) -> UvBinary:
    """Return a uv that runs on ``arch``: the controller's own, or the one out of uv's wheel for it.

    The wheel is of the controller's release and comes from the index that uv is told of, once. Raises
    :class:`~hostenv.errors.SupplyError` where there is none.
    """
    if is_own_arch(arch):
        return own_binary()
    with depot.turn(f"uv {arch}"):
        folder = depot.folder.parent / "tools" / f"uv-{own_version()}-{arch}"
        if not (folder / "uv").exists():
            _unpack(_wheel(arch, depot), folder)
        with (folder / "uv").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return UvBinary(version=own_version(), path=folder / "uv", sha256=digest)


def _wheel(arch: str, depot: Depot) -> pathlib.Path:
    """Fetch uv's wheel for an architecture, checked by the hash that the index states."""
    try:
        target = LockPlatform(arch=arch, **_ANY_PLATFORM)
    except ValueError as error:
        raise SupplyError(f"there is no uv for {arch}: {error}") from error
    entry = _located(target)
    lock = Lock(name="uv", platform=target, inputs=(), entries=(entry,))
    depot.fill(lock, lock.entries, on_start=lambda _: None, on_progress=lambda _: None)
    return depot.path(wheel_of(entry))


def _located(target: LockPlatform) -> LockEntry:
    from hostenv.steps.compile import compile_pylock, no_wheel  # noqa: PLC0415  for another arch only

    with uv.scratch() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "requires.in").write_text(f"uv==={own_version()}\n", encoding="utf-8")
        packages = compile_pylock(["requires.in", "--no-deps"], target, folder)
    wheel = next((_best(package, target) for package in packages if package.name == "uv"), None)
    if wheel is None:
        raise no_wheel([f"uv {own_version()}"], target)
    return wheel


def _best(package: PylockPackage, target: LockPlatform) -> LockEntry | None:
    wheel = package.best(target)
    if wheel is None or wheel.sha256 is None or wheel.size is None:
        return None
    return LockEntry(
        name="uv", version=package.version, sha256=wheel.sha256, filename=wheel.filename, size=wheel.size
    )


def _unpack(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """Take the executable out of a wheel, beside its place, then rename."""
    member = f"uv-{own_version()}.data/scripts/uv"
    folder.mkdir(parents=True, exist_ok=True)
    import zipfile  # noqa: PLC0415  15 ms; only hosts of another architecture need it

    descriptor, beside = tempfile.mkstemp(prefix=".tmp-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(wheel) as archive:
            file.write(archive.read(member))
            os.fchmod(file.fileno(), 0o755)
        pathlib.Path(beside).replace(folder / "uv")
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise SupplyError(f"{wheel.name}: no uv can be taken out of it: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path(beside).unlink()
