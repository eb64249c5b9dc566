"""Patches that hostenv writes, held against git and against its own reader."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.spec.patchapply import FileState, apply_patch
from hostenv.spec.patchfile import read_patch
from hostenv.spec.patchheader import read_header
from hostenv.spec.patchwrite import header, is_text, write_change

if TYPE_CHECKING:
    import pathlib

LINES = st.lists(st.sampled_from([b"a", b"b", b"c\r", b"", b"\xff\xfe", b"\x0c x"]), max_size=12)


@st.composite
def states(draw: st.DrawFn) -> FileState:
    lines = draw(LINES)
    end = draw(st.sampled_from([b"", b"\n"]))
    content = b"\n".join(lines) + (end if lines else b"")
    return FileState(content=content, executable=draw(st.booleans()))


TOLD = header({"Description": "x\ny", "Origin": "here", "Forwarded": "no"})


@given(st.one_of(st.none(), states()), st.one_of(st.none(), states()))
def test_a_written_change_is_read_and_applied_to_the_same(
    before: FileState | None, after: FileState | None
) -> None:
    written = write_change("pkg/a file.py", before, after)
    if before == after:
        assert written == b""
        return
    preamble, changes = read_patch(TOLD + written, strip=1)
    assert read_header(preamble).description == "x\ny"
    done = apply_patch(changes, {"pkg/a file.py": before}.get)
    assert done.misfits == ()
    assert done.files == {"pkg/a file.py": after}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FileState(content=b"a\nb\n"), FileState(content=b"a\nc")),
        (FileState(content=b"a"), FileState(content=b"a", executable=True)),
        (None, FileState(content=b"")),
        (None, FileState(content=b"new\r\n", executable=True)),
        (FileState(content=b"gone\n"), None),
        (FileState(content=b""), None),
    ],
)
@pytest.mark.parametrize("name", ["pkg/mod.py", "pkg/a b.py", 'pkg/"q"\t.py', "pkg/ü.py", "pkg/back\\.py"])
def test_git_makes_the_same_of_it(
    tmp_path: pathlib.Path, before: FileState | None, after: FileState | None, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    if before:
        path.write_bytes(before.content)
        path.chmod(0o755 if before.executable else 0o644)
    (tmp_path / "one.patch").write_bytes(TOLD + write_change(name, before, after))
    subprocess.run(["git", "apply", "one.patch"], cwd=tmp_path, check=True)
    if after is None:
        assert not path.exists()
    else:
        assert path.read_bytes() == after.content
        assert bool(path.stat().st_mode & 0o100) == after.executable


def test_a_nul_makes_a_file_binary() -> None:
    assert is_text(None)
    assert is_text(FileState(content=b"\xff"))
    assert not is_text(FileState(content=b"a\0b"))
