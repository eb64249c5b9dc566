"""Series folders, and what they make of a wheel."""

from __future__ import annotations

import hashlib
import stat
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import PatchError, SupplyError
from hostenv.spec.patchapply import ALREADY_APPLIED
from hostenv.spec.series import check_versions, load_selected, load_series, split_name
from hostenv.steps.series import compute
from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping
    from types import FrameType

    from _typeshed import TraceFunction

    from hostenv.steps.series import SeriesResult

SOURCES = sys.modules["hostenv"].__path__[0]
HEADER = "Description: change\n something\nOrigin: this test\nForwarded: not-needed\nAuthor: A\n\n"
FILES = {
    "demo/__init__.py": "one\ntwo\nthree\n",
    "demo/run.sh": "#!/bin/sh\n",
    "demo/old.py": "gone\n",
    "demo-1.0.data/purelib/demo/elsewhere.py": "x\n",
}
EDIT = "--- a/demo/__init__.py\n+++ b/demo/__init__.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
EDIT_AGAIN = EDIT.replace("+TWO", "+zwei").replace("-two", "-TWO")
ADD = "--- /dev/null\n+++ b/demo/new.py\n@@ -0,0 +1 @@\n+new\n"
REMOVE = "--- a/demo/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"


def folder_of(
    root: pathlib.Path, patches: Mapping[str, str], *, name: str = "demo-1.0", series: str | None = None
) -> pathlib.Path:
    """Write a series folder; patches get a header unless they bring one."""
    folder = root / name
    folder.mkdir(parents=True)
    for patch, content in patches.items():
        whole = content if content.startswith("Description") else HEADER + content
        (folder / patch).write_bytes(whole.encode())
    (folder / "series").write_text("\n".join(patches) + "\n" if series is None else series)
    return folder


def result_of(tmp_path: pathlib.Path, patches: Mapping[str, str]) -> SeriesResult:
    wheel = build_wheel(tmp_path, "demo", "1.0", FILES, executable=["demo/run.sh"])
    return compute(load_series(folder_of(tmp_path / "patches", patches)), wheel.path)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_series_gives_the_changed_files_with_digests_and_modes(tmp_path: pathlib.Path) -> None:
    mode = "diff --git a/demo/run.sh b/demo/run.sh\nold mode 100755\nnew mode 100644\n"
    result = result_of(tmp_path, {"1.patch": EDIT + ADD, "2.patch": EDIT_AGAIN + REMOVE + mode})
    assert [(f.path, f.mode, f.content, f.pristine_sha256) for f in result.files] == [
        ("demo/__init__.py", 0o644, b"one\nzwei\nthree\n", sha256("one\ntwo\nthree\n")),
        ("demo/new.py", 0o644, b"new\n", None),
        ("demo/run.sh", 0o644, b"#!/bin/sh\n", sha256("#!/bin/sh\n")),
    ]
    assert [f.sha256 for f in result.files] == [hashlib.sha256(f.content).hexdigest() for f in result.files]
    assert dict(result.removed) == {"demo/old.py": sha256("gone\n")}


def test_what_a_later_patch_takes_back_is_no_result(tmp_path: pathlib.Path) -> None:
    back = EDIT.replace("-two", "-x").replace("+TWO", "+two").replace("-x", "-TWO")
    remove_new = "--- a/demo/new.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-new\n"
    result = result_of(tmp_path, {"1.patch": EDIT + ADD, "2.patch": back + remove_new})
    assert (result.files, dict(result.removed)) == ((), {})


def test_every_change_that_does_not_apply_is_named_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PatchError) as caught:
        result_of(
            tmp_path,
            {
                "1.patch": EDIT.replace("-two", "-zwei") + ADD,
                "2.patch": EDIT_AGAIN + REMOVE.replace("-gone", "-gon"),
                "3.patch": ADD,
            },
        )
    assert caught.value.message.splitlines() == [
        "patches/demo-1.0/1.patch: demo/__init__.py: hunk 1: line 2: expected 'zwei\\n', found 'two\\n'",
        "patches/demo-1.0/2.patch: demo/old.py: hunk 1: line 1: expected 'gon\\n', found 'gone\\n'",
        f"patches/demo-1.0/3.patch: demo/new.py: demo/new.py is to be made, and exists ({ALREADY_APPLIED})",
    ]
    assert "nothing was written" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demo/run.sh/x.py", "demo/run.sh: is a file and would be a folder"),
        ("demo", "demo: is a file and would be a folder"),
        ("run_me.pth", "run_me.pth: the wheel has nothing below run_me.pth"),
        ("other/x.py", "other/x.py: the wheel has nothing below other: a series adds files only to its own"),
        ("demo/elsewhere.py", "demo/elsewhere.py: the wheel installs this path from its *.data folder"),
    ],
)
def test_paths_that_cannot_be_made_are_refused(tmp_path: pathlib.Path, name: str, message: str) -> None:
    with pytest.raises(PatchError, match=r"patches/demo-1\.0: ") as caught:
        result_of(tmp_path, {"1.patch": ADD.replace("demo/new.py", name)})
    assert message in str(caught.value)


