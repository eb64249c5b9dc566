"""Folders where files land on the controller: gone with their process, whatever ended it."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import hostenv
from hostenv.steps.landing import landing_in

HOLD = f"""\
import pathlib, sys, time
sys.path.insert(0, {str(pathlib.Path(hostenv.__file__).parents[1])!r})
from hostenv.steps.landing import landing_in
with landing_in(pathlib.Path(sys.argv[1])) as folder:
    (folder / "half").write_text("of a file")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_is_there_and_then_gone(tmp_path: pathlib.Path) -> None:
    with landing_in(tmp_path / "store") as folder:
        (folder / "deep").mkdir()
        (folder / "deep/file").write_text("x")
    assert list((tmp_path / "store").iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_a_living_ones_is_not(tmp_path: pathlib.Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        theirs = pathlib.Path(other.stdout.readline().strip())
        with landing_in(tmp_path) as ours:
            assert (theirs / "half").exists()
            assert ours != theirs
        other.kill()
        other.wait()
        assert (theirs / "half").exists()
        with landing_in(tmp_path) as ours:
            assert list(tmp_path.iterdir()) == [ours]


def test_threads_of_one_process_do_not_take_each_others_away(tmp_path: pathlib.Path) -> None:
    with landing_in(tmp_path) as first, landing_in(tmp_path) as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
