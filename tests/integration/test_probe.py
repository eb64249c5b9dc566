"""Probing hosts: over SSH, side by side; and real namespaces, where the relations must be right."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.checks.same_machine import Kind, relations
from hostenv.errors import UnreachableError
from hostenv.facts.host import HostFacts
from hostenv.facts.host_saved import SavedFacts
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.probe import ProbeOptions, probe
from hostenv.workflows.status import StatusOptions, status
from kit.sshserver import SshServer, new_key, write_client_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostenv.machine.local import LocalChannel
    from hostenv.spec.fleet import Fleet

SPEC = '[host]\nroot = "~/hostenv"\nmode = "observe"\n'
RECORDED = pathlib.Path(__file__).parents[1] / "data" / "h200" / "nvidia-smi-idle.xml"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[SshServer]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "struct.py").write_text("raise SystemExit('the login folder was imported')\n")
    with SshServer(home, client_key=new_key()) as started:
        yield started


@pytest.fixture
def config(tmp_path: pathlib.Path, server: SshServer) -> pathlib.Path:
    def entry(alias: str, port: int) -> str:
        return f"Host {alias}\n  HostName 127.0.0.1\n  Port {port}\n"

    client = tmp_path / "client"
    client.mkdir()
    hosts = entry("one", server.port) + entry("again", server.port) + entry("lost", 1)
    return write_client_config(client, server.client_key, hosts, server.known_hosts_line())


@pytest.fixture
def fleet(tmp_path: pathlib.Path) -> Fleet:
    specs = tmp_path / "envspecs"
    specs.mkdir()
    for name in ("one", "again", "lost"):
        (specs / f"{name}.toml").write_text(SPEC)
    return load_fleet(specs)


def listing(folder: pathlib.Path) -> Mapping[str, tuple[int, ...]]:
    """Return everything below a folder that a write would change; access times aside."""
    states = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {
        path: (state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        for path, state in states.items()
    }


def test_hosts_side_by_side_and_one_that_fails(fleet: Fleet, config: pathlib.Path, server: SshServer) -> None:
    before = listing(server.folder)
    ended: list[tuple[str, bool]] = []
    report = probe(
        fleet,
        fleet.select(["one", "again", "lost"]),
        ProbeOptions(ssh_config=config, python=sys.executable),
        on_host=lambda name, succeeded: ended.append((name, succeeded)),
    )
    assert sorted(ended) == [("again", True), ("lost", False), ("one", True)]
    assert [host.name for host in report.hosts] == ["one", "again", "lost"]
    assert [host.name for host in report.failed] == ["lost"]
    assert isinstance(report.failed[0].error, UnreachableError)
    assert report.hosts[0].host_key
    assert [relation.kind for relation in report.relations] == [Kind.SAME]
    assert listing(server.folder) == before
    assert server.accepted == 2  # one login a host, one command in it
    assert len(server.commands) == 2


def test_saved_facts_can_be_read_again(fleet: Fleet, config: pathlib.Path) -> None:
    options = ProbeOptions(ssh_config=config, python=sys.executable, save=True)
    report = probe(fleet, fleet.select(["one"]), options)
    path = fleet.facts_path(fleet.specs["one"])
    assert report.hosts[0].saved == path
    saved = SavedFacts.load(path).facts
    assert saved.processes is None
    libc = saved.libraries.find("libc.so.6")
    assert libc
    assert libc.exports
    assert saved.libraries.present
    assert report.hosts[0].facts
    assert saved.system.glibc == report.hosts[0].facts.system.glibc


def test_a_host_that_hangs_is_given_up(fleet: Fleet, config: pathlib.Path, tmp_path: pathlib.Path) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    begun = time.monotonic()
    options = ProbeOptions(ssh_config=config, python=str(hanging), timeout=1.0)
    report = probe(fleet, fleet.select(["one"]), options)
    assert time.monotonic() - begun < 40
    assert isinstance(report.hosts[0].error, UnreachableError)
    assert "given up after 1 s" in str(report.hosts[0].error)


def test_status_takes_one_round_trip_and_names_what_differs(
    fleet: Fleet, config: pathlib.Path, server: SshServer
) -> None:
    before = listing(server.folder)
    options = StatusOptions(ssh_config=config, python=sys.executable)
    lines = status(fleet, fleet.select(["one", "lost"]), options)
    assert lines[0].status
    assert lines[0].status.state.generation is None
    assert lines[0].facts_age.unknown == "never saved"
    assert lines[0].identity
    assert "no [identity]" in lines[0].identity
    assert isinstance(lines[1].error, UnreachableError)
    assert len(server.commands) == 1
    assert listing(server.folder) == before


# ---- namespaces ----------------------------------------------------------------------------------

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"),
    reason="needs root, unshare and nsenter",
)


class Inside:
    """Starts commands in the namespaces of a process, as a login there would."""

    def __init__(self, name: str, pid: int, smi: pathlib.Path) -> None:
        self.name = name
        self._enter = (
            "nsenter",
            "-t",
            str(pid),
            "-m",
            "-p",
            "-u",
            "-T",
            "--",
            "env",
            f"PATH={smi}:/usr/bin:/bin",
        )

    def open(self, argv: Sequence[str]) -> LocalChannel:
        return LocalTransport(self.name).open((*self._enter, *argv))

    def close(self) -> None:
        pass


class World:
    """Hosts as namespaces of this machine, each with its machine id, boot id where wanted, and GPU."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def add(self, name: str, *, gpu: str, boot_id: str | None = None, inside: Inside | None = None) -> Inside:
        smi = self._fake_smi(name, gpu)
        covers = {"/etc/machine-id": f"{abs(hash(name)):032x}"[:32]}
        if boot_id:
            covers["/proc/sys/kernel/random/boot_id"] = boot_id
        script = ["set -e", f"hostname {name}"]
        for number, (place, text) in enumerate(covers.items()):
            cover = self._folder / f"{name}-{number}"
            cover.write_text(text + "\n")
            script.append(f"mount --bind {cover} {place}")
        script += ["echo ready", "exec sleep 600"]
        clock = ("--time", "--boottime", "86400") if inside is None and boot_id else ()
        argv = ("unshare", *clock, "-m", "-p", "-u", "-f", "--mount-proc", "--kill-child", "sh", "-c")
        prefix = inside._enter if inside else ()
        child = subprocess.Popen((*prefix, *argv, "; ".join(script)), stdout=subprocess.PIPE)
        self._started.append(child)
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        return Inside(name, _leaf(child.pid), smi)

    def close(self) -> None:
        for child in reversed(self._started):
            child.kill()
            child.wait()
            if child.stdout:
                child.stdout.close()

    def _fake_smi(self, name: str, gpu: str) -> pathlib.Path:
        text = RECORDED.read_text().replace("GPU-5d3f6a52-7c1e-4b0a-9e55-0c1a2b3c4d5e", gpu)
        folder = self._folder / f"{name}-bin"
        folder.mkdir()
        (folder / "log.xml").write_text(text)
        program = folder / "nvidia-smi"
        csv = f"echo '{gpu}, 9.0'"
        program.write_text(f'#!/bin/sh\ncase "$1" in -q) cat {folder}/log.xml;; *) {csv};; esac\n')
        program.chmod(0o755)
        return folder


