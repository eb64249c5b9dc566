"""One process as ``/proc`` shows it. Every reading may fail: processes end, and others' are closed."""

from __future__ import annotations

import datetime as dt
import os
import pwd
import re
from typing import Dict, Iterator, List, Optional

from hostenv.agent.probe import container
from hostenv.agent.probe.fact import Json, UnknownError

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of linux/sched.h."""
LONGEST_COMMAND = 1 << 17
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


class Process:
    """A process by its id; ``stat`` is read at once, everything else when asked for."""

    def __init__(self, pid: int, stat: str) -> None:
        self.pid = pid
        # The name stands in parentheses and may hold any byte, parentheses and spaces too.
        opened, closed = stat.find("("), stat.rfind(")")
        fields = stat[closed + 2 :].split()
        if opened < 0 or len(fields) < 22:  # noqa: PLR2004  rss is the last field needed
            raise ValueError(f"/proc/{pid}/stat is not understood")
        self.name = stat[opened + 1 : closed]
        self.parent = int(fields[1])
        self._flags = int(fields[6])
        self._start = int(fields[19])
        self._resident = int(fields[21])
        self._cgroup: Optional[str] = None

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel: no command, no files."""
        return bool(self._flags & _KERNEL_THREAD)

    def path(self, name: str) -> str:
        """Return the path of one of its files in ``/proc``."""
        return f"/proc/{self.pid}/{name}"

    def arguments(self) -> List[str]:
        """Return its command line; a process that writes its own title has one word with spaces."""
        try:
            text = read(self.path("cmdline"), LONGEST_COMMAND)
        except PermissionError:
            return []
        words = text.rstrip("\0").split("\0")
        return words if words != [""] else []

    def open_files(self) -> Iterator[str]:
        """Yield what its descriptors lead to; raises ``PermissionError`` where they are closed to us."""
        folder = self.path("fd")
        for name in os.listdir(folder):
            try:
                yield os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue  # closed meanwhile

    def namespace(self, name: str) -> int:
        """Return the inode of one of its namespaces."""
        target = os.readlink(self.path(f"ns/{name}"))
        return int(target.partition("[")[2].rstrip("]"))

    def namespaces(self) -> Dict[str, int]:
        """Return the inodes of its mount, PID and network namespaces; those closed to us are left out."""
        found = {}
        for name in ("mnt", "pid", "net"):
            try:
                found[name] = self.namespace(name)
            except (PermissionError, FileNotFoundError):
                continue
        return found

    def user(self) -> Optional[str]:
        """Return its owner's name, or number where the host has no name for it."""
        number = os.stat(self.path("")).st_uid
        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def started(self) -> str:
        """Return when it started, UTC, to the second."""
        seconds = _boot_time() + self._start / _TICKS
        return dt.datetime.fromtimestamp(int(seconds), dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def memory(self) -> int:
        """Return its resident memory in bytes."""
        return self._resident * _PAGE

    def cgroup(self) -> str:
        """Return ``/proc/PID/cgroup``, empty where it is closed to us."""
        if self._cgroup is None:
            try:
                self._cgroup = read(self.path("cgroup"), 1 << 16)
            except PermissionError:
                self._cgroup = ""
        return self._cgroup

    def unit(self) -> Optional[str]:
        """Return the innermost systemd unit that holds it, ``None`` where cgroups name none."""
        for line in self.cgroup().splitlines():
            hierarchy, _, rest = line.partition(":")
            controller, _, path = rest.partition(":")
            if hierarchy == "0" or controller == "name=systemd":
                names = _UNIT.findall(path)
                if names:
                    return str(names[-1])
        return None

    def container(self) -> Optional[Json]:
        """Return kind and id of its container, as its control group names it."""
        return container.of_cgroup(self.cgroup())

    def inner_pid(self) -> Optional[int]:
        """Return its id in its own PID namespace, ``None`` where that is ours."""
        match = re.search(r"^NSpid:\s*(.*)$", read(self.path("status"), 1 << 16), re.MULTILINE)
        numbers = match.group(1).split() if match else []
        return int(numbers[-1]) if len(numbers) > 1 else None


def processes() -> Iterator[Process]:
    """Yield every process of this PID namespace, in the order of their ids."""
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            yield Process(pid, read(f"/proc/{pid}/stat", 1 << 14))
        except (OSError, ValueError):
            continue


def read(path: str, limit: int) -> str:
    r"""Return the start of a file of ``/proc``; undecodable bytes become escapes (``\\xff``)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while limit > 0:
            piece = os.read(descriptor, min(limit, 1 << 16))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
    except ProcessLookupError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("utf-8", "backslashreplace")


def _boot_time() -> int:
    match = re.search(r"^btime (\d+)$", read("/proc/stat", 1 << 22), re.MULTILINE)
    if not match:
        raise UnknownError("/proc/stat names no btime")
    return int(match.group(1))
