"""The walk over GPU code: samples against cuobjdump's list, odd files, and damage."""

from __future__ import annotations

import json
import os
import struct
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostenv.agent import gpucode
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from kit import fatbins, pythons

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "data" / "arch"


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    with tarfile.open(DATA / "samples.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def describe(path: Path, content: bytes) -> dict[str, Any]:
    path.write_bytes(content)
    described = gpucode.read(str(path))
    assert described is not None
    return described


def containers(described: dict[str, Any]) -> list[tuple[str, list[str], int]]:
    return [(one["role"], one["images"], one["count"]) for one in described["containers"]]


def test_the_images_are_those_that_cuobjdump_lists(samples: Path) -> None:
    listed = json.loads((DATA / "cuobjdump.json").read_text())
    assert len(listed) == 102
    for name, expected in listed.items():
        described = gpucode.read(str(samples / name)) or {"containers": []}
        images = sorted(
            image.partition(":")[0].removesuffix("f")  # cuobjdump does not tell the f
            for one in described["containers"]
            for image in one["images"] * one["count"]
            if not image.startswith("lto_")  # nor list LTO-IR
        )
        assert images == expected, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sass103f.so", "sm_103f"),
        ("sass120a.so", "sm_120a"),
        ("ptx100f.so", "compute_100f:9.0"),
        ("newer_ptx90.so", "compute_90:9.3"),
        ("rdc_lto80_80.so", "lto_80"),
    ],
)
def test_suffixes_and_ptx_versions_are_told(samples: Path, name: str, expected: str) -> None:
    described = gpucode.read(str(samples / name))
    assert described is not None
    assert expected in {image for one in described["containers"] for image in one["images"]}


@pytest.mark.parametrize("mode", ["default", "size", "speed", "balance", "none"])
def test_every_compression_shows_the_same(samples: Path, mode: str) -> None:
    sass, ptx = (
        gpucode.read(str(samples / f"sass90_{mode}.so")),
        gpucode.read(str(samples / f"ptx80_{mode}.so")),
    )
    assert sass is not None
    assert ptx is not None
    assert ("module", ["sm_90"], 1) in containers(sass)
    assert ("module", ["compute_80:9.0"], 1) in containers(ptx)


def test_the_version_in_the_text_counts_as_it_does_for_the_driver(samples: Path) -> None:
    text, header = gpucode.read(str(samples / "isa_text.so")), gpucode.read(str(samples / "isa_header.so"))
    assert text is not None
    assert header is not None
    assert ("module", ["compute_80:9.3"], 1) in containers(text)
    assert ("module", ["compute_80:9.0"], 1) in containers(header)


def test_what_no_wrapper_registers_is_loose(samples: Path) -> None:
    described = gpucode.read(str(samples / "multi_80ptx_120.so"))
    assert described is not None
    assert sorted(containers(described)) == [
        ("loose", ["sm_120", "sm_80"], 1),
        ("module", ["compute_80:9.0", "sm_120", "sm_80"], 1),
    ]


def test_a_pointer_that_only_the_relocation_holds_is_followed(samples: Path) -> None:
    described = gpucode.read(str(samples / "bare_90.so"))
    assert described is not None
    assert ("module", ["sm_90"], 1) in containers(described)


def test_relocatable_code_is_told_from_its_link(samples: Path) -> None:
    described = gpucode.read(str(samples / "rdc_86_half_ptx80.so"))
    assert described is not None
    assert sorted(containers(described)) == [
        ("linked", ["sm_86"], 1),
        ("relocatable", ["compute_80:9.0", "sm_86"], 1),
        ("relocatable", ["sm_86"], 1),
    ]


def test_equal_containers_are_counted(tmp_path: Path) -> None:
    one = fatbins.container(fatbins.entry(2, 90, b"x" * 40, flags=0x100000), fatbins.entry(2, 80, b"y" * 8))
    other = fatbins.container(fatbins.entry(16, 90))
    described = describe(tmp_path / "a.so", fatbins.registered(one, other, one))
    assert containers(described) == [("module", ["sm_80", "sm_90a"], 2), ("module", ["kind16_90"], 1)]
    assert described["problem"] is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[: 64 + 40], None),
        (lambda data: data.replace(struct.pack("<I", 0xBA55ED50), b"\1\2\3\4", 1), "no container"),
        (
            lambda data: data.replace(struct.pack("<HHI", 2, 0x101, 64), struct.pack("<HHI", 2, 0x101, 0)),
            "size",
        ),
        (lambda data: data.replace(struct.pack("<Q", 40), struct.pack("<Q", 1 << 63), 1), "size"),
        (
            lambda data: data.replace(struct.pack("<HHQ", 1, 16, 104), struct.pack("<HHQ", 1, 16, 999)),
            "beyond",
        ),
        (lambda data: data.replace(struct.pack("<HHQ", 1, 16, 104), struct.pack("<HHQ", 1, 16, 90)), "size"),
    ],
)
def test_damage_is_a_problem_with_its_place(
    tmp_path: Path, change: Callable[[bytes], bytes], problem: str | None
) -> None:
    sound = fatbins.registered(fatbins.container(fatbins.entry(2, 90, b"x" * 40)))
    path = tmp_path / "a.so"
    path.write_bytes(change(sound))
    described = gpucode.read(str(path))
    if problem is None:
        assert described is None
    else:
        assert described is not None
        assert problem in described["problem"]
        assert "offset 0x" in described["problem"]


