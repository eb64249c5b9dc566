"""``sync_patches`` from a reference to two targets, and the ways in which copying patches by hand fails.

What is told of copies made by hand, and the test that it cannot happen here:

silently not applied
    ``test_a_patch_that_was_silently_not_applied_is_no_success``
applied twice
    ``test_a_second_application_of_a_patch_is_refused_by_name``
applied to another release
    ``test_a_patch_for_another_release_is_refused_at_its_first_line``
stale files of an older patch left behind
    ``test_a_withdrawn_series_takes_its_added_files_and_bytecode_with_it``
stale bytecode
    ``test_bytecode_of_an_older_patch_of_equal_size_and_time_never_runs``
hard links poisoning uv's cache
    ``test_an_edit_reaches_neither_the_cache_nor_another_build``
an orphaned folder shadowing the package
    ``test_a_target_edited_by_hand_stops_until_the_edits_are_discarded[shadow]`` on the target,
    ``test_an_orphaned_folder_does_not_come_along`` on the reference
half a copy
    ``test_sync_killed.py``, ``test_sync_remote.py``
"""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.machine.agent import Agent
from kit.repository import DEMO_PATCH, listing
from kit.trio import Trio, digests

if TYPE_CHECKING:
    from kit.repository import Repository

OVERLAY = '[[overlays]]\nname = "ours"\n'
REFERENCE = '[reference]\nhost = "ref"\n'
ENV = 'patches = ["demo-1.0"]'
TARGETS = ("one", "two")

ADDING = """\
Description: Say that it is patched, and add a module
Origin: written for this test
Forwarded: not-needed

--- a/demo/__init__.py
+++ b/demo/__init__.py
@@ -1 +1 @@
-VERSION = "1.0"
+VERSION = "1.0, patched again"
--- /dev/null
+++ b/demo/added.py
@@ -0,0 +1 @@
+ADDED = True
"""


@pytest.fixture
def trio(repository: Repository) -> Trio:
    """A reference with a patched ``demo`` and an overlaid ``kernel``, current and whole; bare targets."""
    made = Trio(repository=repository)
    repository.wheel("kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'index'\n", "kernel/a.py": "A = 1\n"})
    made.spec("ref", "demo==1.0", "kernel==1.0")
    made.done("build_env", "ref")
    (made.site("ref") / "kernel/__init__.py").write_text("WHOSE = 'ours'\n")
    (made.site("ref") / "kernel/ops.bin").write_bytes(os.urandom(70_000))
    made.done("overlay", "ref", "ours", "kernel")
    repository.series("demo-1.0", DEMO_PATCH)
    made.spec("ref", "demo==1.0", "kernel==1.0", env=ENV, more=OVERLAY)
    made.done("build_env", "ref")
    made.specs("demo==1.0", "kernel==1.0", env=ENV, more=OVERLAY + REFERENCE, hosts=TARGETS)
    return made


def sync(trio: Trio, *words: str) -> dict[str, dict[str, object]]:
    ran = trio.done("sync_patches", "ref", *TARGETS, *words)
    return {each["host"]: each for each in ran.document["hosts"]}


def test_two_targets_become_what_the_reference_is_and_a_second_run_does_nothing(trio: Trio) -> None:
    before = listing(trio.root("ref"))
    first = sync(trio)
    assert listing(trio.root("ref")) == before
    for host in TARGETS:
        assert digests(trio.site(host)) == digests(trio.site("ref"))
        assert first[host]["headline"] == "built, checked and current"
        said = r"equal to ref in every file, as read there at \d\d:\d\d:\d\d UTC: [0-9a-f]{16}"
        assert any(re.match(said, note) for note in first[host]["notes"])  # type: ignore[attr-defined]
    again = sync(trio)
    for host in TARGETS:
        assert again[host]["headline"] == "nothing to do"
        assert any("equal to ref in every file" in note for note in again[host]["notes"])  # type: ignore[attr-defined]


def test_a_dry_run_shows_the_plan_and_writes_nothing(trio: Trio, capsys: pytest.CaptureFixture[str]) -> None:
    sync(trio, "--dry-run")
    shown = capsys.readouterr().err
    assert "series   demo-1.0: 1 patch" in shown
    assert "overlay  ours: kernel 1.0" in shown
    assert "of overlays, to" in shown
    assert not trio.root("one").exists()