def test_a_wheel_of_another_release_is_refused(tmp_path: pathlib.Path) -> None:
    series = load_series(folder_of(tmp_path, {"1.patch": EDIT}))
    for name, version in (("demo", "1.0.post1"), ("other", "1.0")):
        wheel = build_wheel(tmp_path, name, version, FILES)
        with pytest.raises(PatchError, match=rf"is for demo 1\.0, and the wheel is {name} {version}"):
            compute(series, wheel.path)


def test_a_file_that_is_not_what_record_says_is_refused(tmp_path: pathlib.Path) -> None:
    series = load_series(folder_of(tmp_path, {"1.patch": EDIT}))
    wrong = build_wheel(tmp_path / "a", "demo", "1.0", FILES, record={"demo/__init__.py": "sha256=wrong"})
    with pytest.raises(SupplyError, match="RECORD says sha256=wrong, its bytes give sha256="):
        compute(series, wrong.path)
    without = build_wheel(tmp_path / "b", "demo", "1.0", FILES, record={"demo/__init__.py": ""})
    with pytest.raises(SupplyError, match="RECORD has no sha256"):
        compute(series, without.path)
    torn = tmp_path / "demo-1.0-py3-none-any.whl"
    torn.write_bytes(wrong.path.read_bytes()[:-40])
    with pytest.raises(SupplyError, match="cannot be read as a wheel"):
        compute(series, torn)


def test_a_link_in_the_wheel_is_never_patched(tmp_path: pathlib.Path) -> None:
    wheel = build_wheel(tmp_path, "demo", "1.0", {"demo/other.py": "x\n"})
    link = zipfile.ZipInfo("demo/__init__.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel.path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(PatchError, match=r"demo/__init__\.py is no regular file"):
        compute(load_series(folder_of(tmp_path / "p", {"1.patch": EDIT})), wheel.path)


def test_the_digest_is_that_of_names_order_strip_and_bytes(tmp_path: pathlib.Path) -> None:
    def digest(at: str, patches: Mapping[str, str], series: str | None = None, name: str = "demo-1.0") -> str:
        return load_series(folder_of(tmp_path / at, patches, series=series, name=name)).digest

    two = {"1.patch": EDIT, "2.patch": ADD}
    base = digest("base", two)
    assert digest("same", two, "# a comment\n\n1.patch -p1  # first\n2.patch\n") == base
    others = [
        digest("order", two, "2.patch\n1.patch\n"),
        digest("strip", two, "1.patch\n2.patch -p0\n"),
        digest("bytes", two | {"1.patch": EDIT.replace("+TWO", "+Two")}),
        digest("header", two | {"1.patch": HEADER.replace("something", "else") + EDIT}),
        digest("names", {"0.patch": EDIT, "2.patch": ADD}),
        digest("version", two, name="demo-1.1"),
        digest("dist", two, name="dem-1.0"),
    ]
    assert len({base, *others}) == len(others) + 1


def test_the_digest_does_not_change_from_release_to_release(tmp_path: pathlib.Path) -> None:
    series = load_series(folder_of(tmp_path, {"1.patch": ADD}))
    inner = sha256(HEADER + ADD)
    assert series.digest == sha256(f'[1,"demo","1.0",[["1.patch",1,"{inner}"]]]')
    assert (series.name, series.patches[0].header.description) == ("demo-1.0", "change\nsomething")


def test_all_problems_of_a_folder_are_told_at_once(tmp_path: pathlib.Path) -> None:
    patches = {
        "bad.patch": "Description: x\nOrgin: y\nForwarded: perhaps\n\n" + EDIT,
        "torn.patch": EDIT.split(" three", maxsplit=1)[0],
        "left.patch": EDIT,
    }
    series = "bad.patch\ntorn.patch\ntorn.patch\nmissing.patch\n../x.patch\nnot-a-patch\n"
    with pytest.raises(PatchError) as caught:
        load_series(folder_of(tmp_path, patches, series=series))
    for expected in (
        "patches/demo-1.0/bad.patch: line 2: unknown field 'Orgin' (did you mean 'origin'?)",
        "; the header lacks Origin; Forwarded is 'no', 'not-needed', 'yes' or a URL, not 'perhaps'",
        "patches/demo-1.0/torn.patch: line 12: the patch ends here, in the middle of a change",
        "patches/demo-1.0/missing.patch: cannot be read: No such file or directory",
        "patches/demo-1.0/series: line 5: '../x.patch' is not 'NAME.patch [-pN]'",
        "patches/demo-1.0/series: line 6: 'not-a-patch' is not 'NAME.patch [-pN]'",
        "patches/demo-1.0/series: torn.patch stands there twice",
        "patches/demo-1.0/left.patch: no line of series names it",
    ):
        assert expected in caught.value.message


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("Origin: x\nForwarded: no\n", "the header lacks Description"),
        ("Description: x\nOrigin: y\n", "the header lacks the upstream state: Forwarded or Applied-Upstream"),
        ("Description: x\nDescription: y\nOrigin: y\nForwarded: no\n", "line 2: a second Description"),
        ("Subject: x\nnonsense\nOrigin: y\nForwarded: no\n", "line 2: 'nonsense' is no header field"),
        ("", "the header lacks Description"),
    ],
)
def test_headers_that_lack_something(tmp_path: pathlib.Path, header: str, message: str) -> None:
    folder = folder_of(tmp_path, {"1.patch": "Description"})
    (folder / "1.patch").write_text(f"{header}\n{EDIT}")
    with pytest.raises(PatchError) as caught:
        load_series(folder)
    assert message in caught.value.message