def test_a_section_beyond_the_file_is_a_problem(tmp_path: Path) -> None:
    data = bytearray(fatbins.registered(fatbins.container(fatbins.entry(2, 90, b"x" * 40))))
    at = struct.unpack_from("<Q", data, 40)[0] + 64
    struct.pack_into("<Q", data, at + 32, 1 << 63)
    assert "beyond the file" in describe(tmp_path / "a.so", bytes(data))["problem"]


def test_what_stood_before_the_damage_is_kept(tmp_path: Path) -> None:
    sound = fatbins.container(fatbins.entry(2, 90, b"x" * 40))
    described = describe(tmp_path / "a.so", fatbins.registered(sound, b"rubbish!" * 4))
    assert containers(described) == [("module", ["sm_90"], 1)]
    assert "no container" in described["problem"]


def test_other_files_have_no_gpu_code(tmp_path: Path) -> None:
    for content in (
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n",
        b"\x7fELF\x01\x01" + bytes(100),
        fatbins.elf([(b".text", b"x")]),
    ):
        path = tmp_path / "a.so"
        path.write_bytes(content)
        assert gpucode.read(str(path)) is None


def test_a_fifo_or_a_folder_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.so")
    assert gpucode.read(str(tmp_path / "a.so")) is None
    assert gpucode.read(str(tmp_path)) is None


def test_many_tiny_images_end(tmp_path: Path) -> None:
    described = describe(
        tmp_path / "a.so", fatbins.registered(fatbins.container(fatbins.entry(2, 90) * 300_000))
    )
    assert "more than" in described["problem"]


@settings(
    max_examples=400,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    name=st.sampled_from(["sass90a", "multi_80ptx_120", "rdc_86_half_ptx80", "ptx80_speed", "pair_90_80"]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=8),
    headers=st.lists(st.tuples(st.integers(0, 11), st.binary(min_size=8, max_size=8)), max_size=3),
    cut=st.floats(0, 1),
)
def test_no_damage_stops_the_walk(  # noqa: PLR0913, PLR0917  hypothesis gives by name what the test takes
    samples: Path,
    tmp_path: Path,
    name: str,
    changes: list[tuple[float, bytes]],
    headers: list[tuple[int, bytes]],
    cut: float,
) -> None:
    data = bytearray((samples / f"{name}.so").read_bytes())
    starts = [at for at in range(0, len(data) - 8, 8) if data[at : at + 4] == b"\x50\xed\x55\xba"]
    for word, content in headers:
        at = starts[word % len(starts)] + 8 * word
        data[at : at + 8] = content
    for place, content in changes:
        at = int(place * (len(data) - 8))
        data[at : at + len(content)] = content
    path = tmp_path / "a.so"
    path.write_bytes(data[: int(cut * len(data))] if cut < 0.5 else data)
    described = gpucode.read(str(path))
    assert described is None or set(described) == {"containers", "problem"}
    json.dumps(described)


def test_the_agent_describes_a_folder(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.so.1").write_bytes((samples / "sass90a.so").read_bytes())
    (tmp_path / "plain.so").write_text("text")
    (tmp_path / "notes.txt").write_bytes((samples / "sass90a.so").read_bytes())
    (tmp_path / "link.so").symlink_to("inner/b.so.1")
    (tmp_path / "loop.so").symlink_to(tmp_path)
    with agent_on(LocalTransport("here"), python=sys.executable) as agent:
        answer = agent.call("abi.gpu_code", root=str(tmp_path))
        named = agent.call("abi.gpu_code", root=str(tmp_path), paths=["inner/b.so.1", "gone.so"])
    assert list(answer["objects"]) == ["inner/b.so.1"]
    assert answer["unreadable"] == {}
    assert list(named["objects"]) == ["inner/b.so.1"]
    assert named["unreadable"] == {"gone.so": "No such file or directory"}


@pytest.mark.parametrize("version", pythons.FAR_SIDES)
def test_every_python_walks_alike(samples: Path, version: str) -> None:
    python = pythons.find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    with agent_on(LocalTransport("here"), python=python) as agent:
        answer = agent.call("abi.gpu_code", root=str(samples))
    assert len(answer["objects"]) == 102
    assert answer["objects"]["sass90a.so"] == gpucode.read(str(samples / "sass90a.so"))
