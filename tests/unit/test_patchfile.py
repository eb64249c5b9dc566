"""Patches read and applied exactly, against GNU diff and patch and git."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostenv.errors import PatchError
from hostenv.spec.patchapply import ALREADY_APPLIED, FileState, apply_patch
from hostenv.spec.patchfile import read_patch
from kit.difftools import Tree, git_apply, git_diff, gnu_diff, gnu_patch, needs_tools

if TYPE_CHECKING:
    from collections.abc import Callable

# Few different lines, so that many places of a file look alike; odd ones among them.
LINE = st.sampled_from([b"a", b"b", b"", b" x", b"c\r", b"\t", b"-- d", b"++ e", b"\xff\xfe", b"f" * 90])
LINES = st.lists(LINE, max_size=25)
ENDED = st.booleans()


def text(lines: list[bytes], *, ended: bool) -> bytes:
    return b"\n".join(lines) + (b"\n" if ended and lines else b"")


TEXT = st.builds(lambda lines, ended: text(lines, ended=ended), LINES, ENDED)


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return a text file and an edit of it."""
    lines = draw(LINES)
    new = list(lines)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(new)))
        if draw(st.booleans()):
            new.insert(at, draw(LINE))
        else:
            del new[at : at + draw(st.integers(1, 3))]
    return text(lines, ended=draw(ENDED)), text(new, ended=draw(ENDED))


def ours(tree: Tree, patch: bytes, strip: int = 1) -> Tree | str:
    """Return what hostenv makes of ``tree``, or its first refusal."""
    states = {path: FileState(content=content, executable=x) for path, (content, x) in tree.items()}
    try:
        _, changes = read_patch(patch, strip=strip)
    except PatchError as error:
        return error.message
    done = apply_patch(changes, states.get)
    if done.misfits:
        return done.misfits[0].message
    result = states | {path: state for path, state in done.files.items() if state}
    gone = {path for path, state in done.files.items() if state is None}
    return {path: (state.content, state.executable) for path, state in result.items() if path not in gone}


def one(content: bytes, *, executable: bool = False) -> Tree:
    return {"pkg/mod.py": (content, executable)}


# What the tools make of random edits


@needs_tools
@settings(deadline=None, max_examples=40)
@given(edit=edited(), context=st.sampled_from(["-U0", "-U1", "-U3", "-U9"]))
def test_gnu_diffs_apply_as_gnu_patch_applies_them(edit: tuple[bytes, bytes], context: str) -> None:
    old, new = (one(side) for side in edit)
    patch = gnu_diff(old, new, "-raN", context)
    if patch:
        assert ours(old, patch) == new == gnu_patch(old, patch)


@needs_tools
@settings(deadline=None, max_examples=40)
@given(edit=edited(), context=st.sampled_from(["-U1", "-U3", "-W"]), mode=st.tuples(ENDED, ENDED))
def test_git_diffs_apply_as_git_applies_them(
    edit: tuple[bytes, bytes], context: str, mode: tuple[bool, bool]
) -> None:
    old, new = (one(side, executable=x) for side, x in zip(edit, mode, strict=True))
    patch = git_diff(old, new, "--text", context)
    if patch:
        assert ours(old, patch) == new == git_apply(old, patch)


@needs_tools
@settings(deadline=None, max_examples=40)
@given(edit=edited(), found=st.builds(lambda content, x: one(content, executable=x), TEXT, ENDED))
def test_another_file_gives_what_both_tools_give_or_is_refused(
    edit: tuple[bytes, bytes], found: Tree
) -> None:
    old, new = (one(side) for side in edit)
    for patch in (git_diff(old, new, "--text"), gnu_diff(old, new, "-raN", "-U2")):
        result = ours(found, patch) if patch else "nothing"
        if isinstance(result, dict):
            assert result == git_apply(found, patch, "--unidiff-zero")
            assert result == gnu_patch(found, patch)


@needs_tools
@settings(deadline=None, max_examples=40)
@given(edit=edited(), seed=st.integers(0, 2**32))
def test_any_byte_changed_where_the_patch_looks_is_refused(edit: tuple[bytes, bytes], seed: int) -> None:
    old, new = (one(side) for side in edit)
    patch = git_diff(old, new, "--text")
    _, changes = read_patch(patch) if patch else (b"", ())
    lines = [at for c in changes for h in c.hunks for at in range(h.old_at, h.old_at + len(h.old))]
    if lines:
        content = edit[0].split(b"\n")
        content[random.Random(seed).choice(lines)] += b"!"  # noqa: S311  test data
        assert "expected" in str(ours(one(b"\n".join(content)), patch))


