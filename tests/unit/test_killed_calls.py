"""Killed at every single call to the kernel that changes a file: nothing is half done, and again it ends.

strace delivers the signal as the call begins. Where it is not there, random moments stand for it
(``tests/integration/test_sync_killed.py``); of a hundred of those, all calls are part.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hostenv

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, NEW = "0" * 16, "1" * 16
CALLS = (
    *("mkdir", "mkdirat", "rmdir", "symlink", "symlinkat", "unlink", "unlinkat"),
    *("rename", "renameat", "renameat2", "write", "pwrite64", "ftruncate", "fchmod", "fsync", "syncfs"),
)
MANY = 100
HELD = {"by": "us", "why": "before"}
KILLED = (-9, 137)
"""What strace ends with after its child was killed, in its versions."""

START = f"""\
import json, sys
sys.path.insert(0, {str(pathlib.Path(hostenv.__file__).parents[1])!r})
given = json.loads(sys.argv[1])
"""
IMPORTS = """\
from hostenv.agent import generations, layout, place, stream
from hostenv.agent.store import Place, Store
from hostenv.agent.wire import Wire
wire = Wire(-1, -1)
"""
ACTIVATE = """\
state = layout.state(wire, given["root"])
seen = {"generation": state["generation"], "hold": (state["hold"] or {}).get("since")}
generations.activate(wire, receipt={}, who={}, seen=seen, **given)
"""
LAND = """\
place.begin(root=given["root"], label="t")
landing = place.Landing(given["root"], "t")
landing.receive(stream.send(given["source"], [stream.Wanted(*each) for each in given["files"]]))
landing.settle()
landing.close()
"""
TAKE = """\
store = Store(given["root"])
store.prepare()
for path, sha256, size in given["files"]:
    assert store.take(Place(path), sha256, size)
"""


def may_trace() -> str | None:
    """Say why no call can be traced here; ``None`` where it can."""
    if not shutil.which("strace"):
        return "needs strace"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True, text=True)
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else None


pytestmark = pytest.mark.skipif(bool(may_trace()), reason=may_trace() or "")


def each_kill(program: str, arguments: dict[str, object], folder: pathlib.Path) -> Iterator[str]:
    """Run a program to its death at each call that it makes; yields the call after each.

    ``folder`` is before each what it is now.
    """
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept, symlinks=True)
    argv = (sys.executable, "-I", "-S", "-B", "-c", START + IMPORTS + program, json.dumps(arguments))
    for call in CALLS:
        for number in itertools.count(1):
            shutil.rmtree(folder)
            shutil.copytree(kept, folder, symlinks=True)
            options = ("-e", f"trace=?{call}", "-e", f"inject=?{call}:signal=KILL:when={number}")
            traced = ("strace", "-f", "-o", "/dev/null", *options, *argv)
            done = subprocess.run(traced, check=False, capture_output=True, text=True)
            if done.returncode not in KILLED:
                assert done.returncode == 0, done.stderr
                break
            yield f"{call} {number}"


def finish(program: str, arguments: dict[str, object]) -> None:
    """Run a program to its end, in this process."""
    exec(IMPORTS + program, {"given": json.loads(json.dumps(arguments))})  # noqa: S102  the same text


def require_many(kills: range) -> None:
    if len(kills) < MANY:
        pytest.skip(f"more calls with --kills {MANY}")


@pytest.mark.parametrize("case", ["hold and adopt", "switch", "lift", "link"])
def test_a_switch(tmp_path: pathlib.Path, case: str, kills: range) -> None:
    if case != "hold and adopt":
        require_many(kills)
    folder = tmp_path / "host"
    root, link = folder / "root", folder / "link"
    arguments: dict[str, object] = {"root": str(root), "build": NEW}
    if "hold" in case:
        arguments["hold"] = {"by": "us", "why": "a test"}
    if "switch" not in case:
        arguments |= {"link": str(link), "adopt_link": "adopt" in case}
    for name in (OLD, NEW):
        programs = root / "builds" / name / "bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(sys.executable)
        (programs.parent / "which").write_text(name)
    if "adopt" in case:
        link.mkdir()
        (link / "theirs").write_text("kept")
    finish(ACTIVATE, {"root": str(root), "build": OLD} | ({"hold": HELD} if case == "lift" else {}))

    killed = 0
    for where in each_kill(ACTIVATE, arguments, folder):
        killed += 1
        assert (root / "current/env/which").read_text() in {OLD, NEW}, where
        receipt = json.loads((root / "current/receipt.json").read_text())
        assert (root / "builds" / receipt["build"]).samefile(root / "current/env"), where
        if "hold" in case and receipt["build"] == NEW:
            assert (root / "hold.json").exists(), f"{where}: gone back, and the next build would undo it"
        finish(ACTIVATE, arguments)
        assert (root / "current/env/which").read_text() == NEW, where
        assert (root / "hold.json").exists() is ("hold" in case), where
        assert not [*root.glob(".tmp-*"), *root.glob("generations/.tmp-*")], where
        if "switch" not in case:
            assert (link / "which").read_text() == NEW, where
        theirs = [path.read_text() for path in folder.glob("link*/theirs")]
        assert theirs == (["kept"] if "adopt" in case else []), where
    assert killed > 8


def sha256sum(path: pathlib.Path) -> str:
    return subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout[:64]


def test_files_that_land(tmp_path: pathlib.Path, kills: range) -> None:
    require_many(kills)
    source, there = tmp_path / "source", tmp_path / "there"
    sizes = {"new": 3 << 20, "a/changed": 100, "empty": 0}
    for name, size in sizes.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(size))
    files = [(name, sha256sum(source / name)) for name in sizes]
    (there / "a").mkdir(parents=True)
    (there / "a/changed").write_text("old")
    arguments: dict[str, object] = {"root": str(there), "source": str(source), "files": files}
    killed = 0
    for where in each_kill(LAND, arguments, there):
        killed += 1
        for name, digest in files:
            if (there / name).exists() and sha256sum(there / name) != digest:
                assert (there / name).read_text() == "old", where
        finish(LAND, arguments)
        assert [sha256sum(there / name) for name in sizes] == [digest for _, digest in files], where
    assert killed > 8


def test_contents_that_a_store_takes(tmp_path: pathlib.Path, kills: range) -> None:
    require_many(kills)
    source, there = tmp_path / "source", tmp_path / "store"
    source.write_bytes(os.urandom(3 << 20))
    there.mkdir()
    digest = sha256sum(source)
    place = there / digest[:2] / digest
    arguments: dict[str, object] = {"root": str(there), "files": [(str(source), digest, 3 << 20)]}
    killed = 0
    for where in each_kill(TAKE, arguments, there):
        killed += 1
        assert not place.exists() or sha256sum(place) == digest, where
        finish(TAKE, arguments)
        assert sha256sum(place) == digest, where
        assert [path for path in there.rglob("*") if path.is_file()] == [place], where
    assert killed > 3
