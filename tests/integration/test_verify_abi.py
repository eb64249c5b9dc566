"""verify_abi as an operator calls it: on built environments, against saved facts, running nothing of them."""

from __future__ import annotations

import json
import lzma
import pathlib
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from kit.elf import needs_gcc, shared
from kit.repository import listing
from kit.schema import violations

if TYPE_CHECKING:
    from kit.repository import Repository

TESTS = pathlib.Path(__file__).parents[1]
SCHEMA = json.loads((TESTS.parent / "docs/schema/verify_abi.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def h200(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the saved facts of a real H200 host."""
    saved = tmp_path / "h200.json"
    saved.write_bytes(lzma.decompress((TESTS / "data/h200/facts.json.xz").read_bytes()))
    return saved


NO_IMAGE = 209
"""cudaErrorNoKernelImageForDevice."""


def sample(name: str) -> bytes:
    """Return a library whose kernel was launched on that GPU (tests/data/arch)."""
    with tarfile.open(TESTS / "data/arch/samples.tar.xz") as samples:
        member = samples.extractfile(f"./{name}")
        assert member
        return member.read()


def objects(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["path"]: entry for entry in document["objects"]}


def build(repository: Repository, files: dict[str, str | bytes]) -> None:
    repository.wheel("binaries", "1.0", files, tag="py3-none-any")
    repository.spec("binaries==1.0")
    repository.build_waived()


@needs_gcc
def test_an_object_that_cannot_load_is_an_error_with_its_library_and_its_sound_twin_is_not(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    shared(tmp_path, "libgone.so", "int gone(void) { return 1; }")
    needy = shared(tmp_path, "needy.so", "int gone(void); int f(void) { return gone(); }", "-L.", "-lgone")
    sound = shared(tmp_path, "sound.so", "int f(void) { return 1; }")
    build(repository, {"binaries/needy.so": needy.read_bytes(), "binaries/sound.so": sound.read_bytes()})

    ran = repository.run("verify_abi", hosts=())

    assert ran.failure == "1 of 1 host: local (checks)"
    assert violations(ran.document, SCHEMA) == []
    found = objects(ran.document)
    assert found["binaries/sound.so"]["loads_alone"] is True
    assert found["binaries/needy.so"]["loads_alone"] is False
    assert found["binaries/needy.so"]["alone"]["missing_library"] == "libgone.so"
    (error,) = [each for each in ran.host["checks"]["findings"] if each["severity"] == "error"]
    assert error["object"] == "binaries/needy.so"
    assert "libgone.so" in error["message"]


def test_gpu_code_is_judged_for_the_gpu_of_saved_facts(repository: Repository, h200: pathlib.Path) -> None:
    """The expected verdicts are what an H200 did: truth-h200-first.json, 0 ran and 209 no image."""
    truth = json.loads((TESTS / "data/arch/truth-h200-first.json").read_text(encoding="utf-8"))["results"][
        "plain"
    ]
    names = {"sass90": "runs", "sass120": "no-image", "ptx80": "jit"}
    build(repository, {f"binaries/{name}.so": sample(f"{name}.so") for name in names})

    ran = repository.run("verify_abi", "--facts", str(h200))

    assert violations(ran.document, SCHEMA) == []
    found = objects(ran.document)
    for name, verdict in names.items():
        assert [gpu["verdict"] for gpu in found[f"binaries/{name}.so"]["gpus"]] == [verdict]
        assert (truth[f"{name}.so"]["hostenv_run"] == NO_IMAGE) == (verdict == "no-image")
    assert found["binaries/sass120.so"]["cubins"] == ["sm_120"]
    assert ran.failure == "1 of 1 host: local (checks)"


@needs_gcc
def test_nothing_of_the_environment_runs_and_nothing_in_it_changes(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    trap = tmp_path / "sprung"
    source = (
        f'#include <stdio.h>\n__attribute__((constructor)) void go(void) {{ fclose(fopen("{trap}", "w")); }}'
    )
    mine = shared(tmp_path, "mine.so", source, "-lc")
    build(
        repository,
        {
            "binaries/mine.so": mine.read_bytes(),
            "trap.pth": f"import pathlib; pathlib.Path({str(trap)!r}).touch()\n",
        },
    )
    trap.unlink(missing_ok=True)
    before = listing(repository.current)

    ran = repository.run("verify_abi", "--venv", str(repository.current))

    assert ran.failure is None, ran.message
    assert objects(ran.document)["binaries/mine.so"]["loads_alone"] is True
    assert not trap.exists()
    assert listing(repository.current) == before


def test_nothing_built_is_refused_and_an_unchanged_look_is_kept(repository: Repository) -> None:
    assert "nothing is current" in repository.run("verify_abi").message
    repository.build()
    first, second = repository.run("verify_abi"), repository.run("verify_abi")
    assert first.document == second.document
    assert (repository.current / ".hostenv/objects").exists()
