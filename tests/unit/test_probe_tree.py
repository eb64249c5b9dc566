"""Reading below a root: links never lead out of it."""

from __future__ import annotations

import os
import pathlib

import pytest

from hostenv.agent.probe.tree import Tree


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> Tree:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hostname").write_text("inside\n")
    return Tree(str(tmp_path))


def test_an_absolute_link_stays_inside(tree: Tree) -> None:
    pathlib.Path(tree.root, "link").symlink_to("/etc/hostname")
    assert tree.text("/link") == "inside"


def test_dots_do_not_climb_out(tree: Tree) -> None:
    pathlib.Path(tree.root, "up").symlink_to("../../../../../../etc/hostname")
    assert tree.text("/up") == "inside"
    assert tree.text("/../../etc/hostname") == "inside"


def test_a_link_in_the_middle_stays_inside(tree: Tree) -> None:
    pathlib.Path(tree.root, "venv").symlink_to("/releases/1")
    pathlib.Path(tree.root, "releases").mkdir()
    pathlib.Path(tree.root, "releases", "1").symlink_to("../etc")
    assert tree.text("/venv/hostname") == "inside"
    assert tree.resolve("/venv/hostname") == "/etc/hostname"


def test_a_cycle_ends(tree: Tree) -> None:
    pathlib.Path(tree.root, "a").symlink_to("b")
    pathlib.Path(tree.root, "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        tree.text("/a")


def test_a_pipe_does_not_block(tree: Tree) -> None:
    os.mkfifo(pathlib.Path(tree.root, "pipe"))
    assert tree.text("/pipe") == ""


def test_a_file_is_read_to_its_limit(tree: Tree) -> None:
    assert tree.text("/etc/hostname", 2) == "in"
    assert len(Tree().bytes("/dev/zero", 1000)) == 1000


def test_undecodable_bytes_become_escapes(tree: Tree) -> None:
    pathlib.Path(tree.root, "odd").write_bytes(b"a\xffb")
    assert tree.text("/odd") == "a\\xffb"