def test_a_reference_that_drifted_is_shown_and_nothing_is_done(trio: Trio) -> None:
    (trio.site("ref") / "demo/words.txt").write_text("edited\n")
    (trio.site("ref") / "stray.py").write_text("")
    ran = trio.run("sync_patches", "ref", *TARGETS)
    assert "ref is not what its spec" in ran.message
    assert "demo/words.txt" in ran.message
    assert "stray.py" in ran.message
    assert not trio.root("one").exists()


def test_a_reference_whose_spec_moved_on_is_refused(trio: Trio) -> None:
    trio.repository.series("demo-1.0", ADDING)
    ran = trio.run("sync_patches", "ref", *TARGETS)
    assert "its spec makes build" in ran.message
    assert "nox -s build_env -- ref makes what its spec says" in ran.message
    assert "--from-drift" not in ran.message


def test_a_reference_that_is_held_says_who_holds_it_and_why_before_anything_else(trio: Trio) -> None:
    rolled = trio.run("rollback", "ref", "--why", "the overlay crashes")
    assert "kernel/ops.bin" in rolled.message, "the overlay was taken from edits of that build"
    ran = trio.run("sync_patches", "ref", *TARGETS)
    first = ran.message.splitlines()[1]
    assert "the overlay crashes" in first
    assert getpass.getuser() in first
    assert "nox -s switch -- ref" in first
    assert not trio.root("one").exists()


def test_a_patch_that_was_silently_not_applied_is_no_success(trio: Trio) -> None:
    trio.specs("demo==1.0", "kernel==1.0", more=OVERLAY + REFERENCE, hosts=("one",))
    ran = trio.run("sync_patches", "ref", "one")
    assert "series: ref has demo-1.0, one none" in ran.message
    assert not (trio.root("one") / "current").exists()


def test_what_the_spec_lets_differ_is_reported_and_not_refused(trio: Trio) -> None:
    said = REFERENCE + 'equal = ["lock", "overlays"]\n'
    trio.specs("demo==1.0", "kernel==1.0", more=OVERLAY + said, hosts=("one",))
    ran = trio.done("sync_patches", "ref", "one")
    assert any("equal to ref in lock, overlays, as read there at" in note for note in ran.host["notes"])
    assert any("demo/__init__.py" in note for note in ran.host["notes"])


def test_a_withdrawn_series_takes_its_added_files_and_bytecode_with_it(trio: Trio) -> None:
    trio.repository.series("demo-1.0", ADDING)
    trio.done("build_env", "ref")
    sync(trio)
    assert (trio.site("one") / "demo/added.py").exists()
    (trio.site("one") / "demo/__pycache__").mkdir(exist_ok=True)
    trio.spec("ref", "demo==1.0", "kernel==1.0", more=OVERLAY)
    trio.done("build_env", "ref")
    trio.specs("demo==1.0", "kernel==1.0", more=OVERLAY + REFERENCE, hosts=TARGETS)
    sync(trio)
    for host in TARGETS:
        assert not (trio.site(host) / "demo/added.py").exists()
        assert not list(trio.site(host).glob("demo/**/added*.pyc"))
        assert digests(trio.site(host)) == digests(trio.site("ref"))


def test_a_withdrawn_overlay_gives_way_to_the_wheel(trio: Trio) -> None:
    sync(trio)
    trio.spec("ref", "demo==1.0", "kernel==1.0", env=ENV)
    trio.done("build_env", "ref")
    trio.specs("demo==1.0", "kernel==1.0", env=ENV, more=REFERENCE, hosts=TARGETS)
    sync(trio)
    assert (trio.site("one") / "kernel/__init__.py").read_text() == "WHOSE = 'index'\n"
    assert not (trio.site("one") / "kernel/ops.bin").exists()


@pytest.mark.parametrize(
    "edit",
    ["content", "mode", "added", "removed", "link", "shadow", "unchecked bytecode"],
)
def test_a_target_edited_by_hand_stops_until_the_edits_are_discarded(trio: Trio, edit: str) -> None:
    sync(trio)
    site = trio.site("one")
    path = _edit(trio, edit)
    ran = trio.run("sync_patches", "ref", *TARGETS)
    assert re.search(r"1 file of its current build [0-9a-f]+ was edited by hand", ran.message)
    assert path in ran.message
    assert trio.headlines(ran)["two"] == "nothing to do"
    build = trio.current("one")

    done = sync(trio, "--discard-edits")

    assert trio.current("one") == build
    assert done["one"]["headline"] == "built, checked and current"
    assert digests(trio.site("one")) == digests(trio.site("ref"))
    assert site.exists()
    (kept,) = (trio.repository.path / ".hostenv/discarded").iterdir()
    assert (kept / "edits.patch").exists()
    assert sync(trio)["one"]["headline"] == "nothing to do"