@needs_tools
@settings(deadline=None, max_examples=60)
@given(edit=edited(), seed=st.integers(0, 2**32))
def test_a_damaged_patch_gives_what_a_tool_gives_or_is_refused(edit: tuple[bytes, bytes], seed: int) -> None:
    old, new = (one(side) for side in edit)
    patch = git_diff(old, new, "--text")
    source = random.Random(seed)  # noqa: S311  test data
    lines = patch.splitlines(keepends=True)
    if lines:
        at = source.randrange(len(lines))
        damage = source.choice(["drop", "double", "swap", "cut"])
        if damage == "drop":
            del lines[at]
        elif damage == "double":
            lines.insert(at, lines[at])
        elif damage == "swap":
            lines[at], lines[at - 1] = lines[at - 1], lines[at]
        else:
            lines = lines[:at]
        damaged = b"".join(lines)
        result = ours(old, damaged)
        if isinstance(result, dict):
            assert result in (git_apply(old, damaged), gnu_patch(old, damaged))


@needs_tools
@settings(deadline=None, max_examples=40)
@given(old=st.binary(max_size=400), new=st.binary(max_size=400), keep=st.integers(0, 400))
def test_binary_patches_apply_as_git_applies_them(old: bytes, new: bytes, keep: int) -> None:
    before = one(b"\0" + bytes(range(256)) * 3 + old)
    after = one(b"\0" + bytes(range(256)) * 3 + old[:keep] + new)
    patch = git_diff(before, after, "--binary")
    if patch:
        assert ours(before, patch) == after == git_apply(before, patch)
        assert "expected blob" in str(ours(one(before["pkg/mod.py"][0] + b"!"), patch))


# What the tools make of trees

BASE: Tree = {
    "pkg/a.py": (b"".join(b"line %d\n" % n for n in range(30)), False),
    "pkg/with space.py": (b"one\ntwo\nthree\n", False),
    "pkg/caf\u00e9.py": (b"un\ndeux\n", False),
    'pkg/quo"te\\tab\t.py': (b"q\n", False),
    "pkg/run.sh": (b"#!/bin/sh\n", True),
    "pkg/empty.txt": (b"", False),
    "pkg/data.bin": (bytes(range(256)) * 20, False),
    "pkg/dos.ini": (b"[a]\r\nb=1\r\n", False),
    "pkg/a b/a b": (b"x\n", False),
}


def changed(change: Callable[[Tree], object]) -> Tree:
    tree = dict(BASE)
    change(tree)
    return tree


def _rename(tree: Tree, old: str, new: str, edit: bytes = b"") -> None:
    content, executable = tree.pop(old)
    tree[new] = (content + edit, executable)


TREES = {
    "new file": changed(lambda t: t.update({"pkg/new.py": (b"x = 1\n", False)})),
    "new executable": changed(lambda t: t.update({"new.sh": (b"x", True)})),
    "new empty file": changed(lambda t: t.update({"pkg/e": (b"", False)})),
    "new file with a space": changed(lambda t: t.update({"pkg/n w": (b"x\n", False)})),
    "new empty file with a space": changed(lambda t: t.update({"pkg/n w": (b"", False)})),
    "deleted": changed(lambda t: t.pop("pkg/a.py")),
    "deleted empty": changed(lambda t: t.pop("pkg/empty.txt")),
    "deleted executable": changed(lambda t: t.pop("pkg/run.sh")),
    "emptied": changed(lambda t: t.update({"pkg/a.py": (b"", False)})),
    "filled": changed(lambda t: t.update({"pkg/empty.txt": (b"now\n", False)})),
    "renamed": changed(lambda t: _rename(t, "pkg/a.py", "other/b c.py")),
    "renamed and edited": changed(lambda t: _rename(t, "pkg/a.py", "pkg/b\u00e9.py", b"more\n")),
    "mode": changed(lambda t: t.update({"pkg/run.sh": (b"#!/bin/sh\n", False)})),
    "mode and edit": changed(lambda t: t.update({"pkg/a.py": (BASE["pkg/a.py"][0] + b"z", True)})),
    "mode of a name with spaces": changed(lambda t: t.update({"pkg/a b/a b": (b"x\n", True)})),
    "space": changed(lambda t: t.update({"pkg/with space.py": (b"one\n2\nthree", False)})),
    "quoted": changed(lambda t: t.update({'pkg/quo"te\\tab\t.py': (b"Q\n", False)})),
    "not ascii": changed(lambda t: t.update({"pkg/caf\u00e9.py": (b"un\ntrois\n", False)})),
    "carriage returns": changed(lambda t: t.update({"pkg/dos.ini": (b"[a]\r\nb=2\r\nc\n", False)})),
    "binary": changed(lambda t: t.update({"pkg/data.bin": (bytes(range(256)) * 19 + b"end", False)})),
    "new binary": changed(lambda t: t.update({"pkg/new.bin": (b"\0\1\2" * 9, True)})),
    "deleted binary": changed(lambda t: t.pop("pkg/data.bin")),
    "many": changed(lambda t: t.pop("pkg/a.py")) | {"a": (b"1\n", False), "pkg/run.sh": (b"x", True)},
}


