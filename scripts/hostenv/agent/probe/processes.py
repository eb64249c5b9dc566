"""The processes that hold GPUs or look like servers, and the other namespaces seen beside them."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Tuple

from hostenv.agent.probe import container, elsewhere
from hostenv.agent.probe.fact import Json, UnknownError, reason_of, unknown
from hostenv.agent.probe.intime import SECONDS, Question, ask
from hostenv.agent.probe.masking import masked, masked_text
from hostenv.agent.probe.process import Process, processes
from hostenv.agent.probe.sockets import Listening, listening, ports_of

if TYPE_CHECKING:
    from hostenv.agent.probe.distributions import Budget

_SERVERS = re.compile(
    r"sglang|vllm|tritonserver|text-generation|lmdeploy|ollama|llama[-_.]server|trtllm|launch_server"
    r"|torchserve|aphrodite|tgi-server|dflash",
    re.IGNORECASE,
)
_PYTHON = re.compile(r"python3?(\.\d+t?)?\Z")
_SHELLS = frozenset({"sh", "bash", "dash"})
_DEVICE = re.compile(r"/dev/nvidia(\d+)\Z")
MOST = 200
MOST_NAMESPACES = 256
_SECONDS = 1.5
"""For descriptors of all processes: 500,000 of them take about a second."""


class Held(NamedTuple):
    """What a process has open: minors of GPUs, inodes of sockets."""

    minors: Tuple[int, ...]
    sockets: Tuple[int, ...]


class Scan:
    """One pass over ``/proc``. Processes that end while they are read are left out."""

    def __init__(self, gpu_pids: Dict[int, List[Json]], units: List[str], budget: Budget) -> None:
        self._gpu_pids = gpu_pids
        self._units = frozenset(units)
        self._budget = budget
        self._tables: Dict[int, Listening] = {}
        self._own = container.namespaces()
        self._files: Dict[int, Tuple[Process, List[str]]] = {}
        self._groups: Dict[Tuple[Optional[int], Optional[int]], Json] = {}
        self._deadline = time.monotonic() + _SECONDS
        self.seen = 0
        self.hidden = 0
        self.complete = True

    def run(self) -> Json:
        """Return the processes of interest, the namespaces seen, and how much could not be seen."""
        told: List[Json] = []
        for process in processes():
            if process.pid == os.getpid() or process.is_kernel_thread:
                continue
            try:
                entry = self._look(process)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended
            if entry and len(told) < MOST:
                told.append(entry)
            self.complete = self.complete and not (entry and len(told) >= MOST)
        self._look_at_files(told)
        return {
            "listed": told,
            "seen": self.seen,
            "hidden": self.hidden,
            "complete": self.complete and not self.hidden,
            "namespaces": list(self._groups.values()),
        }

    def _look(self, process: Process) -> Optional[Json]:
        self.seen += 1
        self._group(process)
        held, refused = self._held(process)
        arguments = process.arguments()
        unit = process.unit()
        reasons = []
        if held.minors or process.pid in self._gpu_pids:
            reasons.append("gpu")
        if _SERVERS.search(program(arguments)) or self._is_python_server(process, arguments, held):
            reasons.append("server")
        if unit in self._units:
            reasons.append("unit")
        return self._describe(process, arguments, unit, held, refused, reasons) if reasons else None

    def _describe(  # noqa: PLR0913, PLR0917  all of it describes one process
        self,
        process: Process,
        arguments: List[str],
        unit: Optional[str],
        held: Held,
        refused: Optional[str],
        reasons: List[str],
    ) -> Json:
        self._files[process.pid] = (process, arguments)
        ports = None if refused else ports_of(list(held.sockets), self._table(process))
        return {
            "pid": process.pid,
            "parent": process.parent,
            "name": masked_text(process.name),
            "command": masked(arguments),
            "reasons": reasons,
            "user": process.user(),
            "started": process.started(),
            "memory": process.memory(),
            "unit": unit,
            "container": process.container(),
            "inner_pid": process.inner_pid(),
            "namespaces": process.namespaces(),
            "ports": ports,
            "gpu_minors": None if refused else list(held.minors),
            "gpu_memory": self._gpu_pids.get(process.pid, []),
            "refused": refused,
            "executable": elsewhere.executable(process),
        }

    def _look_at_files(self, told: List[Json]) -> None:
        """Add where the files of each process lie: its disk may hang, and with it who looks there."""
        answers = ask({"files": [self._question(self._files.pop(each["pid"])) for each in told]})["files"]
        for each, files in zip(told, answers):
            each.update(files)

    def _question(self, described: Tuple[Process, List[str]]) -> Question:
        process, arguments = described

        def read() -> Json:
            return {
                "place": elsewhere.place(process, self._own),
                "venv": elsewhere.venv(process, arguments, self._own, self._budget),
            }

        def otherwise(reason: str) -> Json:
            return {name: unknown(reason, process.path("exe")) for name in ("place", "venv")}

        return Question(read, otherwise, self._budget.seconds + SECONDS)

    def _is_python_server(self, process: Process, arguments: List[str], held: Held) -> bool:
        if not held.sockets or not arguments or not _PYTHON.match(os.path.basename(arguments[0])):
            return False
        table = self._table(process)
        return any(inode in table for inode in held.sockets)

    def _held(self, process: Process) -> Tuple[Held, Optional[str]]:
        if time.monotonic() > self._deadline and process.pid not in self._gpu_pids:
            self.complete = False
            return Held((), ()), "not looked at: too many descriptors on this host"
        minors, sockets = set(), []
        try:
            for target in process.open_files():
                if target.startswith("socket:["):
                    sockets.append(int(target[8:-1]))
                    continue
                device = _DEVICE.match(target)
                if device:
                    minors.add(int(device.group(1)))
        except PermissionError as error:
            self.hidden += 1
            return Held((), ()), reason_of(error)
        return Held(tuple(sorted(minors)), tuple(sockets)), None

    def _table(self, process: Process) -> Listening:
        space = process.namespaces().get("net", 0)
        if space not in self._tables:
            self._tables[space] = listening(str(process.pid))
        return self._tables[space]

    def _group(self, process: Process) -> None:
        """Count the process under its namespaces, where they are not the agent's own."""
        try:
            pid, mnt = process.namespace("pid"), process.namespace("mnt")
        except (PermissionError, UnknownError):
            return
        if (pid, mnt) == (self._own.get("pid"), self._own.get("mnt")):
            return
        if (pid, mnt) not in self._groups:
            if len(self._groups) >= MOST_NAMESPACES:
                self.complete = False
                return
            self._groups[pid, mnt] = {
                "pid_namespace": pid,
                "mount_namespace": mnt,
                "container": process.container(),
                "pid": process.pid,
                "processes": 0,
            }
        self._groups[pid, mnt]["processes"] += 1


def gpu_holders(gpus: Json) -> Dict[int, List[Json]]:
    """Return pid → the memory that nvidia-smi's answer says it holds, a GPU each."""
    holders: Dict[int, List[Json]] = {}
    for gpu in gpus.get("value", []):
        for each in gpu["processes"]:
            if each["pid"] is not None:
                told = {"uuid": gpu["uuid"], "index": gpu["index"], "bytes": each["memory"]}
                holders.setdefault(each["pid"], []).append(told)
    return holders


def program(arguments: List[str]) -> str:
    """Return what a command line runs: its program's name, and behind an interpreter its module or script.

    Other arguments do not count: an editor that has ``sglang.py`` open is no server.
    """
    if not arguments:
        return ""
    name = os.path.basename(arguments[0])
    if not _PYTHON.match(name) and name not in _SHELLS:
        return name
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            return f"{name} {next(words, '')}"
        if word in {"-W", "-X"}:
            next(words, "")
        elif word == "-c":
            return name
        elif not word.startswith("-"):
            return f"{name} {os.path.basename(word)}"
    return name
