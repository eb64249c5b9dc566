"""Manifests and fingerprints of folders made here; the oracle of digests is sha256sum."""

from __future__ import annotations

import errno
import os
import pathlib
import py_compile
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import hashing, statcache, tree, walk
from hostenv.agent.wire import AgentError
from hostenv.errors import HostError
from hostenv.facts.manifest import Change, Manifest
from kit.environment import SITE, SilentWire, make_environment, put, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable

FILES: dict[str, str | bytes] = {
    "pkg/__init__.py": "x = 1\n",
    "pkg/data.bin": bytes(range(256)) * 40,
    "pkg/empty": "",
}


def manifest_of(root: pathlib.Path) -> Manifest:
    return Manifest(tree.scan(str(root)).canonical())


def fingerprint(root: pathlib.Path, cache: pathlib.Path | None = None) -> str:
    found = summary_of(root, cache=cache)["fingerprint"]
    assert isinstance(found, str)
    return found


def problems(root: pathlib.Path) -> dict[str, str]:
    summary = summary_of(root)
    assert summary["fingerprint"] is None
    return {item["path"]: item["reason"] for item in summary["problems"]}


def age(root: pathlib.Path) -> None:
    """Wait until everything below the folder is older than the clock's grain."""
    newest = max(path.lstat().st_ctime_ns for path in root.rglob("*"))
    while not statcache.settled(statcache.key(root.stat()), time.time_ns()) or (
        time.time_ns() - newest < 3e7
    ):
        time.sleep(0.01)