@pytest.mark.parametrize(
    "header",
    [
        "Subject: x\nFrom: A\nOrigin: o\nApplied-Upstream: 1.1\n\nfree text: of any form\n-- too\n",
        "Description: x\nOrigin: o\nForwarded: https://example.org/1\nBug-Upstream: 3\nX-Own: 1\n\n",
    ],
)
def test_headers_that_are_whole(tmp_path: pathlib.Path, header: str) -> None:
    folder = folder_of(tmp_path, {"1.patch": "Description"})
    (folder / "1.patch").write_text(header + EDIT)
    assert load_series(folder).patches[0].header.origin == "o"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demo", "is not <distribution>-<version>"),
        ("demo-x", "is not <distribution>-<version>"),
        ("Demo-1.0", "rename it to demo-1.0"),
        ("my_demo-1.0", "rename it to my-demo-1.0"),
        ("demo-1.0-post1", "is not in normal form|is not <distribution>-<version>"),
        ("demo-1.0.POST1", "rename it to demo-1.0.post1"),
    ],
)
def test_names_that_are_no_series(name: str, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        split_name(name)


def test_names_of_series() -> None:
    assert split_name("sglang-kernel-0.4.4") == ("sglang-kernel", "0.4.4")
    assert split_name("torch-2.11.0+cu130") == ("torch", "2.11.0+cu130")


def test_a_selection_has_one_series_a_distribution(tmp_path: pathlib.Path) -> None:
    for name in ("demo-1.0", "demo-1.1", "other-2.0"):
        folder_of(tmp_path, {"1.patch": EDIT}, name=name)
    assert [s.name for s in load_selected(tmp_path, ["other-2.0", "demo-1.1"])] == ["other-2.0", "demo-1.1"]
    with pytest.raises(PatchError, match=r"demo-1\.1 and patches/demo-1\.0 are both for demo"):
        load_selected(tmp_path, ["demo-1.0", "demo-1.1"])
    with pytest.raises(PatchError, match=r"patches/demo-1.2 is not there \(did you mean 'demo-1.1'\?\)"):
        load_selected(tmp_path, ["demo-1.2"])


def test_a_series_for_what_is_not_locked_is_refused(tmp_path: pathlib.Path) -> None:
    series = load_selected(folder_of(tmp_path, {"1.patch": EDIT}).parent, ["demo-1.0"])
    check_versions(series, {"demo": "1.0", "other": "3"})
    with pytest.raises(PatchError, match=r"patches/demo-1\.0: the lock has no demo"):
        check_versions(series, {"other": "3"})
    with pytest.raises(PatchError, match=r"demo-1\.0 is for 1\.0; the lock has demo 1\.0\.post1"):
        check_versions(series, {"demo": "1.0.post1"})


def test_twice_the_files_are_twice_the_work(tmp_path: pathlib.Path) -> None:
    small, large = (_steps_of(tmp_path / str(count), count) for count in (50, 200))
    assert large < 4.6 * small


def _steps_of(folder: pathlib.Path, count: int) -> int:
    """Return how many bytecode instructions and calls hostenv takes for a series of many small changes."""
    files = {f"demo/{number}.py": "old\n" for number in range(count)}
    change = "--- a/demo/{0}.py\n+++ b/demo/{0}.py\n@@ -1 +1 @@\n-old\n+new\n"
    add = "--- /dev/null\n+++ b/demo/new{0}.py\n@@ -0,0 +1 @@\n+new\n"
    patch = "".join((change + add).format(number) for number in range(count))
    wheel = build_wheel(folder, "demo", "1.0", files)
    series = folder_of(folder / "patches", {"1.patch": patch})
    steps = 0

    def count_step(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal steps
        del argument
        if event == "call" and not frame.f_code.co_filename.startswith((SOURCES, "<string>")):
            return None
        frame.f_trace_opcodes = True
        steps += 1
        return count_step

    before = sys.gettrace()
    sys.settrace(count_step)
    try:
        result = compute(load_series(series), wheel.path)
    finally:
        sys.settrace(before)
    assert len(result.files) == 2 * count
    return steps