def _leaf(pid: int) -> int:
    """Return the innermost descendant of a chain of single children."""
    while True:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            return pid
        pid = int(children[0])


def read(host: Inside) -> HostFacts:
    with agent_on(host, python=sys.executable) as agent:
        return HostFacts.from_dict(agent.call("probe.host", root="/opt/hostenv"), name=host.name)


@needs_namespaces
def test_a_container_on_a_host_and_another_machine(tmp_path: pathlib.Path) -> None:
    one, other = "GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"
    with contextlib.closing(World(tmp_path)) as world:
        a = world.add("a", gpu=one)
        b = world.add("b", gpu=one, boot_id="0b0b0b0b-1111-4222-8333-444444444444", inside=a)
        c = world.add("c", gpu=other, boot_id="0c0c0c0c-1111-4222-8333-444444444444")
        hosts = {host.name: read(host) for host in (c, b, a)}
    assert [hosts[name].identity.hostname.value for name in "abc"] == ["a", "b", "c"]
    assert hosts["b"].identity.boot_id_own.value is True
    found = {frozenset((each.first, each.second)): each for each in relations(hosts)}
    container = found[frozenset("ab")]
    assert (container.first, container.second, container.kind) == ("a", "b", Kind.CONTAINER_OF)
    assert found[frozenset("ac")].kind is Kind.DIFFERENT
    assert found[frozenset("bc")].kind is Kind.DIFFERENT


@needs_namespaces
def test_a_server_in_a_container_is_elsewhere_seen_from_its_host(tmp_path: pathlib.Path) -> None:
    gpu = "GPU-00000000-0000-4000-8000-000000000001"
    with contextlib.closing(World(tmp_path)) as world:
        a = world.add("a", gpu=gpu)
        b = world.add("b", gpu=gpu, inside=a)
        serve = "import time; print('ready', flush=True); time.sleep(60)"
        script = tmp_path / "launch_server.py"
        script.write_text(serve)
        running = b.open((sys.executable, "-I", str(script)))
        try:
            assert running.receive(10) == b"ready\n"
            outer, inner = read(a), read(b)
        finally:
            running.close()
    assert outer.processes
    assert inner.processes
    seen = [each for each in outer.processes.listed if str(script) in each.command]
    own = [each for each in inner.processes.listed if str(script) in each.command]
    assert [each.place.value for each in seen] == ["elsewhere"]
    assert [each.place.value for each in own] == ["here"]
    assert seen[0].inner_pid == own[0].pid
