"""GNU diff and patch, and git, as the oracle of the patch tests: what they make, and what they say to it."""

from __future__ import annotations

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

Tree = dict[str, tuple[bytes, bool]]
"""Path → content and executable bit."""

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("diff", "patch", "git"))), reason="diff, patch and git are the oracle"
)

_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "LC_ALL": "C",
    "TZ": "UTC",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CEILING_DIRECTORIES": tempfile.gettempdir(),
}


def run(folder: pathlib.Path, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run one tool in ``folder``, with no one's configuration."""
    return subprocess.run(argv, cwd=folder, input=stdin, capture_output=True, check=False, env=_ENVIRONMENT)


def write_tree(folder: pathlib.Path, tree: Mapping[str, tuple[bytes, bool]]) -> None:
    """Write the files of ``tree`` below ``folder``."""
    for path, (content, executable) in tree.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o755 if executable else 0o644)


def read_tree(folder: pathlib.Path) -> Tree:
    """Return all regular files below ``folder``; git's own folder is left out."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".git" not in path.parts
    }


def git_diff(old: Tree, new: Tree, *options: str) -> bytes:
    """Return git's diff of two trees, names as ``a/…`` and ``b/…``."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(folder, "git", "init", "-q")
        write_tree(folder, old)
        run(folder, "git", "add", "-A", "-f")
        before = run(folder, "git", "write-tree").stdout.decode().strip()
        for path in old:
            (folder / path).unlink()
        write_tree(folder, new)
        run(folder, "git", "add", "-A", "-f")
        after = run(folder, "git", "write-tree").stdout.decode().strip()
        return run(folder, "git", "diff", *options, before, after).stdout


def gnu_diff(old: Tree, new: Tree, *options: str) -> bytes:
    """Return ``diff -ruN a b`` of two trees."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        write_tree(folder / "a", old)
        write_tree(folder / "b", new)
        return run(folder, "diff", *(options or ("-ruN",)), "a", "b").stdout


def git_apply(tree: Tree, patch: bytes, *options: str) -> Tree | None:
    """Return what ``git apply`` makes of ``tree``, None where it refuses."""
    return _apply(tree, patch, "git", "apply", *options, "-")


def gnu_patch(tree: Tree, patch: bytes, *options: str) -> Tree | None:
    """Return what GNU patch without fuzz makes of ``tree``, None where it refuses."""
    argv = ("patch", "-p1", "-F0", "--binary", "-f", "-s", "--no-backup-if-mismatch", *options)
    return _apply(tree, patch, *argv)


def _apply(tree: Tree, patch: bytes, *argv: str) -> Tree | None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tree(folder, tree)
        done = run(folder, *argv, stdin=patch)
        return read_tree(folder) if done.returncode == 0 else None
