"""What may hang is asked in a child, for so long and no longer."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.probe import disks
from hostenv.agent.probe.fact import UnknownError
from hostenv.agent.probe.host import _Probe
from hostenv.agent.probe.intime import Question, ask, fact_question
from hostenv.agent.probe.silent import mounts as mounts_that_are_silent
from hostenv.agent.probe.tree import SilentError, Tree
from kit import silentfs

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 60.0


def test_answers_come_in_the_order_of_the_questions_whatever_hangs(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "never")
    hanging = Question((tmp_path / "never").read_text, lambda reason: f"unknown: {reason}", 0.5)

    def late() -> str:
        time.sleep(0.2)
        return "late"

    told = ask(
        {
            "one": [hanging, Question(late, str, LONG), Question(lambda: [1, None], str, LONG)],
            "two": [Question(os.getpid, str, LONG)],
            "none": [],
        }
    )
    assert told["one"][1:] == ["late", [1, None]]
    assert told["one"][0] == "unknown: no answer in 0.5 s: a disk, a mount or a server behind it hangs"
    assert told["two"][0] != os.getpid()
    assert told["none"] == []


def test_what_cannot_be_read_is_the_facts_reason_and_a_bug_is_raised(tmp_path: pathlib.Path) -> None:
    def unknown() -> None:
        raise UnknownError("says nothing")

    [one, other] = ask({"": [fact_question("x", unknown), fact_question("y", os.stat, tmp_path / "gone")]})[
        ""
    ]
    assert one == {"unknown": "says nothing", "how": "x"}
    assert "No such file" in other["unknown"]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        ask({"": [Question(lambda: 1 / 0, str)]})


def test_a_long_answer_comes_whole() -> None:
    text = "ä" * 1_000_000
    assert ask({"": [Question(lambda: text, str, LONG)] * 3})[""] == [text] * 3


def test_a_child_that_dies_is_told_as_that_and_not_as_a_disk_that_hangs() -> None:
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    never = Question(lambda: time.sleep(LONG), str, LONG)
    told = ask({"": [Question(killed, str, LONG), never, fact_question("x", time.sleep, LONG)]})[""]
    reason = "the process that looked was killed by signal 9: out of memory? See dmesg"
    assert told == [reason, reason, {"unknown": reason, "how": "x"}]
    ended = ask({"": [Question(lambda: os._exit(3), str, LONG)]})[""]
    assert ended == ["the process that looked ended before it had answered (exit 3)"]


def test_packages_of_the_interpreters_that_nobody_could_look_for_are_unknown() -> None:
    """An empty list would say that there are none: what a check cannot know is unknown."""
    [question] = _Probe({})._then([], [])["bases"]
    [told] = question.otherwise("it hangs")
    assert told["unknown"] == "the interpreters' own site-packages: it hangs"


def test_nothing_of_a_child_is_left() -> None:
    descriptors, children = (
        pathlib.Path("/proc/self", part) for part in ("fd", f"task/{os.getpid()}/children")
    )
    before = len(list(descriptors.iterdir())), children.read_text()
    ask({"": [Question(lambda: 1, str, LONG), Question(lambda: time.sleep(LONG), str, 0.1)]})
    assert (len(list(descriptors.iterdir())), children.read_text()) == before


@pytest.fixture
def silent(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[pathlib.Path]:
    """Return a mount where whoever asks for a file waits for ever, and no signal ends that."""
    options: list[str] = getattr(request, "param", ["--statfs-answers"])
    place = tmp_path / "silent"
    place.mkdir()
    if missing := silentfs.missing_fuse():
        pytest.skip(missing)
    argv = [sys.executable, silentfs.__file__, str(place), *options]
    pipe = subprocess.PIPE
    server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        assert server.stdout
        if server.stdout.readline() != b"mounted\n":
            pytest.skip(f"no FUSE here: {server.communicate()[1].decode().splitlines()[-1]}")
        yield place
    finally:
        if server.poll() is None:
            server.communicate()
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def test_what_waits_in_the_kernel_is_left_behind(silent: pathlib.Path) -> None:
    script = (
        f"import os, sys; sys.path[:0] = {sys.path!r}\n"
        "from hostenv.agent.probe.intime import Question, ask\n"
        f"hangs = Question(lambda: os.listdir({str(silent)!r}), str, 1.0)\n"
        "print(ask({'': [hangs, Question(lambda: 1, str, 60.0)]})[''])\n"
    )
    # Streams of ours, held by what is left behind, would never end: communicate() would wait for ever.
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LONG
    )
    assert ran.stdout == "['no answer in 1 s: a disk, a mount or a server behind it hangs', 1]\n", ran.stderr


@pytest.mark.parametrize("silent", [[]], indirect=True)
def test_the_mounts_that_do_not_tell_their_size_are_found(silent: pathlib.Path) -> None:
    found = mounts_that_are_silent(disks.mounts(Tree()), 2.0)
    hangs = "no answer in 2 s: a disk, a mount or a server behind it hangs"
    told = f"{silent} (fuse.silent, silent) does not tell its size: {hangs}"
    assert found[str(silent)] == told
    others = [each.point for each in disks.mounts(Tree()) if each.kind in {"proc", "sysfs", "tmpfs"}]
    assert others
    assert not set(others) & set(found)


def test_nothing_on_a_silent_mount_is_asked_for(tmp_path: pathlib.Path) -> None:
    dead = tmp_path / "mount"
    (dead / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to("mount/folder/../folder")
    (tmp_path / "beside").write_text("alive")
    tree = Tree(silent={str(dead): "it hangs"})
    for path in (
        dead,
        dead / "folder" / "file",
        tmp_path / "link",
        tmp_path / "link" / ".." / ".." / "beside",
    ):
        with pytest.raises(SilentError, match="it hangs"):
            tree.exists(str(path))
    assert tree.text(str(tmp_path / "beside")) == "alive"
    assert tree.glob(f"{tmp_path}/*") == [str(tmp_path / name) for name in ("beside", "link", "mount")]
    assert tree.glob(f"{tmp_path}/*/*") == []
    assert Tree().glob(f"{tmp_path}/m*t/f[o]lder") == [str(dead / "folder")]
