"""The probe: every fact of the host in one answer, in an order that lets slow programs work meanwhile."""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from hostenv.agent.probe import cudaversion, disks, driver, identity, libraries, system, units, venvs
from hostenv.agent.probe.distributions import Budget
from hostenv.agent.probe.interpreters import Interpreters
from hostenv.agent.probe.processes import Scan, gpu_holders
from hostenv.agent.probe.smi import Smi, search_path
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
    return _Probe(Tree(), questions).read()


class _Probe:
    def __init__(self, tree: Tree, questions: Dict[str, Any]) -> None:
        self._tree = tree
        self._questions = questions
        self._began = time.monotonic()
        self._budget = Budget(questions.get("hash_seconds", 0.5))

    def read(self) -> Json:
        kernel = driver.read(self._tree)  # before nvidia-smi, which makes device nodes
        path = search_path()
        smi = Smi(path, self._questions.get("smi_seconds", 15.0))
        pythons = Interpreters(path)
        tools = self._toolchain()
        uv = Uv(path)
        host: Json = {
            "version": VERSION,
            "read_at": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "identity": identity.read(self._tree),
            "system": system.read(self._tree),
        }
        flags = host["system"]["cpu"].get("value", {}).get("flags", [])
        host["libraries"] = self._libraries(flags)
        host["disks"] = disks.read(self._tree, self._disks())
        host["venvs"] = self._venvs()
        host["models"] = units.models(self._tree, self._paths("models"))
        host["units"] = units.units(self._tree, self._questions.get("units", []))
        host["interpreters"] = pythons.read(5.0)
        host["venvs"]["found"] += venvs.bases(self._tree, host["interpreters"], self._budget)
        host["toolchain"] = tools.read(5.0)
        host["uv"] = uv.read(5.0)
        answered = smi.read()
        if "unknown" in answered["cuda"]:
            answered["cuda"] = cudaversion.read(host["libraries"]["read"], answered["cuda"])
        host["driver"] = dict(kernel, smi=answered["driver"], cuda=answered["cuda"])
        host["gpus"] = answered["gpus"]
        host["processes"] = self._processes(answered["gpus"])
        host["seconds"] = round(time.monotonic() - self._began, 3)
        return host

    def _paths(self, name: str) -> List[str]:
        return [os.path.expanduser(path) for path in self._questions.get(name, [])]

    def _environment(self) -> Optional[Dict[str, str]]:
        told = self._questions.get("environment")
        return None if told is None else {name: os.path.expanduser(value) for name, value in told.items()}

    def _toolchain(self) -> Toolchain:
        environment = self._environment()
        wanted = self._questions.get("commands", [])
        if environment and "PATH" in environment:
            return Toolchain(environment, "service.env of the spec", wanted)
        login = {name: os.environ[name] for name in ("PATH", "CUDA_HOME", "CUDA_PATH") if name in os.environ}
        return Toolchain(dict(login, **(environment or {})), "the agent's login", wanted)

    def _libraries(self, flags: List[str]) -> Json:
        environment = self._environment() or {}
        found = libraries.Libraries(
            self._tree, environment.get("LD_LIBRARY_PATH", ""), os.uname().machine, flags
        )
        names = dict.fromkeys((*libraries.DRIVER, *libraries.SYSTEM, *self._questions.get("libraries", [])))
        exports = bool(self._questions.get("exports"))
        answer: Json = {"read": found.read(list(names), exports=exports)}
        if exports:
            answer["present"] = sorted(found.cache.items())
        return answer

    def _disks(self) -> List[str]:
        places = [*self._paths("disks"), *(os.path.expanduser(place) for place in _PLACES)]
        root = self._questions.get("root")
        return list(dict.fromkeys(([os.path.expanduser(root)] if root else []) + places))

    def _venvs(self) -> Json:
        try:
            table = [(each.point, each.kind) for each in disks.mounts(self._tree)]
        except OSError:
            table = []
        seconds = self._questions.get("search_seconds", 1.0)
        return venvs.read(self._tree, self._paths("venvs"), venvs.remote_mounts(table), seconds, self._budget)

    def _processes(self, gpus: Json) -> Json:
        return Scan(gpu_holders(gpus), self._questions.get("units", []), self._budget).run()
