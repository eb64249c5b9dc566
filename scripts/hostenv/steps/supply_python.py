"""The interpreter of a build: one that the host has, or one out of the archive that its spec names."""

from __future__ import annotations

import pathlib
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.agent.wheelhouse import Wheel
from hostenv.errors import HostError, InputError, SupplyError
from hostenv.steps.make import HostPython, choose_python, pythons_of
from hostenv.steps.supply_relay import ByRelay
from hostenv.steps.supply_stream import send
from hostenv.steps.supply_survey import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import PurePosixPath

    from hostenv.machine.agent import Agent
    from hostenv.spec.environment import PythonArchive
    from hostenv.spec.spec import Spec
    from hostenv.steps.depot import Depot
    from hostenv.steps.supply_stream import Sender


@dataclass(frozen=True, kw_only=True, slots=True)
class BringPython:
    """Unpack an archive under the host's root; ``path`` is where it lies there, ``None``: to be sent."""

    archive: PythonArchive
    root: str
    path: str | None

    def plan(self) -> tuple[str, ...]:
        """Say what will be made."""
        source = f"from {self.path}" if self.path else "sent by hash"
        return (f"python   {self.archive.version}: {self.archive.file}, {source}, to {self.root}/pythons",)

    def apply(
        self, reach: Sender, depot: Depot, who: Mapping[str, str], *, on_progress: Callable[[int], None]
    ) -> HostPython:
        """Send the archive where the host lacks it, unpack it, and return the interpreter.

        A relay fetches it by itself where it can.

        The host's lock is held. Raises :class:`SupplyError` where the archive cannot be had,
        :class:`HostError` where it is another one, leads out of its folder, or does not start there.
        """
        path = self.path
        if path is None:
            file = reach.fetched(self.archive) if isinstance(reach, ByRelay) else None
            file = file or _on_controller(self.archive, depot)
            send(reach, self.root, depot.folder, [file], on_progress=on_progress)
            path = f"{self.root}/wheelhouse/{file.sha256}/{file.filename}"
        answer = reach.agent.call(
            "interpreters.unpack",
            root=self.root,
            who=dict(who),
            archive=path,
            sha256=self.archive.sha256,
            version=str(self.archive.version),
        )
        return HostPython(path=answer["path"], version=answer["version"])


def choose(spec: Spec, agent: Agent, root: str, minor: str) -> HostPython | BringPython:
    """Return the host's newest CPython of a minor version, or how it gets one.

    Raises :class:`HostError` where there is none and the spec names no archive of that version.
    """
    for python in pythons_of(agent, minor, root=root):
        return python
    archive = spec.supply.python
    if archive is None or not _is_minor(archive, minor):
        try:
            return choose_python(agent, minor, spec.name)  # raises, saying what is there
        except HostError as error:
            named = f"; supply.python is {archive.version}" if archive else ""
            hint = f"{error.hint}; or name an archive of one in [supply.python]"
            raise HostError(error.message + named, hint=hint) from None
    if archive.file.endswith(".zst"):
        raise InputError(
            f"{spec.path.name}: supply.python.file: a host's python3 cannot unpack .tar.zst",
            hint="take the install_only archive, a .tar.gz",
        )
    (found,) = find(agent, root, [(archive.sha256, archive.file, 0)], given=_given(spec), remember=False)
    return BringPython(archive=archive, root=root, path=found.path)


def _is_minor(archive: PythonArchive, minor: str) -> bool:
    return ".".join(str(archive.version).split(".")[:2]) == minor


def _given(spec: Spec) -> PurePosixPath | None:
    return spec.supply.wheelhouse


def _on_controller(archive: PythonArchive, depot: Depot) -> Wheel:
    """Return the archive as the controller's wheelhouse holds it; fetched where the spec says from where."""
    file = Wheel(archive.sha256, archive.file, 0)
    with depot.turn(archive.sha256):
        if not depot.holds(file):
            if archive.url is None:
                raise SupplyError(
                    f"{archive.file} is neither on the host nor in {depot.folder}",
                    hint=f"put it at {depot.path(file)}, or set supply.python.url",
                )
            _fetch(archive, archive.url, depot)
        size = depot.path(file).stat().st_size
    return Wheel(archive.sha256, archive.file, size)


def _fetch(archive: PythonArchive, url: str, depot: Depot) -> None:
    from hostenv.index.fetch import fetch, size_of  # noqa: PLC0415  requests takes 0.1 s to import
    from hostenv.index.source import Source  # noqa: PLC0415

    parts = urllib.parse.urlsplit(url)
    local = pathlib.Path(urllib.parse.unquote(parts.path)) if parts.scheme == "file" else None
    size = local.stat().st_size if local and local.exists() else size_of(url, {})
    fetch(
        [Source(sha256=archive.sha256, filename=archive.file, size=size, url=url)],
        depot.house,
        logins={},
        stop=depot.stopped,
    )
