"""nvidia-smi as a probe meets it: recorded from a real GPU host, old, broken, hanging, absent."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

from hostenv.agent.probe import smi

DATA = pathlib.Path(__file__).parents[1] / "data" / "h200"
UUID = "GPU-5d3f6a52-7c1e-4b0a-9e55-0c1a2b3c4d5e"


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a shell script in nvidia-smi's place and asks it."""
    monkeypatch.setattr(smi, "_PLACES", str(tmp_path))

    def ask(script: str | None, timeout: float = 10.0) -> Any:
        if script is not None:
            program = tmp_path / "nvidia-smi"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        return smi.Smi("", timeout).read()

    return ask


def recorded(name: str, capability: str) -> str:
    return f'case "$1" in -q) cat {DATA / name};; *) {capability};; esac'


def test_a_real_host_at_rest(install: Any) -> None:
    told = install(recorded("nvidia-smi-idle.xml", f"echo '{UUID}, 9.0'"))
    assert told["driver"]["value"] == "580.159.04"
    assert told["cuda"]["value"] == "13.0"
    assert told["gpus"]["value"] == [
        {
            "index": 0,
            "uuid": UUID,
            "name": "NVIDIA H200",
            "pci": "0000:00:06.0",
            "minor": 0,
            "compute_capability": {"value": "9.0", "how": "nvidia-smi --query-gpu=compute_cap"},
            "memory_total": 143771 << 20,
            "memory_used": 0,
            "memory_free": 143156 << 20,
            "mig": "Disabled",
            "mig_devices": [],
            "processes": [],
        }
    ]


def test_processes_and_their_memory(install: Any) -> None:
    told = install(recorded("nvidia-smi-two-processes.xml", f"echo '{UUID}, 9.0'"))
    processes = told["gpus"]["value"][0]["processes"]
    assert [(each["pid"], each["kind"], each["memory"]) for each in processes] == [
        (431, "C", 1634 << 20),
        (528, "C", 1634 << 20),
    ]


def test_an_old_one_without_the_column_tells_all_but_the_compute_capability(install: Any) -> None:
    old = """echo 'Field "compute_cap" is not a valid field to query.'; exit 2"""  # as recorded, exit 2
    told = install(recorded("nvidia-smi-idle.xml", old))
    gpu = told["gpus"]["value"][0]
    assert gpu["name"] == "NVIDIA H200"
    assert (
        gpu["compute_capability"]["unknown"] == 'exit 2: Field "compute_cap" is not a valid field to query.'
    )


def test_one_that_hangs_is_given_up(install: Any) -> None:
    begun = time.monotonic()
    told = install("sleep 60", timeout=0.3)
    assert time.monotonic() - begun < 30
    assert told["gpus"]["unknown"] == "no answer in 0.3 s"
    assert told["cuda"]["unknown"] == "no answer in 0.3 s"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "exit 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("echo 'No devices were found'", "answered: No devices were found"),
        ("true", "answered: nothing"),
        ("echo '<html/>'", "answered XML of another kind: html"),
        ("echo '<nvidia_smi_log><gpu>'", "answered: <nvidia_smi_log><gpu>"),
        ("kill -9 $$", "exit -9: no message"),
    ],
)
def test_an_error_is_the_reason(install: Any, script: str, reason: str) -> None:
    assert install(script)["gpus"]["unknown"] == reason


def test_one_that_cannot_be_started(install: Any, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"\x7fELF garbage")
    program.chmod(0o755)
    assert "cannot be started" in install(None)["gpus"]["unknown"]


def test_none_at_all(install: Any) -> None:
    assert install(None)["gpus"]["unknown"] == "nvidia-smi is not on the host"


def test_endless_output_is_bounded(install: Any) -> None:
    told = install("yes | head -c 20000000", timeout=20.0)
    assert told["gpus"]["unknown"] == "printed more than 16 MiB"