@needs_tools
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(
    "options", [("--binary",), ("--binary", "-M", "-C", "--find-copies-harder"), ("--binary", "--no-prefix")]
)
def test_trees_diffed_by_git(name: str, options: tuple[str, ...]) -> None:
    patch = git_diff(BASE, TREES[name], *options)
    strip = 0 if "--no-prefix" in options else 1
    assert ours(BASE, patch, strip) == TREES[name] == git_apply(BASE, patch, f"-p{strip}")
    # GNU patch knows git's headers, too; binary patches and some names with spaces it refuses
    assert gnu_patch(BASE, patch, f"-p{strip}") in (None, TREES[name])


@needs_tools
@pytest.mark.parametrize("name", sorted(TREES))
def test_trees_diffed_by_gnu_diff(name: str) -> None:
    patch = gnu_diff(BASE, TREES[name])
    expected = gnu_patch(BASE, patch)
    result = ours(BASE, patch)
    if isinstance(result, str):  # what diff cannot carry (binary files, modes alone, empty files) is refused
        assert any(word in result for word in ("is empty", "no unified or git diff", "belongs to no change"))
        assert expected != TREES[name]
    else:
        assert result == expected


@needs_tools
def test_a_rename_that_swaps_two_files() -> None:
    swapped = dict(BASE) | {
        "pkg/a.py": (BASE["pkg/data.bin"][0], False),
        "pkg/data.bin": (BASE["pkg/a.py"][0], False),
    }
    patch = git_diff(BASE, swapped, "--binary", "-B", "-M")
    assert b"rename from" in patch
    assert ours(BASE, patch) == swapped == git_apply(BASE, patch)


@needs_tools
def test_a_copy_reads_its_source_as_it_was_before_the_patch() -> None:
    content = BASE["pkg/a.py"][0]
    copied = dict(BASE) | {"pkg/a.py": (b"top\n" + content, False), "pkg/z.py": (content + b"end\n", False)}
    patch = git_diff(BASE, copied, "-C")
    assert b"copy from" in patch
    assert ours(BASE, patch) == copied == git_apply(BASE, patch)


@needs_tools
def test_a_mails_signature_ends_the_patch() -> None:
    patch = git_diff(BASE, TREES["space"]) + b"-- \n2.47.0\n\n"
    assert ours(BASE, patch) == TREES["space"] == git_apply(BASE, patch)


# What is refused, and how it is said

OLD = b"one\ntwo\nthree\nfour\nfive\n"


def hunk(*lines: str, header: str = "@@ -1,3 +1,3 @@", name: str = "pkg/mod.py") -> bytes:
    body = lines or (" one", "-two", "+TWO", " three")
    return "\n".join([f"--- a/{name}", f"+++ b/{name}", header, *body, ""]).encode()


