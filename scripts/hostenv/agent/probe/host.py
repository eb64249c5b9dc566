"""The probe: every fact of the host in one answer; what may hang or be slow is asked side by side."""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from hostenv.agent.probe import (
    cudaversion,
    disks,
    driver,
    identity,
    libraries,
    silent,
    smi,
    system,
    units,
    venvs,
)
from hostenv.agent.probe.distributions import Budget
from hostenv.agent.probe.fact import unknown
from hostenv.agent.probe.interpreters import Interpreters
from hostenv.agent.probe.intime import SECONDS, Question, ask
from hostenv.agent.probe.processes import Scan, gpu_holders
from hostenv.agent.probe.toolchain import Toolchain
from hostenv.agent.probe.tree import Tree
from hostenv.agent.probe.uv import Uv

if TYPE_CHECKING:
    from hostenv.agent.probe.fact import Json
    from hostenv.agent.wire import Wire

VERSION = 1
"""Version of the answer's form; it grows when a reader of an older one would misunderstand."""
_PLACES = ("/", "/dev/shm", "/tmp", "~/.cache")  # noqa: S108  looked at, never written


def read(wire: Wire, **questions: Any) -> Json:
    """Return all facts. Nothing is written anywhere on the host.

    Questions (all optional): ``root``, ``disks``, ``venvs``, ``models`` (paths; ``~`` is the agent's home),
    ``units`` (patterns of names), ``commands`` (programs that the service needs), ``libraries`` (SONAMEs),
    ``environment`` (the service's), ``exports`` (whether libraries tell their symbols),
    ``smi_seconds``, ``search_seconds``, ``hash_seconds`` (limits).
    """
    del wire
    return _Probe(questions).read()


class _Probe:
    def __init__(self, questions: Dict[str, Any]) -> None:
        self._questions = questions
        self._began = time.monotonic()
        self._budget = Budget(questions.get("hash_seconds", 0.5))
        try:
            self._mounts = disks.mounts(Tree())
        except OSError:
            self._mounts = []
        self._tree = Tree(silent=silent.mounts(self._mounts))

    def read(self) -> Json:
        kernel = driver.read(self._tree)  # before nvidia-smi, which makes device nodes
        host: Json = {
            "version": VERSION,
            "read_at": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "identity": identity.read(self._tree),
            "system": system.read(self._tree),
        }
        found = self._libraries(host["system"]["cpu"].get("value", {}).get("flags", []))
        told = ask(self._first(found))
        host["libraries"] = {"read": told["libraries"]}
        if self._exports:
            host["libraries"]["present"] = sorted(found.cache.items())
        for name in ("disks", "models"):
            host[name] = told[name]
        for name in ("units", "toolchain", "uv", "interpreters"):
            (host[name],) = told[name]
        then = ask(self._then(told["places"], host["interpreters"]))
        host["venvs"] = venvs.answer(told["places"], then["venvs"], self._budget)
        host["venvs"]["found"] += then["bases"][0]
        (answered,) = told["smi"]
        if "unknown" in answered["cuda"]:
            answered["cuda"] = cudaversion.read(host["libraries"]["read"], answered["cuda"])
        host["driver"] = dict(kernel, smi=answered["driver"], cuda=answered["cuda"])
        host["gpus"] = answered["gpus"]
        host["processes"] = Scan(gpu_holders(answered["gpus"]), self._units, self._budget).run()
        host["seconds"] = round(time.monotonic() - self._began, 3)
        return host

    def _first(self, found: libraries.Libraries) -> Dict[str, List[Question]]:
        """Return what is asked side by side at first: the slowest decides, not the sum."""
        tree, path = self._tree, smi.search_path()
        limit = self._questions.get("smi_seconds", 15.0)
        tools = self._toolchain()
        remote = venvs.remote_mounts([(each.point, each.kind) for each in self._mounts])
        return {
            "smi": [Question(lambda: smi.Smi(path, limit, tree).read(), smi.unread, limit + SECONDS)],
            "interpreters": [
                Question(lambda: Interpreters(path, tree).read(5.0), lambda why: [unknown(why, path)])
            ],
            "toolchain": [Question(lambda: tools.read(5.0), tools.unread)],
            "uv": [Question(lambda: Uv(path, tree).read(5.0), lambda why: unknown(why, f"PATH, {path}"))],
            "libraries": found.questions(self._names(), exports=self._exports),
            "disks": disks.questions(tree, self._mounts, self._disks()),
            "models": units.models(tree, self._paths("models")),
            "units": [units.units(tree, self._units)],
            "places": venvs.search_questions(tree, remote, self._questions.get("search_seconds", 1.0)),
        }

    def _then(self, places: List[Json], interpreters: List[Json]) -> Dict[str, List[Question]]:
        """Return what is asked of what was found."""
        how = "the interpreters' own site-packages"
        bases = Question(
            lambda: venvs.bases(self._tree, interpreters, self._budget),
            lambda reason: [unknown(f"{how}: {reason}", how)],
        )
        wanted = self._paths("venvs")
        return {"venvs": venvs.questions(self._tree, wanted, places, self._budget), "bases": [bases]}

    def _paths(self, name: str) -> List[str]:
        return [os.path.expanduser(path) for path in self._questions.get(name, [])]

    @property
    def _units(self) -> List[str]:
        units: List[str] = self._questions.get("units", [])
        return units

    @property
    def _exports(self) -> bool:
        return bool(self._questions.get("exports"))

    def _environment(self) -> Optional[Dict[str, str]]:
        told = self._questions.get("environment")
        return None if told is None else {name: os.path.expanduser(value) for name, value in told.items()}

    def _toolchain(self) -> Toolchain:
        environment = self._environment()
        wanted = self._questions.get("commands", [])
        if environment and "PATH" in environment:
            return Toolchain(environment, "service.env of the spec", wanted, self._tree)
        login = {name: os.environ[name] for name in ("PATH", "CUDA_HOME", "CUDA_PATH") if name in os.environ}
        return Toolchain(dict(login, **(environment or {})), "the agent's login", wanted, self._tree)

    def _libraries(self, flags: List[str]) -> libraries.Libraries:
        environment = self._environment() or {}
        return libraries.Libraries(
            self._tree, environment.get("LD_LIBRARY_PATH", ""), os.uname().machine, flags
        )

    def _names(self) -> List[str]:
        wanted = self._questions.get("libraries", [])
        return list(dict.fromkeys((*libraries.DRIVER, *libraries.SYSTEM, *wanted)))

    def _disks(self) -> List[str]:
        places = [*self._paths("disks"), *(os.path.expanduser(place) for place in _PLACES)]
        root = self._questions.get("root")
        return list(dict.fromkeys(([os.path.expanduser(root)] if root else []) + places))
