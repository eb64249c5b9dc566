"""Overlays as files of the repository: written, read, and what is wrong with them."""

from __future__ import annotations

import datetime as dt
import hashlib
import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.errors import InputError
from hostenv.spec.overlay import (
    Binary,
    Origin,
    OverlaidDistribution,
    Overlay,
    load_overlay,
    load_overlays,
    render,
)
from hostenv.spec.overlaylist import OverlayFile, parse, quoted, unquoted
from hostenv.spec.overlaylist import render as render_list

if TYPE_CHECKING:
    import pathlib

DIGEST = hashlib.sha256(b"x").hexdigest()
OTHER = hashlib.sha256(b"y").hexdigest()


def overlay(name: str = "ours", *files: OverlayFile, dist: str = "kernel", why: str = "w") -> Overlay:
    listed = files or (OverlayFile(path="kernel/a.py", dist=dist, mode=0o644, size=1, sha256=DIGEST),)
    return Overlay(
        name=name,
        why=why,
        origin=Origin(host="ref", venv="/opt/venv", taken=dt.date(2026, 12, 1), python="3.12", arch="x86_64"),
        distributions=(OverlaidDistribution(name=dist, version="1.0"),),
        binaries=(
            Binary(
                path="kernel/ops.so",
                machine="x86_64",
                glibc="2.34",
                needed=("libc.so.6",),
                gpu=("module sm_80 compute_86:9.0 x12",),
                problem=None,
            ),
        ),
        files=listed,
    )


def put(folder: pathlib.Path, *overlays: Overlay) -> None:
    for each in overlays:
        (folder / f"{each.name}.toml").write_text(render(each))
        (folder / f"{each.name}.files").write_text(render_list(each.files))


def test_what_is_written_is_read_again(tmp_path: pathlib.Path) -> None:
    files = (
        OverlayFile(path="kernel/a.py", dist="kernel", mode=0o755, size=1, sha256=DIGEST),
        OverlayFile(path="{prefix}/share/ü \n.json", dist="kernel", mode=0o644, size=0, sha256=OTHER),
        OverlayFile(path="kernel/l => x", dist="kernel", target="../kernel/a.py"),
        OverlayFile(path="loose.py", dist="-", mode=0o600, size=3, sha256=DIGEST),
    )
    made = overlay("ours", *files, why='a "quoted" \\ reason, ünïcode')
    put(tmp_path, made)
    found = load_overlay(tmp_path, "ours")
    assert found.digest == made.digest
    assert sorted(found.files, key=lambda each: each.path) == sorted(files, key=lambda each: each.path)
    assert (found.why, found.origin, found.binaries) == (made.why, made.origin, made.binaries)
    assert tomllib.loads(render(made))["why"] == made.why


@given(st.binary(min_size=1).filter(lambda raw: b"\0" not in raw))
def test_every_name_is_one_line_of_printable_ascii_and_comes_back(raw: bytes) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    text = quoted(name, ">")
    assert text.isascii()
    assert text.isprintable()
    assert unquoted(text) == name


@pytest.mark.parametrize(
    "line",
    [
        f"0644 1 {DIGEST} ../x.py",
        f"0644 1 {DIGEST} /etc/passwd",
        f"0644 1 {DIGEST} a//b",
        f"0644 1 {DIGEST} {{prefix}}/../x",
        f"0644 1 {DIGEST} {{prefix}}/lib/python3.12/site-packages/x.py",
        f"0644 1 {DIGEST} {{prefix}}/pyvenv.cfg",
        f"0644 1 {DIGEST} {{prefix}}/bin/python3",
        f"0644 1 {DIGEST} {{prefix}}/.hostenv/facts.json",
        f"4755 1 {DIGEST} a.py",
        f"0644 1 {DIGEST[:-1]} a.py",
        f"0644 -1 {DIGEST} a.py",
        "link a.py => /etc/passwd",
        "link a/b.py => ../../x",
        "link a.py => ..",
        "nonsense",
    ],
)
def test_a_line_that_leads_out_of_the_tree_or_is_none_is_refused(line: str) -> None:
    with pytest.raises(InputError, match="line 2"):
        parse(f"[kernel]\n{line}\n", "ours.files")


def test_a_path_twice_and_a_file_below_a_file_are_refused() -> None:
    text = f"[kernel]\n0644 1 {DIGEST} a\n0644 1 {DIGEST} a\nlink b => a\n0644 1 {DIGEST} b/c\n"
    with pytest.raises(InputError) as caught:
        parse(text, "ours.files")
    assert "a stands there twice" in caught.value.message
    assert "b/c lies below b" in caught.value.message


def test_the_digest_is_of_what_is_laid_and_not_of_whence_or_why(tmp_path: pathlib.Path) -> None:
    one, other = overlay("one", why="a"), overlay("other", why="b")
    assert one.digest == other.digest
    moved = OverlayFile(path="kernel/b.py", dist="kernel", mode=0o644, size=1, sha256=DIGEST)
    assert overlay("one", moved).digest != one.digest
    put(tmp_path, one)
    assert load_overlay(tmp_path, "one").digest == one.digest


def test_two_overlays_that_cannot_both_be_laid_are_named(tmp_path: pathlib.Path) -> None:
    file = OverlayFile(path="kernel/a.py", dist="renamed", mode=0o644, size=1, sha256=OTHER)
    put(tmp_path, overlay("one"), overlay("two"), overlay("three", file, dist="renamed"))
    with pytest.raises(InputError, match=r"one\.toml and overlays/two\.toml both bring kernel"):
        load_overlays(tmp_path, ["one", "two"])
    with pytest.raises(InputError, match=r"own kernel/a\.py with different bytes"):
        load_overlays(tmp_path, ["one", "three"])


def test_what_is_missing_or_does_not_belong_together_is_said(tmp_path: pathlib.Path) -> None:
    put(tmp_path, overlay("ours"))
    with pytest.raises(InputError, match='did you mean "ours"'):
        load_overlay(tmp_path, "our")
    (tmp_path / "ours.files").write_text(f"[another]\n0644 1 {DIGEST} a.py\n")
    with pytest.raises(InputError) as caught:
        load_overlay(tmp_path, "ours")
    assert "another has files in the list and no entry here" in caught.value.message
    assert "kernel has no file in the list" in caught.value.message
    (tmp_path / "ours.files").unlink()
    with pytest.raises(InputError, match=r"ours\.files: cannot be read"):
        load_overlay(tmp_path, "ours")
