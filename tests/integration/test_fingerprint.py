"""One lock, built by the real uv in two folders: one fingerprint."""

from __future__ import annotations

import os
import pathlib
import platform
import subprocess
import sys

import pytest
import uv

from hostenv.agent import record, tree
from hostenv.facts.distributions import Installed
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from kit.environment import summary_of
from kit.wheels import BuiltWheel, build_wheel

NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
TOOL = "[console_scripts]\ntool = alpha:x\n"
NO_NETWORK = ("error sending request", "dns error", "Failed to fetch", "Could not connect")


def interpreters() -> list[str]:
    """Return interpreters of the running X.Y, one a patch level, the running one first."""
    found = {platform.python_version(): os.path.realpath(sys.executable)}
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    places: list[str | pathlib.Path] = [
        *os.environ.get("PATH", "").split(":"),
        "/usr/bin",
        *pyenv.glob("versions/*/bin"),
    ]
    for path in (pathlib.Path(place, NAME) for place in places):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            argv: list[str | pathlib.Path] = [
                path,
                "-I",
                "-c",
                "import platform; print(platform.python_version())",
            ]
            told = subprocess.run(argv, capture_output=True, text=True, check=False)
            found.setdefault(told.stdout.strip(), str(path))
    return list(found.values())


@pytest.fixture(scope="module")
def pythons() -> list[str]:
    """Return two interpreters: two patch levels where this machine has them."""
    return (interpreters() * 2)[:2]


def run_uv(cache: pathlib.Path, *words: str | pathlib.Path) -> None:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "VIRTUAL_ENV" and (not name.startswith("UV_") or "INDEX" in name)
    }
    fixed = ("--no-progress", "--no-python-downloads", "--cache-dir", str(cache))
    done = subprocess.run(
        [uv.find_uv_bin(), *words, *fixed], env=kept, capture_output=True, text=True, check=False
    )
    if any(mark in done.stderr for mark in NO_NETWORK):
        pytest.skip(f"no package index can be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr


def build(
    folder: pathlib.Path, python: str, *requirements: str | pathlib.Path, relocatable: bool = True
) -> pathlib.Path:
    cache = folder.parent / "cache"
    run_uv(cache, "venv", *(["--relocatable"] if relocatable else []), "--python", python, folder)
    into = ("--link-mode", "copy", "--no-build", "--python", folder / "bin/python")
    run_uv(cache, "pip", "install", *into, *requirements)
    return folder


def build_twice(
    folder: pathlib.Path, pythons: list[str], *requirements: str | pathlib.Path, relocatable: bool = True
) -> list[pathlib.Path]:
    return [
        build(folder / name, python, *requirements, relocatable=relocatable)
        for name, python in zip(("one", "two/deeper"), pythons, strict=True)
    ]


def use_differently(roots: list[pathlib.Path], modules: str) -> None:
    """Compile the one as a finished build does, and import in the other, which leaves bytecode of its own."""
    argv: list[str | pathlib.Path] = [roots[0] / "bin/python", "-I", "-S", "-m", "compileall", "-q"]
    argv += ["--invalidation-mode", "checked-hash", "-s", roots[0], "-p", "/final", roots[0] / "lib"]
    subprocess.run(argv, check=True)
    subprocess.run([roots[1] / "bin/python", "-I", "-c", f"import {modules}"], check=True)
    assert list(roots[1].rglob("*.pyc"))


def fingerprint(root: pathlib.Path) -> str:
    found = summary_of(root)
    assert found["problems"] == []
    assert isinstance(found["fingerprint"], str)
    return found["fingerprint"]


def small_wheel(folder: pathlib.Path, name: str, own: str) -> BuiltWheel:
    files = {f"{name}/m{number}.py": f"x = {number}\n" for number in range(40)}
    scripts = f"{name}-1.0.data/scripts"
    extra = {f"{name}/__init__.py": "x = print\n", f"{name}/é.txt": "x", "build_backend.py": own}
    return build_wheel(
        folder,
        name,
        "1.0",
        {**files, **extra, f"{scripts}/raw-{name}": "#!python\nprint(1)\n"},
        entry_points=TOOL if name == "alpha" else None,
    )


@pytest.mark.parametrize("relocatable", [True, False], ids=["relocatable", "with paths"])
def test_two_builds_of_small_wheels_have_one_fingerprint(
    tmp_path: pathlib.Path, pythons: list[str], *, relocatable: bool
) -> None:
    wheels = [small_wheel(tmp_path, name, "same").path for name in ("alpha", "beta")]
    roots = build_twice(tmp_path, pythons, "--no-index", *wheels, relocatable=relocatable)
    before = fingerprint(roots[0])
    assert fingerprint(roots[1]) == before
    use_differently(roots, "alpha.m1, beta")
    assert [fingerprint(root) for root in roots] == [before, before]


def test_the_agent_surveys_a_build_of_uv(tmp_path: pathlib.Path, pythons: list[str]) -> None:
    wheels = [small_wheel(tmp_path, name, name).path for name in ("alpha", "beta")]
    root = build(tmp_path / "env", pythons[0], "--no-index", *wheels)
    cache = str(tmp_path / "stat")
    sent: list[bytes] = []
    with agent_on(LocalTransport("local"), python=sys.executable) as agent:
        answer = agent.call(
            "record.survey", on_data=sent.append, root=str(root), cache=cache, with_manifest=True
        )
    found = Installed.from_answer(answer, "local")
    assert found.tree.fingerprint == summary_of(root)["fingerprint"]
    assert sent
    assert [each.name for each in found.distributions] == ["alpha", "beta"]
    assert not any(each.mismatched or each.missing or each.problems for each in found.distributions)
    assert found.unowned == {}
    (conflict,) = found.conflicts
    assert (conflict.winner, len(conflict.holders)) == ("beta==1.0", 1)


@pytest.mark.network
def test_two_builds_of_real_wheels_have_one_fingerprint(tmp_path: pathlib.Path, pythons: list[str]) -> None:
    roots = build_twice(tmp_path, pythons, "numpy", "safetensors", "orjson", "httpx[cli]")
    before = fingerprint(roots[0])
    assert fingerprint(roots[1]) == before
    use_differently(roots, "numpy, httpx")
    assert [fingerprint(root) for root in roots] == [before, before]
    described = record.describe(tree.scan(str(roots[0])))
    faults = [each["mismatched"] + each["missing"] + each["problems"] for each in described["distributions"]]
    assert not any(faults)
    assert described["unowned"] == {}