def git(*headers: str) -> bytes:
    return "\n".join(["diff --git a/pkg/mod.py b/pkg/mod.py", *headers, ""]).encode()


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (hunk(" one", "-zwei", "+TWO", " three"), "hunk 1: line 2: expected 'zwei\\n', found 'two\\n'"),
        (hunk(header="@@ -2,3 +2,3 @@"), "hunk 1: line 2: expected 'one\\n', found 'two\\n'"),
        (hunk(header="@@ -9,3 +9,3 @@"), "found the end of the file (5 lines)"),
        (hunk(header="@@ -1,3 +2,3 @@"), "says that 1 lines of the result stand before it, but there are 0"),
        (hunk(header="@@ -1,4 +1,4 @@"), "the patch ends here"),
        (hunk(header="@@ -1,2 +1,2 @@"), "' three\\n' belongs to no change"),
        (hunk(header="@@ -1,3 +1,2 @@"), "more lines than its header"),
        (hunk(header="@@ -0,3 +1,3 @@"), "names line 0"),
        (hunk(header="@@ one @@"), "is not a hunk header"),
        (hunk(" one", " two", " three"), "changes nothing"),
        (hunk(" one", "-two", "TWO", " three"), "'TWO\\n' is no line of a hunk"),
        (hunk("-one", "-two", "+TWO", "+three", "\\ No newline at end of file", " three"), "no newline"),
        (hunk(" two", " three", "-four", "+4", header="@@ -2,3 +2,3 @@"), "made at the end of the file"),
        (hunk("-two", "+2", " three", " four", header="@@ -2,3 +2,3 @@"), "made at the start of the file"),
        (hunk() + hunk(), "pkg/mod.py is changed twice"),
        (hunk() + b"@@ -1 +1 @@\n-one\n+1\n", "hunk 2 does not follow hunk 1"),
        (b"-" + hunk() + hunk(name="pkg/two.py"), "'+++ b/pkg/mod.py\\n' belongs to no change"),
        (b"diff -ruN a b\n-" + hunk(), "'---- a/pkg/mod.py\\n' belongs to no change"),
        (hunk()[:-1], "does not end with a newline"),
        (b"", "is empty"),
        (b"Description: x\n", "holds no unified or git diff"),
        (hunk().replace(b"\n", b"\r\n"), "has a carriage return"),
        (hunk(name="../x"), "not a plain path"),
        (hunk(name="pkg/../x"), "not a plain path"),
        (hunk(name="pkg//x"), "not a plain path"),
        (hunk(name="/etc/passwd"), "is absolute"),
        (hunk(name=".git/config"), "leads into a git folder"),
        (hunk(name="pkg/.GIT/config"), "leads into a git folder"),
        (hunk(name="dist-1.0.dist-info/RECORD"), "the installer's"),
        (hunk(name="dist-1.0.data/scripts/x"), "the installer's"),
        (hunk().replace(b"+++ b/pkg/mod.py", b"+++ b/pkg/other.py"), "are not one file"),
        (hunk().replace(b"a/pkg/", b"").replace(b"b/pkg/", b""), "components to strip"),
        (hunk().replace(b"a/pkg/", b"/pkg/").replace(b"b/pkg/", b"/pkg/"), "components to strip"),
        (b"diff --git a/n w /n w\nnew file mode 100644\n", "cannot be told apart"),
        (b'diff --git a/n w "/n w\nnew file mode 100644\n', "cannot be told apart"),
        (hunk(name="pkg/missing.py"), "the distribution has no such file"),
        (b"--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "the distribution has no such file"),
        (b"--- /dev/null\n+++ b/pkg/mod.py\n@@ -0,0 +1 @@\n+one\n", "is to be made, and exists"),
        (b"--- a/pkg/mod.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", "do not remove every line"),
        (b"--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-one\n+1\n", "neither before nor after"),
        (hunk() + b"Only in b: y\n", "'Only in b: y\\n' belongs to no change"),
        (hunk() + b"-- \na\nb\n", "text follows the patch's signature"),
        (git("new file mode 120000", "index 0000000..1234567"), "a symbolic link cannot be patched"),
        (git("new file mode 160000", "index 0000000..1234567"), "a submodule cannot be patched"),
        (git("index 1234567..7654321 100644"), "changes nothing"),
        (git("old mode 100644"), "go together"),
        (git("old mode 100755", "new mode 100644"), "expected mode 100755, found 100644"),
        (git("new file mode 100644", "deleted file mode 100644"), "contradicts 'add'"),
        (git("new file mode 100644", "new file mode 100644"), "a second 'new file mode'"),
        (git("rename from pkg/mod.py"), "'rename to' is missing"),
        (git("index 1234567..7654321", "Binary files a/x and b/x differ"), "does not hold its bytes"),
        (git("index 1234567..7654321", "GIT binary patch", "literal 0"), "needs full object ids"),
        (git("index 1..2"), "is not the value of an index line"),
        (b"diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "cannot be told apart"),
        (b'diff --git "a/x b/x\nnew file mode 100644\n', "no closing quote"),
        (b'diff --git "a/\\q" "b/\\q"\nnew file mode 100644\n', "unknown escape"),
        (b'diff --git "a/\\377" "b/\\377"\nnew file mode 100644\n', "is not UTF-8"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_wrong(patch: bytes, message: str) -> None:
    assert message in str(ours(one(OLD), patch))


@needs_tools
@pytest.mark.parametrize("name", ["../x", "pkg/../../x", "/x", ".git/config", "pkg/.git/config"])
def test_names_that_lead_elsewhere_are_refused_by_all(name: str) -> None:
    plain = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"
    for patch in (plain, f"diff --git a/{name} b/{name}\nnew file mode 100644\n{plain}"):
        assert isinstance(ours(BASE, patch.encode()), str)
        assert git_apply(BASE, patch.encode()) is None
        assert gnu_patch(BASE, patch.encode()) is None or ".." not in name


@needs_tools
@pytest.mark.parametrize("target", ["../x", "pkg/../../x", "/x", ".git/hooks/post-checkout"])
@pytest.mark.parametrize("verb", ["rename", "copy"])
def test_what_moves_a_file_elsewhere_is_refused_by_all(verb: str, target: str) -> None:
    patch = (
        f"diff --git a/pkg/a.py b/{target}\nsimilarity index 100%\n{verb} from pkg/a.py\n{verb} to {target}\n"
    ).encode()
    assert isinstance(ours(BASE, patch), str)
    assert git_apply(BASE, patch) is None


@needs_tools
@pytest.mark.parametrize("content", [b"one\ntwo\nthree\n", b"one\r\ntwo\r\nthree\r\n"])
@pytest.mark.parametrize("sent", ["as it is", "with every line ended by CR LF", "with bare lines"])
def test_a_patch_whose_line_ends_a_mail_has_changed(content: bytes, sent: str) -> None:
    """The same as the tools that take it byte for byte, or refused: never other line ends than were meant."""
    before = {"pkg/mod.py": (content, False)}
    after = {"pkg/mod.py": (content.replace(b"two", b"2"), False)}
    patch = gnu_diff(before, after)
    if sent == "with bare lines":
        patch = patch.replace(b"\r\n", b"\n")
    elif sent != "as it is":
        patch = patch.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    result = ours(before, patch)
    if isinstance(result, str):
        assert patch != gnu_diff(before, after), "what diff wrote of these files must apply"
    else:
        assert result == after == gnu_patch(before, patch) == git_apply(before, patch)


IDS = f"index {'1' * 40}..{'2' * 40}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["literal x"], "neither 'literal SIZE' nor 'delta SIZE'"),
        (["literal 3", "zabcde", ""], "has not the length that it names"),
        (["literal 3", "Dabcd ", ""], "is not base85"),
        (["literal 3", "Dabcde", ""], "the binary patch is damaged"),
        (["literal 1000000", "HcmV?d00001", ""], "does not hold the 1000000 bytes"),
        (["literal 0", "HcmV?d00001"], "the patch ends here"),
        (["literal 0", "HcmV?d00001", ""], "is not the one that the binary patch was made from"),
    ],
)
def test_damaged_binary_patches_are_refused(lines: list[str], message: str) -> None:
    assert message in str(ours(one(OLD), git(IDS, "GIT binary patch", *lines)))


@pytest.mark.parametrize(
    "patch",
    [
        hunk(),
        b"--- /dev/null\n+++ b/pkg/mod.py\n@@ -0,0 +1,5 @@\n+one\n+TWO\n+three\n+four\n+five\n",
        b"--- a/pkg/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n",
        b"diff --git a/x b/pkg/mod.py\nsimilarity index 100%\nrename from x\nrename to pkg/mod.py\n",
    ],
)
def test_a_change_that_is_there_already_is_named_so(patch: bytes) -> None:
    present = FileState(content=OLD.replace(b"two", b"TWO"))
    _, changes = read_patch(patch)
    (misfit,) = apply_patch(changes, {"pkg/mod.py": present}.get).misfits
    assert misfit.hint == ALREADY_APPLIED


def test_an_empty_line_stands_for_empty_context() -> None:
    patch = hunk(" one", "", "-three", "+3", header="@@ -1,3 +1,3 @@")
    assert ours(one(b"one\n\nthree\n"), patch) == one(b"one\n\n3\n")


def test_strip_counts_components() -> None:
    patch = hunk().replace(b"a/pkg", b"a/python/pkg").replace(b"b/pkg", b"b/python/pkg")
    assert ours(one(OLD), patch, strip=2) == one(OLD.replace(b"two", b"TWO"))
    moved = b"diff --git a/py/pkg/mod.py b/py/x\nrename from py/pkg/mod.py\nrename to py/x\n"
    assert ours(one(OLD), moved, strip=2) == {"x": (OLD, False)}
