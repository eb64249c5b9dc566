"""The probe on real hosts: b is a container on a, c is another machine."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest

from hostenv.checks.free_gpus import Use, gpu_uses
from hostenv.checks.same_machine import Kind
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.probe import ProbeOptions, probe
from kit.fleet import Fleet, missing_fleet, recorded_smi
from kit.silentfs import missing_fuse

if TYPE_CHECKING:
    from hostenv.workflows.probe import ProbeReport

pytestmark = pytest.mark.fleet
DATA = pathlib.Path(__file__).parents[1] / "data" / "h200"
RECORDED_UUID = "GPU-5d3f6a52-7c1e-4b0a-9e55-0c1a2b3c4d5e"
ONE, OTHER = (f"GPU-00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
VENV = "opt/sglang/venv"
STACK = "lib/python3.11/site-packages/sglang-{}.dist-info/RECORD"


def smi(uuid: str, recording: str = "nvidia-smi-idle.xml") -> str:
    log = (DATA / recording).read_text(encoding="utf-8").replace(RECORDED_UUID, uuid)
    capability = "--query-gpu=uuid,compute_cap --format=csv,noheader"
    return recorded_smi({"-q -x": log, capability: f"{uuid}, 9.0"})


def venv(version: str) -> dict[str, str]:
    return {
        f"{VENV}/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n",
        f"{VENV}/{STACK.format(version)}": "",
        f"{VENV}/bin/launch_server": "#!/bin/sh\nsleep 600\n",
    }


def run(fleet: Fleet, folder: pathlib.Path, *names: str) -> ProbeReport:
    for name in names:
        (folder / f"{name}.toml").write_text('[host]\nroot = "~/hostenv"\nmode = "observe"\n')
    specs = load_fleet(folder)
    return probe(specs, specs.select(names), ProbeOptions(ssh_config=fleet.client_config))


def test_a_container_on_a_host_and_another_machine(tmp_path: pathlib.Path) -> None:
    missing = missing_fleet()
    if missing:
        pytest.skip(missing)
    with Fleet() as fleet:
        a = fleet.add("a", files={"usr/bin/nvidia-smi": smi(ONE), **venv("9.9.9")})
        b = fleet.add("b", inside=a, files={"usr/bin/nvidia-smi": smi(ONE), **venv("0.5.15")})
        c = fleet.add("c", files={"usr/bin/nvidia-smi": smi(OTHER)})
        b.run("sh", "-c", f"/{VENV}/bin/launch_server </dev/null >/dev/null 2>&1 &")
        before = [host.listing() for host in (a, b, c)]
        report = run(fleet, tmp_path, "a", "b", "c")
        assert [host.listing() for host in (a, b, c)] == before
        assert report.failed == ()
        for host in report.hosts:
            assert host.host_key == fleet.hosts[host.name].fingerprint

    found = {(each.first, each.second): each.kind for each in report.relations}
    assert found == {
        ("a", "b"): Kind.CONTAINER_OF,
        ("a", "c"): Kind.DIFFERENT,
        ("b", "c"): Kind.DIFFERENT,
    }
    outer, inner = (host.facts for host in report.hosts[:2])
    assert outer
    assert inner
    assert outer.processes
    assert inner.processes
    [seen] = [each for each in outer.processes.listed if f"/{VENV}/bin/launch_server" in each.command]
    [own] = [each for each in inner.processes.listed if f"/{VENV}/bin/launch_server" in each.command]
    assert (seen.place.value, own.place.value) == ("elsewhere", "here")
    assert seen.inner_pid == own.pid
    for process in (seen, own):  # never the version that lies at the same path of the host
        assert process.venv.value
        assert [member.version for member in process.venv.value.stack] == ["0.5.15"]
    assert [use.use for use in gpu_uses(outer).value] == [Use.FREE]


def test_nvidia_smi_that_fails_leaves_the_rest(tmp_path: pathlib.Path) -> None:
    missing = missing_fleet()
    if missing:
        pytest.skip(missing)
    broken = "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    with Fleet() as fleet:
        fleet.add("a", files={"usr/bin/nvidia-smi": broken})
        [host] = run(fleet, tmp_path, "a").hosts
    assert host.facts
    assert host.facts.gpus.unknown == "exit 18: Failed to initialize NVML: Driver/library version mismatch"
    assert host.facts.identity.machine_id.is_known


DEAD = "/mnt/models"
ON_IT = f"""\
[host]
root = "{DEAD}/hostenv"
link = "/srv/leads-there"
mode = "observe"
[supply]
wheelhouse = "{DEAD}/wheels"
[[models]]
path = "{DEAD}/Qwen"
[[models]]
path = "/opt/sglang"
[system]
libraries = ["libelsewhere.so.1"]
[service]
[service.env]
PATH = "{DEAD}/bin:/usr/bin:/bin"
CUDA_HOME = "{DEAD}/cuda"
LD_LIBRARY_PATH = "{DEAD}/lib"
"""


def test_a_mount_that_does_not_answer_is_told_and_the_rest_is_read(tmp_path: pathlib.Path) -> None:
    missing = missing_fleet() or missing_fuse()
    if missing:
        pytest.skip(missing)
    (tmp_path / "a.toml").write_text(ON_IT)
    with Fleet() as fleet:
        host = fleet.add("a", files={"usr/bin/nvidia-smi": smi(ONE), **venv("0.5.15")})
        host.run("ln", "-s", f"{DEAD}/venv", "/srv/leads-there")
        host.run("ln", "-s", DEAD, "/data")
        with host.silent_mount(DEAD):
            specs = load_fleet(tmp_path)
            options = ProbeOptions(ssh_config=fleet.client_config)
            [probed] = probe(specs, specs.select(["a"]), options).hosts
        left = host.run("sh", "-c", "ps axo args= | grep -c '[m]emfd_create' || true")
    facts = probed.facts
    assert facts, probed.error
    disks = {disk.how.split()[2].rstrip(","): disk for disk in facts.disks}
    reasons = [disks[f"{DEAD}/hostenv"].unknown, disks[f"{DEAD}/wheels"].unknown, facts.models[0].unknown]
    reasons += [facts.toolchain.cuda_home.unknown, facts.libraries.read[0].unknown]
    reasons += [each.unknown for each in facts.venvs.found if each.how == "named in the spec"]
    for reason in reasons:
        assert reason
        assert f"{DEAD} (fuse.silent, silent) does not tell its size: no answer in 4 s" in reason
    assert disks["/"].is_known
    assert facts.identity.machine_id.value == host.machine_id
    assert facts.models[1].value.exists
    found = [each.value.path for each in facts.venvs.found if each.is_known]
    assert f"/{VENV}" in found
    assert [use.use for use in gpu_uses(facts).value] == [Use.FREE]
    assert int(left) == 0