def test_a_target_that_keeps_nothing_to_compare_with_is_not_taken_for_unedited(trio: Trio) -> None:
    sync(trio)
    build = trio.current("one")
    (build / ".hostenv/facts.json").unlink()
    before = listing(build)
    for words in ((), ("--discard-edits",)):
        ran = trio.run("sync_patches", "ref", *TARGETS, *words)
        told = {each["host"]: each["outcome"] for each in ran.document["hosts"]}
        assert told == {"one": "refused", "two": "done"}
        assert "whether its current build was edited by hand is unknown" in ran.message
        assert listing(build) == before
    trio.done("build_env", "one", "--remake")
    assert sync(trio)["one"]["headline"] == "nothing to do"


def test_a_reference_that_keeps_nothing_to_compare_with_is_not_taken_for_unedited(trio: Trio) -> None:
    (trio.current("ref") / ".hostenv/facts.json").unlink()
    ran = trio.run("sync_patches", "ref", *TARGETS)
    assert "whether it was edited is unknown" in ran.message
    assert not trio.root("one").exists()


def test_what_is_no_text_to_read_is_kept_as_it_is_and_no_original_is_fetched_for_it(trio: Trio) -> None:
    sync(trio)
    site = trio.site("one")
    (site / "kernel/ops.bin").write_bytes(b"\0" + os.urandom(70_000))
    (site / "demo/words.txt").write_text("a line\n" * 700_000)
    (site / "kernel/b.py").symlink_to("a.py")
    within = site.relative_to(trio.current("one"))
    edited = {name: (site / name).read_bytes() for name in ("kernel/ops.bin", "demo/words.txt")}
    sync(trio, "--discard-edits")
    (kept,) = (trio.repository.path / ".hostenv/discarded").iterdir()
    assert {name: (kept / "files" / within / name).read_bytes() for name in edited} == edited
    assert (kept / "links.txt").read_text() == f"{within}/kernel/b.py -> a.py\n"
    assert sorted(path.name for path in kept.iterdir()) == ["edits.patch", "files", "links.txt"]
    assert "diff --git" not in (kept / "edits.patch").read_text()