def test_every_file_has_the_digest_and_size_that_other_tools_say(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    entries = manifest_of(root).entries
    for path, content in FILES.items():
        entry = entries[f"{SITE}/{path}"]
        told = subprocess.run(
            ["sha256sum", root / SITE / path], capture_output=True, text=True, check=True
        ).stdout.split()[0]
        assert (entry.sha256, entry.size, entry.mode) == (told, len(content), 0o644)


def test_the_manifest_travels_and_proves_its_fingerprint(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    wire = SilentWire()
    looked = tree.scan(str(root))
    tree.send(wire, looked.canonical())
    summary = looked.summary(looked.canonical())
    assert Manifest.from_packed(wire.sent).fingerprint == summary["fingerprint"]
    for damaged in (wire.sent[:-5], b"junk"):
        with pytest.raises(HostError):
            Manifest.from_packed(damaged)


def test_a_copy_in_another_folder_has_the_same_fingerprint(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    shutil.copytree(root, tmp_path / "deep" / "er", symlinks=True)
    assert fingerprint(root) == fingerprint(tmp_path / "deep" / "er")


def _edit(root: pathlib.Path) -> None:
    (root / SITE / "pkg/data.bin").write_bytes(b"\1" + bytes(range(1, 256)) + bytes(range(256)) * 39)


EDITS: dict[str, tuple[Change, Callable[[pathlib.Path], object]]] = {
    "one byte": (Change.CONTENT, _edit),
    "one mode": (Change.MODE, lambda root: (root / SITE / "pkg/data.bin").chmod(0o600)),
    "one file less": (Change.MISSING, lambda root: (root / SITE / "pkg/empty").unlink()),
    "one file more": (Change.EXTRA, lambda root: put(root / SITE / "pkg/more.so", "")),
    "one link": (Change.EXTRA, lambda root: (root / SITE / "pkg/link").symlink_to("data.bin")),
    "system packages": (
        Change.CONTENT,
        lambda root: put(root / "pyvenv.cfg", "include-system-site-packages = true\n"),
    ),
}


@pytest.mark.parametrize(("change", "edit"), EDITS.values(), ids=list(EDITS))
def test_every_kind_of_edit_changes_the_fingerprint_and_is_named(
    tmp_path: pathlib.Path, change: Change, edit: Callable[[pathlib.Path], object]
) -> None:
    root = make_environment(tmp_path / "env", FILES)
    before = manifest_of(root)
    edit(root)
    after = manifest_of(root)
    assert [item.change for item in before.differences(after)] == [change]
    assert before.fingerprint != after.fingerprint


def test_a_link_that_points_elsewhere_is_a_difference(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    link = root / SITE / "pkg/link"
    link.symlink_to("data.bin")
    before = manifest_of(root)
    link.unlink()
    link.symlink_to("empty")
    (difference,) = before.differences(manifest_of(root))
    assert (difference.change, difference.path) == (Change.LINK, f"{SITE}/pkg/link")


def test_what_names_folder_tool_or_interpreter_does_not_count(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    before = fingerprint(root)
    for name in ("bin/activate", "bin/activate.fish", ".gitignore", "CACHEDIR.TAG", ".hostenv/inputs.json"):
        put(root / name, str(tmp_path))
    (root / "bin/python").unlink()
    (root / "bin/python").symlink_to("/usr/bin/env")
    (root / "lib64").symlink_to("lib")
    put(root / "pyvenv.cfg", "home = /elsewhere\nversion_info = 3.12.9\nuv = 1.0\nrelocatable = true\n")
    assert fingerprint(root) == before


def test_a_script_of_a_distribution_counts_whatever_its_name(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env")
    put(root / "bin/activate-global-python-argcomplete", "#!/bin/sh\n")
    assert "bin/activate-global-python-argcomplete" in manifest_of(root).entries


@pytest.mark.parametrize(
    "script",
    ["#!{}/bin/python3.12\nx\n", "#!/bin/sh\n'''exec' \"{}/bin/python\" \"$0\" \"$@\"\n' '''\nx\n"],
    ids=["shebang", "trampoline"],
)
def test_a_script_that_runs_its_own_environment_is_the_same_anywhere(
    tmp_path: pathlib.Path, script: str
) -> None:
    roots = [make_environment(tmp_path / name) for name in ("one", "two")]
    for root in roots:
        put(root / "bin/tool", script.format(root))
    assert fingerprint(roots[0]) == fingerprint(roots[1])
    put(roots[1] / "bin/tool", script.format(roots[0]))  # runs another environment
    assert fingerprint(roots[0]) != fingerprint(roots[1])


def test_installer_notes_and_the_order_of_record_do_not_count(tmp_path: pathlib.Path) -> None:
    info = "x-1.dist-info"
    one = make_environment(
        tmp_path / "one",
        {
            f"{info}/RECORD": f"b.py,sha256=A,1\na.py,sha256=B,2\n{info}/RECORD,,\n",
            f"{info}/INSTALLER": "uv",
        },
    )
    rows = f"a.py,sha256=B,2\nb.py,sha256=A,1\n__pycache__/a.cpython-312.pyc,,\n{info}/INSTALLER,sha256=C,3\n"
    two = make_environment(
        tmp_path / "two",
        {
            f"{info}/RECORD": f"{rows}{info}/direct_url.json,sha256=D,9\n{info}/RECORD,,\n",
            f"{info}/direct_url.json": "{}",
        },
    )
    assert fingerprint(one) == fingerprint(two)
    put(two / SITE / info / "RECORD", f"a.py,sha256=B,2\nb.py,sha256=Z,1\n{info}/RECORD,,\n")
    assert fingerprint(one) != fingerprint(two)


def test_bytecode_that_repeats_its_source_is_left_out_any_other_is_not(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    before = fingerprint(root)
    source = str(root / SITE / "pkg/__init__.py")
    modes = py_compile.PycInvalidationMode
    for mode in (modes.CHECKED_HASH, modes.TIMESTAMP):
        py_compile.compile(source, invalidation_mode=mode)
        assert fingerprint(root) == before
    py_compile.compile(source, invalidation_mode=modes.UNCHECKED_HASH)
    assert fingerprint(root) != before
    shutil.rmtree(root / SITE / "pkg/__pycache__")
    put(root / SITE / "pkg/legacy.pyc", "Python imports this one without a source")
    assert fingerprint(root) != before


def test_names_of_any_bytes_survive(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env")
    names = [b"new\nline", b"\xff\xfe", "ünïcode".encode(), b" space ", b"f 644 1 x y", b'comma,quote"']
    for name in names:
        (pathlib.Path(os.fsdecode(os.fsencode(root / SITE) + b"/" + name))).write_bytes(name)
    found = {path.encode("utf-8", "surrogateescape") for path in manifest_of(root).entries}
    assert {f"{SITE}/".encode() + name for name in names} <= found


def test_what_no_manifest_can_hold_is_named_with_its_path(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    os.mkfifo(root / SITE / "pipe")
    (root / SITE / "out").symlink_to(tmp_path)
    (root / SITE / "up").symlink_to("../../../../x")
    previous = pathlib.Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(root)  # a socket's path is short
        try:
            listener.bind("s")
        finally:
            os.chdir(previous)
        assert problems(root) == {
            f"{SITE}/pipe": "is a FIFO",
            f"{SITE}/out": f"links out of the tree, to {tmp_path}",
            f"{SITE}/up": "links out of the tree, to ../../../../x",
            "s": "is a socket",
        }


def test_links_in_a_circle_end(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    (root / SITE / "loop").symlink_to("loop")
    (root / SITE / "pkg/self").symlink_to("../pkg")
    assert manifest_of(root).entries[f"{SITE}/pkg/self"].target == "../pkg"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_leaves_no_fingerprint(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", FILES)
    (root / SITE / "pkg/data.bin").chmod(0)
    assert problems(root) == {f"{SITE}/pkg/data.bin": "Permission denied"}


def test_a_file_that_changes_while_it_is_read_is_a_problem(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_environment(tmp_path / "env", FILES)

    def examine(jobs: list[hashing.Job], progress: object = None) -> list[hashing.Result]:
        del progress
        for content in (b"grown" * 100, b"x"):
            put(root / SITE / "pkg/data.bin", content)
        return original(jobs)

    original = hashing.examine
    monkeypatch.setattr(hashing, "examine", examine)
    assert problems(root) == {f"{SITE}/pkg/data.bin": "changed while it was read"}


def test_a_folder_that_is_none_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AgentError, match="is not a folder"):
        tree.scan(str(tmp_path / "absent"))


def test_a_second_look_reads_nothing_and_says_the_same(tmp_path: pathlib.Path) -> None:
    root, cache = make_environment(tmp_path / "env", FILES), tmp_path / "cache" / "stat"
    py_compile.compile(str(root / SITE / "pkg/__init__.py"))
    age(root)
    first = summary_of(root, cache=cache)
    second = summary_of(root, cache=cache)
    assert first["read"] > 0
    assert second == first | {"read": 0}
    third = summary_of(root, cache=cache, rehash=True)
    assert third == first


@pytest.mark.parametrize("year", [-400, 1960, 2300, 2440])
def test_a_file_of_any_year_is_like_others(tmp_path: pathlib.Path, year: int) -> None:
    """The kernel keeps what utime(2) sets, as the filesystem can; 64 bits of nanoseconds end in 2262."""
    root, cache = make_environment(tmp_path / "env", FILES), tmp_path / "cache" / "stat"
    same = fingerprint(root)
    seconds = (year - 1970) * 31_556_952
    os.utime(root / SITE / "pkg/data.bin", (seconds, seconds))
    beside = put(root / SITE / "pkg-1.0.dist-info/INSTALLER", "pip\n")
    os.utime(beside, (seconds, seconds))
    age(root)
    assert fingerprint(root, cache) == same
    assert summary_of(root, cache=cache)["read"] == 0, "the key is stable"
    os.utime(root / SITE / "pkg/data.bin", (seconds + 1, seconds + 1))
    age(root)
    assert summary_of(root, cache=cache)["read"] > 0, "and another one where the time is"


def test_an_edit_behind_restored_times_is_seen(tmp_path: pathlib.Path) -> None:
    root, cache = make_environment(tmp_path / "env", FILES), tmp_path / "stat"
    age(root)
    before = fingerprint(root, cache)
    path = root / SITE / "pkg/data.bin"
    status = path.stat()
    _edit(root)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(root, cache) != before
    assert fingerprint(root, cache) == fingerprint(root)


def test_young_entries_are_not_trusted(tmp_path: pathlib.Path) -> None:
    root, cache = make_environment(tmp_path / "env", FILES), tmp_path / "stat"
    for number in range(50):  # edits of the same size within one tick of the filesystem's clock
        put(root / SITE / "pkg/a.py", f"x = {number:02}\n")
        assert fingerprint(root, cache) == fingerprint(root)


@pytest.mark.parametrize("damage", [b"", b"junk", None], ids=["empty", "junk", "one bit"])
def test_a_damaged_cache_is_ignored(tmp_path: pathlib.Path, damage: bytes | None) -> None:
    root, cache = make_environment(tmp_path / "env", FILES), tmp_path / "stat"
    age(root)
    before = fingerprint(root, cache)
    content = bytearray(cache.read_bytes())
    content[-20] ^= 1
    cache.write_bytes(content if damage is None else damage)
    assert fingerprint(root, cache) == before


def test_two_processes_say_what_one_says(tmp_path: pathlib.Path) -> None:
    files = {f"pkg/{number}.py": os.urandom(number * 700) for number in range(150)}
    root = make_environment(tmp_path / "env", {**files, "big.so": os.urandom(9 << 20)})
    seen = walk.walk(os.fsencode(root))
    jobs = [
        hashing.Job(str(root / os.fsdecode(path)), file.size, file.key) for path, file in seen.files.items()
    ]
    assert hashing.examine(jobs, workers=3) == hashing.examine(jobs, workers=1)


def test_without_memory_to_share_one_process_does_all(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_environment(tmp_path / "env", {f"pkg/{number}.py": f"{number}\n" for number in range(150)})
    seen = walk.walk(os.fsencode(root))
    jobs = [
        hashing.Job(str(root / os.fsdecode(path)), file.size, file.key) for path, file in seen.files.items()
    ]
    shared = hashing.examine(jobs, workers=3)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("hostenv.agent.hashing.mmap.mmap", refuse)
    assert hashing.examine(jobs, workers=3) == shared


def many_folders(folder: pathlib.Path) -> pathlib.Path:
    """Make an environment with enough folders for a second process, and something of every kind in them."""
    files = {f"pkg{number}/sub/{name}.py": name for number in range(80) for name in "abc"}
    root = make_environment(folder, {**files, "pkg1.dist-info/RECORD": "", "pkg1.dist-info/INSTALLER": "uv"})
    (root / SITE / "pkg2/sub/link.py").symlink_to("a.py")
    (root / SITE / "pkg3/out.py").symlink_to("/etc/hostname")
    os.mkfifo(root / SITE / "pkg4/sub/pipe")
    os.link(root / SITE / "pkg5/sub/a.py", root / SITE / "pkg6/sub/other.py")
    return root


def seen_by(found: walk.Walked) -> tuple[object, ...]:
    """Return all that a walk tells, in an order."""
    told = (found.files, found.links, found.digests, found.left_out, found.newest, found.shared)
    return (*told, sorted(found.problems))


@pytest.mark.parametrize("fate", ["answers", "dies", "cannot be started"])
def test_a_walk_by_two_processes_sees_what_one_sees(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    folder = many_folders(tmp_path / "env")
    root = os.fsencode(folder)
    alone = walk.walk(root, helper=False)
    assert {os.fsdecode(path) for path in alone.files if path.startswith(b"lib/")} == {
        str(path.relative_to(folder))
        for path in (folder / "lib").rglob("*")
        if path.is_file() and not path.is_symlink() and path.name != "INSTALLER"
    }
    assert alone.shared == 2
    parent, begun, packed = os.getpid(), tmp_path / "begun", walk.Walked.packed

    def seen_here(self: walk.Walked) -> tuple[object, ...]:
        if os.getpid() != parent:
            begun.touch()  # of the pipes here, it has none
            if fate == "dies":
                os._exit(9)
        elif fate != "cannot be started":
            monkeypatch.undo()
            while not begun.exists():  # the second process has its turn
                time.sleep(0.001)
        return packed(self)

    def no_process() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    if fate == "cannot be started":
        monkeypatch.setattr(os, "fork", no_process)
    monkeypatch.setattr(walk.Walked, "packed", seen_here)
    assert seen_by(walk.walk(root)) == seen_by(alone)


def test_work_is_shared_by_bytes() -> None:
    sizes = [900 << 20, 10, 20, 500 << 20, 450 << 20] + [1000] * 1000
    shares = hashing.share_out(sizes, 2)
    assert sorted(number for share in shares for number in share) == list(range(len(sizes)))
    loads = [sum(sizes[number] + 40_000 for number in share) for share in shares]
    assert max(loads) / min(loads) < 1.1


def test_a_child_that_dies_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_environment(tmp_path / "env", {f"{number}.py": "x" for number in range(100)})
    parent = os.getpid()

    def digest_of(*_: object) -> bytes:
        if os.getpid() != parent:
            os._exit(9)
        return b"\0" * 32

    monkeypatch.setattr(hashing, "digest_of", digest_of)
    with pytest.raises(AgentError, match="ended early"):
        tree.scan(str(root))


def test_interpreter_is_reported_beside_the_fingerprint(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env")
    told = summary_of(root)["interpreter"]
    assert (told["implementation"], told["version"], told["python"], told["abi"]) == (
        "cpython",
        "3.12.1",
        "3.12",
        "cp312",
    )
    assert told["system"].lower() == sys.platform
