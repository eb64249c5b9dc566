"""Overlays as files of the repository: written, read, and what is wrong with them."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import tomllib
from dataclasses import replace
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
    check_rendered,
    load_overlay,
    load_overlays,
    render,
    stated_why,
)
from hostenv.spec.overlaylist import OverlayFile, parse, quoted, unquoted
from hostenv.spec.overlaylist import render as render_list
from hostenv.workflows.taking import write

if TYPE_CHECKING:
    import pathlib

DIGEST = hashlib.sha256(b"x").hexdigest()
OTHER = hashlib.sha256(b"y").hexdigest()


def overlay(name: str = "ours", *files: OverlayFile, dist: str = "kernel", why: str = "w") -> Overlay:
    listed = files or (OverlayFile(path="kernel/a.py", dist=dist, mode=0o644, size=1, sha256=DIGEST),)
    if not any(file.path.endswith("/METADATA") for file in listed):
        info = f"{dist}-1.0.dist-info/METADATA"
        listed += (OverlayFile(path=info, dist=dist, mode=0o644, size=1, sha256=OTHER),)
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
    assert sorted(found.files, key=lambda each: each.path) == sorted(made.files, key=lambda each: each.path)
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


@pytest.mark.parametrize(
    ("version", "info", "said"),
    [
        ("2.0", "kernel-1.0.dist-info", "kernel is 2.0 here, kernel-1.0.dist-info/METADATA in the list"),
        ("1.0", "kernel", "kernel has no NAME-VERSION.dist-info/METADATA in the list"),
        ("1.0-1", "kernel-1.0.post1.dist-info", None),
        ("1.0+cu13.0", "kernel-1.0+cu13.0.dist-info", None),
        ("1.0-1", "kernel-1.0-1.dist-info", None),
        ("odd-version", "kernel-odd_version.dist-info", None),
        ("1.0", "another-1.0.dist-info", "kernel has no NAME-VERSION.dist-info/METADATA in the list"),
    ],
)
def test_description_and_list_tell_of_one_version(
    tmp_path: pathlib.Path, version: str, info: str, said: str | None
) -> None:
    file = OverlayFile(path=f"{info}/METADATA", dist="kernel", mode=0o644, size=1, sha256=DIGEST)
    put(tmp_path, replace(overlay("ours", file), distributions=(dist_of(version),)))
    if said is None:
        assert load_overlay(tmp_path, "ours").distributions[0].version == version
        return
    with pytest.raises(InputError) as caught:
        load_overlay(tmp_path, "ours")
    assert said in caught.value.message


def dist_of(version: str) -> OverlaidDistribution:
    return OverlaidDistribution(name="kernel", version=version)


def test_what_could_not_be_read_again_is_told_before_it_is_written() -> None:
    check_rendered(overlay("ours"))
    own = OverlayFile(path="{prefix}/pyvenv.cfg", dist="kernel", mode=0o644, size=1, sha256=DIGEST)
    with pytest.raises(InputError, match="only the environment itself may write"):
        check_rendered(overlay("ours", own))


@pytest.mark.parametrize("file", ["ours.files", "ours.toml"])
def test_no_pipe_is_waited_for(tmp_path: pathlib.Path, file: str) -> None:
    put(tmp_path, overlay("ours"))
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    with pytest.raises(InputError, match=f"overlays/{file}.*cannot be read: not a regular file"):
        load_overlay(tmp_path, "ours")


def test_a_name_that_no_file_can_have_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        load_overlay(tmp_path, "x" * 300)


def test_both_files_of_an_overlay_are_written_or_neither(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ours.toml").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path, overlay("ours"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.toml"]
    (tmp_path / "ours.files").write_text("as it was")
    with pytest.raises(OSError, match="directory"):
        write(tmp_path, overlay("ours"))
    assert (tmp_path / "ours.files").read_text() == "as it was"
    (tmp_path / "ours.toml").rmdir()
    write(tmp_path, overlay("ours"))
    assert load_overlay(tmp_path, "ours").digest == overlay("ours").digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.files", "ours.toml"]


def test_why_is_known_whatever_else_is_wrong(tmp_path: pathlib.Path) -> None:
    assert stated_why(tmp_path, "ours") is None
    put(tmp_path, overlay("ours", why="of old"))
    (tmp_path / "ours.files").unlink()
    assert stated_why(tmp_path, "ours") == "of old"
    (tmp_path / "ours.toml").write_text("why = [")
    assert stated_why(tmp_path, "ours") is None


@pytest.mark.parametrize(
    "lines",
    [
        ["link kernel/1/2/3/4/5/6 => ../../../../../..", "link kernel/e => 1/2/3/4/5/6/../../../../../../.."],
        ["link a/b/top => ../..", "link a/c/d/e => ../../b/./top//x/../.."],
        [
            "link a/b/top => ../..",
            "link {prefix}/share/e => ../lib/python3.12/site-packages/a/b/top/../../../../..",
        ],
    ],
)
def test_a_link_that_leaves_the_tree_through_another_is_refused(
    tmp_path: pathlib.Path, lines: list[str]
) -> None:
    with pytest.raises(InputError, match="which goes up again after"):
        parse("[kernel]\n" + "\n".join(lines), "ours.files")
    env = tmp_path / "deep/env"
    site = env / "lib/python3.12/site-packages"
    for line in lines:
        path, _, target = line.removeprefix("link ").partition(" => ")
        place = env / path[9:] if path.startswith("{prefix}/") else site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    (site / "x").mkdir()
    assert not place.resolve().is_relative_to(site), "the kernel goes there"


def test_links_through_links_that_stay_below_are_let_through() -> None:
    lines = ["link a/latest => v2", "link a/deep/one => ../latest/ops.py", "link b => a/deep/one"]
    assert len(parse("[kernel]\n" + "\n".join(lines), "ours.files")) == 3


def test_a_link_through_one_of_another_overlay_is_refused(tmp_path: pathlib.Path) -> None:
    one = overlay("one", OverlayFile(path="kernel/b/top", dist="kernel", target="../.."))
    through = OverlayFile(path="other/e", dist="other", target="../kernel/b/top/..")
    put(tmp_path, one, overlay("two", through, dist="other"))
    with pytest.raises(InputError, match="goes up again after kernel/b/top"):
        load_overlays(tmp_path, ["one", "two"])


@pytest.mark.parametrize(
    "path",
    ["{prefix}/bin", "{prefix}/lib", "{prefix}/lib64", "{prefix}/pyvenv.cfg/x", "{prefix}/bin/python/x"],
)
def test_what_the_environment_itself_has_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="environment"):
        parse(f"[kernel]\n0644 1 {DIGEST} {path}\n", "ours.files")


def test_a_part_that_is_longer_than_a_name_can_be_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / ("x" * 255)).touch()
    parse(f"[kernel]\n0644 1 {DIGEST} {'x' * 255}/a.py\n", "ours.files")
    with pytest.raises(OSError, match="too long"):
        (tmp_path / ("x" * 256)).touch()
    with pytest.raises(InputError, match="longer than the 255 bytes"):
        parse(f"[kernel]\n0644 1 {DIGEST} {'x' * 256}/a.py\n", "ours.files")
