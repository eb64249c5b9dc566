"""Fetching on the host itself, with this controller's own code for it."""

from __future__ import annotations

import functools
import importlib.util
import io
import pathlib
import urllib.parse
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import hostenv
from hostenv.errors import SupplyError
from hostenv.steps.supply_survey import amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostenv.index.source import Login, Source
    from hostenv.machine.agent import Agent
    from hostenv.spec.lock import Lock
    from hostenv.steps.make import HostPython
    from hostenv.steps.supply_survey import Held

OLDEST = (3, 11)
"""The oldest Python that hostenv's own code runs with."""

_LIBRARIES = ("requests", "urllib3", "idna", "certifi", "charset_normalizer", "truststore")
_CARRIED = (".py", ".pem")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFetch:
    """Fetch what a host lacks into its wheelhouse; ``logins`` are by origin and never shown."""

    root: str
    python: HostPython
    held: Held
    sources: tuple[Source, ...]
    logins: Mapping[str, Login]

    @property
    def size(self) -> int:
        """Bytes to come."""
        return self.held.size

    def plan(self) -> tuple[str, ...]:
        """Say what will be fetched and where."""
        return (f"fetch    {amount(self.held.missing)}, on the host itself, into {self.root}/wheelhouse",)

    def apply(self, agent: Agent, who: Mapping[str, str], *, on_progress: Callable[[int], None]) -> None:
        """Bring them: all or an error; what arrived stays. The host's lock is held.

        Code and logins go through the agent's channel: nothing of them is seen on a command line or left on
        a disk. Raises :class:`~hostenv.errors.HostError` with the cause.
        """
        request = {
            "sources": [asdict(source) for source in self.sources],
            "logins": {place: asdict(login) for place, login in self.logins.items()},
            "wrong": [(entry.sha256, entry.filename, entry.size) for entry in self.held.wrong],
        }

        def on_event(event: Mapping[str, Any]) -> None:
            on_progress(int(event["bytes"]))

        agent.call(
            "wheelhouse.fetch",
            root=self.root,
            who=dict(who),
            python=self.python.path,
            request=request,
            data=[archive()],
            on_event=on_event,
        )


def located(lock: Lock, held: Held) -> tuple[tuple[Source, ...], Mapping[str, Login]]:
    """Ask the controller's uv where the missing wheels lie."""
    from hostenv.steps.locate import locate  # noqa: PLC0415  requests takes 0.1 s to import

    return locate(lock, held.missing)


def is_new_enough(python: HostPython) -> bool:
    """Tell whether an interpreter runs hostenv's own code."""
    return tuple(int(part) for part in python.version.split(".")[:2]) >= OLDEST


def hindrance(agent: Agent, sources: Sequence[Source]) -> str | None:
    """Say why the host cannot fetch ``sources`` itself; ``None`` where it can."""
    parts = [urllib.parse.urlsplit(source.url) for source in sources]
    if any(part.scheme not in _PORTS for part in parts):
        return "some lie in a folder of the controller"
    places = sorted({(part.hostname or "", part.port or _PORTS[part.scheme]) for part in parts})
    faults: list[str] = agent.call("wheelhouse.reach", places=places)
    return f"it does not reach {'; '.join(faults)}" if faults else None


@functools.cache
def archive() -> bytes:
    """Return what the fetch needs as a zip file: hostenv's index and agent, requests and what it stands on.

    About half a megabyte, pure Python: the libraries are those of this environment.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(zipfile.ZipInfo("hostenv/__init__.py"), b"")
        for name, path in (*_own_code(), *_libraries()):
            packed.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _own_code() -> Iterator[tuple[str, pathlib.Path]]:
    top = pathlib.Path(hostenv.__file__).parent
    yield "hostenv/errors.py", top / "errors.py"
    for part in ("index", "agent"):
        for path in sorted((top / part).glob("*.py")):
            yield f"hostenv/{part}/{path.name}", path


def _libraries() -> Iterator[tuple[str, pathlib.Path]]:
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            if name == "charset_normalizer":
                continue  # requests does without it
            raise SupplyError(f"{name} is not in hostenv's environment as a folder of modules")
        folder = pathlib.Path(spec.submodule_search_locations[0])
        for path in sorted(folder.rglob("*")):
            if path.suffix in _CARRIED and path.is_file():
                yield f"{name}/{path.relative_to(folder).as_posix()}", path
