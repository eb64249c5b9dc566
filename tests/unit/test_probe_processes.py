"""Processes that a probe meets: servers, secrets, odd names, other namespaces, ends in the middle."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent.probe import elsewhere, process, processes
from hostenv.agent.probe.distributions import Budget
from hostenv.agent.probe.processes import Scan, program
from hostenv.agent.probe.sockets import parse
from hostenv.agent.probe.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

READY = "import sys, time; print('ready', flush=True); time.sleep(60)"
can_unshare = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare for namespaces"
)


@pytest.fixture
def start() -> Iterator[Any]:
    """Return a function that starts a program and waits for its first line."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, **options: Any) -> int:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, **options)
        started.append(child)
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield begin
    for child in started:
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()


def scan(*, gpu_pids: dict[int, list[Any]] | None = None, units: tuple[str, ...] = ()) -> dict[str, Any]:
    return Scan(gpu_pids or {}, list(units), Budget(1.0)).run()


def one(told: dict[str, Any], pid: int) -> dict[str, Any]:
    found = [each for each in told["listed"] if each["pid"] == pid]
    assert len(found) == 1, told["listed"]
    return dict(found[0])


def test_a_server_with_its_ports_and_without_its_secrets(
    start: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_neverneverland")
    script = tmp_path / "launch_server.py"
    script.write_text("import socket\ns = socket.create_server(('127.0.0.1', 0))\n" + READY)
    before = time.time()
    pid = start(sys.executable, str(script), "--api-key", "hunter2", "--port", "1")
    told = one(scan(), pid)
    assert told["reasons"] == ["server"]
    assert told["command"][2:] == ["--api-key", "***", "--port", "1"]
    assert "neverland" not in repr(told)
    assert [each["address"] for each in told["ports"]] == ["127.0.0.1"]
    assert told["place"]["value"] == "here"
    assert told["executable"]["value"] == str(pathlib.Path(f"/proc/{pid}/exe").readlink())
    seconds = time.mktime(time.strptime(told["started"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert abs(seconds - before) < 60


def test_ports_of_ipv6_and_all_addresses() -> None:
    with socket.create_server(("", 0)) as server:
        text = pathlib.Path("/proc/self/net/tcp").read_text(encoding="ascii")
        assert ("0.0.0.0", server.getsockname()[1]) in parse(text).values()  # noqa: S104  what is shown
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        text = pathlib.Path("/proc/self/net/tcp6").read_text(encoding="ascii")
        assert parse(text)[os.fstat(server.fileno()).st_ino] == ("::1", server.getsockname()[1])


def test_what_nvidia_smi_names_is_told_with_its_memory(start: Any) -> None:
    pid = start("sh", "-c", "echo ready; sleep 60")
    held = [{"uuid": "GPU-1", "index": 0, "bytes": 1 << 30}]
    told = one(scan(gpu_pids={pid: held}), pid)
    assert told["reasons"] == ["gpu"]
    assert told["gpu_memory"] == held


def test_odd_names_and_huge_command_lines(start: Any) -> None:
    name = b") S 1 (\n\xff\x1b[31m"
    libc = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\n"
    pid = start(sys.executable, "-c", libc + READY, *["x" * 100_000] * 5)
    held: list[Any] = [{"uuid": "GPU-1", "index": 0, "bytes": 1}]
    told = one(scan(gpu_pids={pid: held}), pid)
    assert told["name"] == ") S 1 (\n\\xff\x1b[31m"
    assert told["parent"] == os.getpid()
    assert len(repr(told["command"])) < 50_000


def test_a_process_that_ended_and_one_that_nobody_reaped() -> None:
    zombie = subprocess.Popen(["true"])
    while "(true) Z" not in pathlib.Path(f"/proc/{zombie.pid}/stat").read_text(encoding="ascii"):
        time.sleep(0.01)
    scan(gpu_pids={zombie.pid: []})
    zombie.wait()
    scan(gpu_pids={zombie.pid: []})


def test_one_that_ends_while_it_is_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", READY], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()

    def end(found: process.Process) -> None:
        if found.pid == child.pid:
            child.kill()
            child.wait()
            found.inner_pid()  # raises: /proc/PID is gone

    with child.stdout:
        monkeypatch.setattr(process.Process, "user", end)
        held: list[Any] = [{"uuid": "GPU-1", "index": 0, "bytes": 1}]
        told = scan(gpu_pids={child.pid: held})
    assert child.pid not in {each["pid"] for each in told["listed"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["/root/venv/bin/python", "-m", "sglang.launch_server", "--port", "1"],
            "python sglang.launch_server",
        ),
        (["python3.12", "-u", "-X", "dev", "/srv/server.py"], "python3.12 server.py"),
        (["python3", "-c", "import vllm"], "python3"),
        (["/bin/sh", "/opt/run-vllm.sh"], "sh run-vllm.sh"),
        (["vim", "sglang.py"], "vim"),
        (["sglang::scheduler_TP0"], "sglang::scheduler_TP0"),
        ([], ""),
    ],
)
def test_what_a_command_line_runs(arguments: list[str], told: str) -> None:
    assert program(arguments) == told


@can_unshare
def test_a_process_elsewhere_is_read_in_its_own_root(start: Any, tmp_path: pathlib.Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "opt"
    for folder, version in ((inner, "0.5.15"), (outer, "9.9.9")):
        site = folder / "venv" / "lib" / "python3.11" / "site-packages"
        (site / f"sglang-{version}.dist-info").mkdir(parents=True)
        (folder / "venv" / "pyvenv.cfg").write_text("version = 3.11.7\nhome = /usr/bin\n")
        (folder / "venv" / "bin").mkdir()
        (folder / "venv" / "bin" / "launch_server").write_text("#!/bin/sh\necho ready\nsleep 60\n")
        (folder / "venv" / "bin" / "launch_server").chmod(0o755)
    program = f"{outer}/venv/bin/launch_server"
    pid = start(
        "unshare", "--mount", "--pid", "--fork", "sh", "-c",
        f"mount --bind {inner} {outer} && exec {program}",
    )  # fmt: skip
    told = scan()
    child = next(each for each in told["listed"] if each["parent"] == pid)
    assert child["place"]["value"] == "elsewhere"
    assert child["inner_pid"] == 1
    venv = child["venv"]["value"]
    assert venv["path"] == f"{outer}/venv"
    assert [each["version"] for each in venv["stack"]] == ["0.5.15"]
    assert child["venv"]["how"] == f"/proc/{child['pid']}/root{outer}/venv"
    spaces = (child["namespaces"]["pid"], child["namespaces"]["mnt"])
    assert spaces in {(each["pid_namespace"], each["mount_namespace"]) for each in told["namespaces"]}
    subprocess.run(["kill", "-9", str(child["pid"])], check=True)


@can_unshare
def test_a_mount_namespace_alone_is_not_elsewhere(start: Any) -> None:
    # systemd gives one to every service with PrivateTmp; the files are the host's.
    code = "import sys; print('ready', flush=True); import time; time.sleep(60)"
    pid = start("unshare", "--mount", sys.executable, "-c", code)
    held: list[Any] = [{"uuid": "GPU-1", "index": 0, "bytes": 1}]
    assert one(scan(gpu_pids={pid: held}), pid)["place"]["value"] == "here"


@can_unshare
def test_what_may_not_be_read_is_unknown(tmp_path: pathlib.Path) -> None:
    child = subprocess.Popen(["sh", "-c", "echo ready; sleep 60"], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    code = (
        "import os, sys, json\n"
        f"sys.path.insert(0, {str(pathlib.Path(processes.__file__).parents[3])!r})\n"
        "from hostenv.agent.probe.processes import Scan\n"
        "from hostenv.agent.probe.distributions import Budget\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"held = {{{child.pid}: [{{'uuid': 'GPU-1', 'index': 0, 'bytes': 1}}]}}\n"
        "print(json.dumps(Scan(held, [], Budget(1)).run()))\n"
    )
    python = "/usr/bin/python3" if pathlib.Path("/usr/bin/python3").exists() else sys.executable
    try:
        answer = subprocess.run([python, "-c", code], check=True, capture_output=True, cwd=tmp_path)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    told = one(json.loads(answer.stdout), child.pid)
    assert told["ports"] is None
    assert told["refused"] is not None
    assert "Permission denied" in told["place"]["unknown"]
    assert "Permission denied" in told["venv"]["unknown"]
    assert json.loads(answer.stdout)["hidden"] > 0


def test_an_environment_from_the_maps_of_a_process_with_its_own_title(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
    maps = f"7f00-7f01 r-xp 00000000 08:01 1234    {tmp_path}/lib/python3.11/site-packages/torch/_C.so\n"
    assert elsewhere._of_maps(Tree(), maps) == str(tmp_path)
    assert elsewhere._of_maps(Tree(), maps.replace(str(tmp_path), "/nowhere")) is None
