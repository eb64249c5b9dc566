"""``capture``: what nobody described becomes pins, series and an overlay, and goes to targets."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv.machine import uv
from kit.repository import DEMO, listing
from kit.trio import Trio, digests
from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Repository


@pytest.fixture
def trio(repository: Repository) -> Trio:
    """A venv that uv made by hand: ``demo`` patched, ``own`` from a file, ``kernel`` with another binary."""
    made = Trio(repository=repository)
    repository.wheel(
        "kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'index'\n", "kernel/ops.so": b"\x7fELF\0index"}
    )
    venv = handmade(made)
    build_wheel(repository.folder / "own", "own", "3.0+ours", {"own.py": "OWN = 3\n"})
    (own,) = (repository.folder / "own").glob("*.whl")
    run_uv(
        made, "pip", "install", "-q", "--python", f"{venv}/bin/python", "demo==1.0", "kernel==1.0", str(own)
    )
    (site,) = venv.glob("lib/python3*/site-packages")
    for path in site.rglob("*"):  # uv links files to its cache: an edit must not reach it
        if path.is_file():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
    (site / "demo/__init__.py").write_text(DEMO.replace("1.0", "1.0, by hand"))
    (site / "demo/extra.py").write_text("EXTRA = True\n")
    (site / "demo/words.txt").unlink()
    (site / "kernel/ops.so").write_bytes(b"\x7fELF\0ours" * 100)
    (site / "loose.py").write_text("LOOSE = 1\n")
    return made


def handmade(trio: Trio) -> pathlib.Path:
    """Make an empty venv and the spec of its host, which may only be observed."""
    venv = trio.repository.folder / "hand-made"
    run_uv(trio, "venv", "-q", "--python", sys.executable, str(venv))
    write_spec(trio, venv)
    return venv


def write_spec(trio: Trio, venv: pathlib.Path, head: str = "", more: str = "") -> None:
    (trio.repository.path / "envspecs/ref.toml").write_text(
        f'{head}\n[host]\ntransport = "local"\nroot = {json.dumps(str(trio.root("ref")))}\nmode = "observe"\n'
        f"[capture]\nvenv = {json.dumps(str(venv))}\n{more}"
    )


def run_uv(trio: Trio, *words: str) -> None:
    subprocess.run([str(uv.binary()), *words], check=True, env=trio.repository.environment, cwd="/")


def test_what_works_by_hand_is_described_proven_and_brought_to_two_targets(trio: Trio) -> None:
    venv = trio.repository.folder / "hand-made"
    before = listing(venv)

    ran = trio.done("capture", "ref")

    assert listing(venv) == before
    assert not trio.root("ref").exists()
    assert "all of" in ran.host["headline"]
    text = (trio.repository.path / "envspecs/classes/ref-captured.toml").read_text()
    assert '"demo==1.0"' in text
    assert "own==" not in text
    patches = trio.repository.path / "patches/demo-1.0"
    assert sorted(path.name for path in patches.iterdir()) == ["01-demo.patch", "series"]
    overlay = (trio.repository.path / "overlays/ref-captured.toml").read_text()
    assert 'name = "own"' in overlay
    assert 'name = "kernel"' in overlay
    assert "kernel/ops.so is binary and was changed" in overlay
    assert "[-]" in (trio.repository.path / "overlays/ref-captured.files").read_text()

    write_spec(trio, venv, 'extends = "classes/ref-captured"')
    extends = 'extends = "classes/ref-captured"\n'
    for host in ("one", "two"):
        (trio.repository.path / f"envspecs/{host}.toml").write_text(
            f'{extends}[host]\ntransport = "local"\nroot = {json.dumps(str(trio.root(host)))}\n'
            '[build]\nmin-free = "1MiB"\n[reference]\nhost = "ref"\nmay-differ = ["*.dist-info/*"]\n'
        )
    done = trio.done("sync_patches", "ref", "one", "two")
    assert trio.headlines(done) == {"one": "built, checked and current", "two": "built, checked and current"}
    (site,) = venv.glob("lib/python3*/site-packages")
    for host in ("one", "two"):
        wanted = {path: each for path, each in digests(site).items() if not path.startswith("_virtualenv")}
        found = digests(trio.site(host))
        assert {path: found.get(path) for path in wanted if ".dist-info/" not in path} == {
            path: each for path, each in wanted.items() if ".dist-info/" not in path
        }
    again = trio.done("sync_patches", "ref", "one", "two")
    assert set(trio.headlines(again).values()) == {"nothing to do"}


def test_a_dry_run_says_what_would_be_written(trio: Trio, capsys: pytest.CaptureFixture[str]) -> None:
    trio.done("capture", "ref", "--dry-run")
    shown = capsys.readouterr().err
    assert "series   patches/demo-1.0: 3 file(s) in 1 patch(es)" in shown
    assert "no index serves" in shown or "was installed from file" in shown
    assert not (trio.repository.path / "overlays").exists()
    assert not (trio.repository.path / "envspecs/classes").exists()


def test_what_cannot_be_explained_is_named_and_the_session_fails(trio: Trio) -> None:
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    (site / "orphan").mkdir()
    (site / "orphan/__init__.py").write_text("")
    ran = trio.run("capture", "ref")
    assert "nobody's orphan/__init__.py" in ran.message


def test_editable_installations_are_refused_by_name(trio: Trio) -> None:
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    origin = {"url": "file:///src/demo", "dir_info": {"editable": True}}
    (site / "demo-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    ran = trio.run("capture", "ref")
    assert "demo 1.0: file:///src/demo" in ran.message


def test_a_second_capture_says_the_same(trio: Trio) -> None:
    trio.done("capture", "ref")
    before = digests(trio.repository.path / "patches") | digests(trio.repository.path / "overlays")
    trio.done("capture", "ref")
    assert digests(trio.repository.path / "patches") | digests(trio.repository.path / "overlays") == before