def test_an_edited_file_that_goes_before_it_is_saved_stops_the_discarding(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(trio)
    _edit(trio, "content")
    added = trio.site("one") / _edit(trio, "added")
    call = Agent.call

    def remove_first(agent: Agent, operation: str, /, **more: Any) -> Any:
        if operation == "store.present" and more["folder"] == str(trio.current("one")):
            added.unlink()
        return call(agent, operation, **more)

    monkeypatch.setattr(Agent, "call", remove_first)
    ran = trio.run("sync_patches", "ref", "one", "--discard-edits")
    assert "nothing is discarded" in ran.message
    assert "demo/debug.py is gone since it was looked at" in ran.message
    assert (trio.site("one") / "demo/words.txt").read_text() == "patched on the host\n"
    assert not (trio.repository.path / ".hostenv/discarded").exists()


def test_where_edits_cannot_be_kept_here_nothing_is_discarded(trio: Trio) -> None:
    sync(trio)
    _edit(trio, "content")
    (trio.repository.path / ".hostenv").mkdir(exist_ok=True)
    (trio.repository.path / ".hostenv/discarded").write_text("no folder\n")
    before = listing(trio.current("one"))
    ran = trio.run("sync_patches", "ref", *TARGETS, "--discard-edits")
    assert {each["host"]: each["outcome"] for each in ran.document["hosts"]} == {
        "one": "failed",
        "two": "done",
    }
    assert "one: here, " in ran.message
    assert ".hostenv/discarded/one-" in ran.message
    assert "Not a directory" in ran.message
    assert listing(trio.current("one")) == before


def _edit(trio: Trio, edit: str) -> str:
    """Edit the current build of ``one`` as people do; return the path that must be named."""
    site = trio.site("one")
    if edit == "content":
        (site / "demo/words.txt").write_text("patched on the host\n")
    elif edit == "mode":
        (site / "demo/words.txt").chmod(0o755)
    elif edit == "added":
        (site / "demo/debug.py").write_text("print('here')\n")
    elif edit == "removed":
        (site / "kernel/a.py").unlink()
    elif edit == "link":
        (site / "kernel/b.py").symlink_to("a.py")
    elif edit == "shadow":  # an orphaned folder beside the module of the same name
        (site / "helper").mkdir()
        (site / "helper/__init__.py").write_text("ONE = 0\n")
    else:
        return _compile_unchecked(trio)
    return EDITED[edit]


EDITED = {
    "content": "demo/words.txt",
    "mode": "demo/words.txt",
    "added": "demo/debug.py",
    "removed": "kernel/a.py",
    "link": "kernel/b.py",
    "shadow": "helper/__init__.py",
}


def _compile_unchecked(trio: Trio) -> str:
    """Leave bytecode that Python runs whatever its source says; return its path."""
    site = trio.site("one")
    (site / "demo/__pycache__").mkdir(exist_ok=True)
    program = (
        "import sys, py_compile; sys.dont_write_bytecode = True\n"
        "print(py_compile.compile(sys.argv[1], doraise=True,"
        " invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH))"
    )
    argv = [f"{trio.current('one')}/bin/python", "-c", program, f"{site}/demo/__init__.py"]
    done = subprocess.run(argv, env={}, check=True, capture_output=True, text=True)
    path: str = done.stdout.strip().partition("site-packages/")[2]
    return path


def test_the_saved_patch_is_one_that_git_applies(
    trio: Trio, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sync(trio)
    site = trio.site("one")
    (site / "demo/words.txt").write_text("a b c\nno newline at the end")
    (site / "kernel/a.py").write_text("")
    (site / "demo/new file.txt").write_text("hello\n")
    wanted = {
        name: (site / name).read_text() for name in ("demo/words.txt", "kernel/a.py", "demo/new file.txt")
    }
    sync(trio, "--discard-edits")
    (kept,) = (trio.repository.path / ".hostenv/discarded").iterdir()
    copy = tmp_path_factory.mktemp("oracle")
    subprocess.run(["cp", "-r", f"{trio.site('ref')}/.", copy], check=True)
    subprocess.run(
        ["git", "apply", "-p1", kept / "edits.patch"],
        cwd=copy,
        check=True,
        env={"GIT_CEILING_DIRECTORIES": "/", **os.environ},
    )
    assert {name: (copy / name).read_text() for name in wanted} == wanted


def test_a_build_is_not_exchanged_under_a_process_that_uses_it(trio: Trio) -> None:
    sync(trio)
    _edit(trio, "content")
    argv = [
        f"{trio.current('one')}/bin/python",
        "-c",
        "import time, demo; print(1, flush=True); time.sleep(60)",
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as server:
        assert server.stdout
        server.stdout.readline()
        ran = trio.run("sync_patches", "ref", *TARGETS, "--discard-edits")
        assert f"pid {server.pid}" in ran.message
        assert (trio.site("one") / "demo/words.txt").read_text() == "patched on the host\n"
        sync(trio, "--discard-edits", "--despite-running")
        server.kill()
    assert digests(trio.site("one")) == digests(trio.site("ref"))


def test_an_edit_reaches_neither_the_cache_nor_another_build(trio: Trio) -> None:
    sync(trio)
    names = ("demo/__init__.py", "kernel/ops.bin", "kernel/__init__.py")
    inodes = {
        (path.stat().st_dev, path.stat().st_ino) for path in (trio.site("one") / name for name in names)
    }
    others = [path for path in trio.repository.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    shared = [path for path in others if (path.stat().st_dev, path.stat().st_ino) in inodes]
    assert len(shared) == len(names)
    assert all(path.stat().st_nlink == 1 for path in shared)


def test_staged_where_the_spec_says_so_and_proven_all_the_same(trio: Trio) -> None:
    manual = OVERLAY + REFERENCE
    trio.specs("demo==1.0", "kernel==1.0", env=ENV, more=manual, hosts=("one",))
    ran = trio.done("sync_patches", "ref", "one", "--stage")
    assert ran.host["headline"] == "staged"
    assert any("equal to ref" in note for note in ran.host["notes"])
    assert not (trio.root("one") / "current").exists()
    trio.done("switch", "one")
    assert digests(trio.site("one")) == digests(trio.site("ref"))


def test_the_reference_may_die_once_the_overlay_was_taken(trio: Trio) -> None:
    subprocess.run(["rm", "-r", trio.root("ref")], check=True)
    trio.done("build_env", "one")
    assert (trio.site("one") / "kernel/__init__.py").read_text() == "WHOSE = 'ours'\n"


def test_contents_lost_on_the_controller_come_from_the_reference(trio: Trio) -> None:
    subprocess.run(["rm", "-r", trio.repository.folder / "home/.cache/hostenv/store"], check=True)
    subprocess.run(["rm", "-r", trio.root("ref") / "store"], check=True)
    sync(trio)
    assert digests(trio.site("two")) == digests(trio.site("ref"))


def test_a_second_application_of_a_patch_is_refused_by_name(trio: Trio) -> None:
    sync(trio)
    trio.repository.wheel("demo", "1.0.post1", {"demo/__init__.py": 'VERSION = "1.0, patched"\n'})
    trio.spec("one", "demo==1.0.post1", "kernel==1.0", env=ENV, more=OVERLAY + REFERENCE)
    ran = trio.run("sync_patches", "ref", "one")
    assert 'is for 1.0, but "demo==1.0.post1" is asked for' in ran.message
    trio.repository.series("demo-1.0.post1", DEMO_PATCH)
    env = 'patches = ["demo-1.0.post1"]'
    trio.spec("one", "demo==1.0.post1", "kernel==1.0", env=env, more=OVERLAY + REFERENCE)
    ran = trio.run("build_env", "one")
    assert "already holds the result" in ran.message
    assert "1.0, patched" in (trio.site("one") / "demo/__init__.py").read_text()


def test_a_patch_for_another_release_is_refused_at_its_first_line(trio: Trio) -> None:
    """Named for the release that is locked, and made for the one before: where ``patch`` finds a place."""
    sync(trio)
    before = listing(trio.root("one"))
    moved = "# a line more\n\nVERSION = '1.1'\n\n\ndef main() -> None:\n    pass\n"
    trio.repository.wheel("demo", "1.1", {"demo/__init__.py": moved})
    trio.repository.series("demo-1.1", DEMO_PATCH)
    env = 'patches = ["demo-1.1"]'
    trio.spec("one", "demo==1.1", "kernel==1.0", env=env, more=OVERLAY + REFERENCE)
    ran = trio.run("build_env", "one")
    assert "one.patch: demo/__init__.py: hunk 1: line 1: expected" in ran.message
    assert "# a line more" in ran.message
    current = ("builds", "generations", "current", "store")
    after = listing(trio.root("one"))
    assert {name: after[name] for name in before if name.startswith(current)} == {
        name: stat for name, stat in before.items() if name.startswith(current)
    }


def test_bytecode_of_an_older_patch_of_equal_size_and_time_never_runs(trio: Trio) -> None:
    """Python takes bytecode for its source's by size and second: both are the same here."""
    sync(trio)
    program = "import os, demo; print(demo.VERSION, os.path.exists(demo.__cached__))"
    told = []
    for variant in ("patched", "changed"):
        trio.repository.series("demo-1.0", DEMO_PATCH.replace("patched", variant))
        trio.done("build_env", "ref")
        trio.done("sync_patches", "ref", "one")
        source = trio.site("one") / "demo/__init__.py"
        os.utime(source, (1_700_000_000, 1_700_000_000))
        argv = (f"{trio.root('one')}/current/env/bin/python", "-c", program)
        done = subprocess.run(argv, env={}, check=True, capture_output=True, text=True, cwd="/")
        told.append(done.stdout.split())
    assert [words[:2] for words in told] == [["1.0,", "patched"], ["1.0,", "changed"]]
    assert told[0][2] == "True", "bytecode was written that could have been stale"


def test_an_orphaned_folder_does_not_come_along(trio: Trio) -> None:
    """An old release's package folder on the reference would win over a module of the same name."""
    sync(trio)
    (trio.site("ref") / "helper").mkdir()
    (trio.site("ref") / "helper/__init__.py").write_text("ONE = 0\n")
    ran = trio.run("sync_patches", "ref", *TARGETS)
    assert "helper/__init__.py" in ran.message
    program = "import helper; print(helper.ONE)"
    assert trio.repository.python(program, trio.current("one")) == "1"


def test_the_json_says_what_became_of_each_host(trio: Trio) -> None:
    document = json.dumps(sync(trio))
    assert '"outcome": "done"' in document
