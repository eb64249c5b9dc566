"""A look at an environment for the rules is remembered as long as all that it rests on is as it was."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import sitelook, statcache
from kit.environment import SITE, SilentWire, distribution, make_environment, put

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable


def look(root: pathlib.Path, seen: str | None = None) -> dict[str, Any]:
    """Return the answer, taken so late after the last change that it may be trusted again."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    while not all(statcache.settled(statcache.key(path.stat()), time.time_ns()) for path in paths):
        time.sleep(0.01)
    answer: dict[str, Any] = sitelook.look(SilentWire(), venv=str(root), seen=seen)
    return answer


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return an environment whose facts rest on something inside, beside and outside of it."""
    files = distribution("demo", "1", {"demo/__init__.py": "x = 1\n"})
    env = make_environment(tmp_path / "env", files)
    put(env / SITE / "demo-1.dist-info/direct_url.json", '{"url": "file:///a", "dir_info": {}}')
    put(env / SITE / "away.pth", f"{tmp_path}/source\n")
    put(tmp_path / "source/away.py", "")
    put(tmp_path / "elsewhere/python3", "")
    put(env / "bin/demo", f"#!{tmp_path}/elsewhere/python3\nprint()\n").chmod(0o755)
    put(env / ".hostenv/facts.json", '{"applied": {}}')
    return env


def in_place(path: pathlib.Path, old: str, new: str) -> None:
    """Edit a file as an editor does that keeps its inode, size and times."""
    status = path.stat()
    with path.open("r+") as file:
        content = file.read()
        file.seek(0)
        file.write(content.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[pathlib.Path], object]] = {
    "a source, its size and time kept": lambda env: in_place(env / SITE / "demo/__init__.py", "1", "2"),
    "a mode": lambda env: (env / SITE / "demo/__init__.py").chmod(0o755),
    "a file more": lambda env: put(env / SITE / "demo/more.py", ""),
    "a file less": lambda env: (env / SITE / "away.pth").unlink(),
    "a link more": lambda env: (env / SITE / "other").symlink_to("demo"),
    "the origin of a distribution": lambda env: in_place(
        env / SITE / "demo-1.dist-info/direct_url.json", "///a", "///b"
    ),
    "the interpreter of a script": lambda env: (env.parent / "elsewhere/python3").unlink(),
    "what a .pth file adds": lambda env: put(env.parent / "source/more.py", ""),
    "the interpreter of the environment": lambda env: (env / "bin/python").unlink(),
    "the notes of a build": lambda env: in_place(env / ".hostenv/facts.json", "applied", "removed"),
}


def test_nothing_is_read_again_while_nothing_changes(root: pathlib.Path) -> None:
    first = look(root)
    assert first["facts"] is not None
    assert first["stat"] is not None
    again = look(root, first["stat"])
    assert again["facts"] is None
    assert again["stat"] == first["stat"]


@pytest.mark.parametrize("change", CHANGES)
def test_all_is_read_again_where_something_changed(root: pathlib.Path, change: str) -> None:
    before = look(root)
    CHANGES[change](root)
    after = look(root, before["stat"])
    assert after["facts"] is not None
    assert after["stat"] != before["stat"]
    assert look(root, after["stat"])["facts"] is None
