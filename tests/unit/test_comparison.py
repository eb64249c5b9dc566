"""Causes of differences, what a spec demands, and what is unknown; environments are written by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hostenv.checks.cause import Side
from hostenv.checks.comparison import (
    Comparison,
    Demands,
    LayerState,
    Outcome,
    Unread,
    compare,
    layer_states,
    matches,
)
from hostenv.checks.textdiff import LONGEST, text_difference
from hostenv.facts.environment import Claims, Inputs, Kept
from hostenv.facts.manifest import Difference, Entry, change
from hostenv.machine.memory import Memory, Remembered
from hostenv.spec.rules import Layer

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

SITE = "lib/python3.12/site-packages"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def file(sha256: str, mode: int = 0o644) -> Entry:
    return Entry(mode, 10, sha256)


def side(  # noqa: PLR0913  each is one thing that an environment tells
    *,
    version: str | None = "1.0",
    recorded: Mapping[str, str] | None = None,
    applied: Mapping[str, str | None] | None = None,
    series: tuple[tuple[str, ...], ...] = (("demo", "1.0", A),),
    overlaid: Mapping[str, str] | None = None,
    overlays: tuple[object, ...] = (),
    beside: Mapping[str, str] | None = None,
    kept: bool = True,
) -> Side:
    owners = {f"{SITE}/{path}": {f"demo=={version}": sha256} for path, sha256 in (recorded or {}).items()}
    inputs = Inputs(wheels=(), series=series, overlays=overlays)
    made = Kept(fingerprint=None, inputs=inputs, applied=applied or {}, overlaid=overlaid or {})
    claims = Claims(
        versions={"demo": version} if version else {},
        owners=owners,
        beside={f"{SITE}/{path}": name for path, name in (beside or {}).items()},
    )
    return Side(claims=claims, kept=made if kept else None, site=SITE)


def difference(path: str, one: Entry | None, other: Entry | None) -> Difference:
    return Difference(path=path, change=change(one, other), reference=one, target=other)


def only(found: Comparison) -> tuple[str | None, str, str]:
    """Return distribution, cause and detail of the one path that differs."""
    (group,) = found.groups
    (differing,) = group.differing
    return group.distribution, differing.cause.value, differing.detail


PATH = f"{SITE}/demo/x.py"
RECORDED = {"demo/x.py": A}


@pytest.mark.parametrize(
    ("one", "other", "reference", "target", "expected"),
    [
        pytest.param(
            side(recorded=RECORDED), side(recorded=RECORDED), A, B, ("edited", "on the target"), id="edited"
        ),
        pytest.param(
            side(recorded=RECORDED),
            side(recorded=RECORDED),
            B,
            C,
            ("edited", "on the reference and the target"),
            id="edited on both",
        ),
        pytest.param(
            side(recorded=RECORDED),
            side(version="2.0", recorded={"demo/x.py": B}),
            A,
            B,
            ("version", "1.0 → 2.0"),
            id="version",
        ),
        pytest.param(
            side(recorded=RECORDED),
            side(recorded={"demo/x.py": B}),
            A,
            B,
            ("version", "another wheel of the same version"),
            id="another wheel",
        ),
        pytest.param(
            side(recorded=RECORDED, applied={"demo/x.py": B}),
            side(recorded=RECORDED, series=()),
            B,
            A,
            ("patched", "by demo-1.0 on the reference only"),
            id="patched",
        ),
        pytest.param(
            side(recorded=RECORDED, applied={"demo/x.py": B}),
            side(recorded=RECORDED, applied={"demo/x.py": C}),
            B,
            C,
            ("patched", "by demo-1.0, not the same"),
            id="patched differently",
        ),
        pytest.param(
            side(recorded=RECORDED, applied={"demo/x.py": B}),
            side(recorded=RECORDED, applied={"demo/x.py": B}),
            B,
            A,
            ("edited", "on the target"),
            id="a patch undone by hand",
        ),
        pytest.param(
            side(recorded=RECORDED, overlaid={"demo": "abi"}, overlays=(A,)),
            side(version="2.0", recorded={"demo/x.py": B}),
            A,
            B,
            ("overlaid", "by abi on the reference only"),
            id="overlaid",
        ),
        pytest.param(
            side(recorded=RECORDED, overlaid={"demo": "abi"}, overlays=(A,)),
            side(recorded=RECORDED, overlaid={"demo": "abi"}, overlays=(B,)),
            A,
            B,
            ("overlaid", "by abi, not the same"),
            id="overlay taken again",
        ),
        pytest.param(
            side(recorded=RECORDED, kept=False),
            side(recorded=RECORDED, kept=False),
            A,
            None,
            ("missing", ""),
            id="missing",
        ),
    ],
)
def test_the_cause_of_a_difference(
    one: Side, other: Side, reference: str, target: str | None, expected: tuple[str, str]
) -> None:
    found = compare(one, other, [difference(PATH, file(reference), file(target) if target else None)])
    assert only(found) == ("demo", *expected)
    assert found.outcome is Outcome.DIFFERENT


def test_a_file_that_a_series_removed_is_patched() -> None:
    one = side(recorded=RECORDED, applied={"demo/x.py": None})
    other = side(recorded=RECORDED, series=())
    found = compare(one, other, [difference(PATH, None, file(A))])
    assert only(found) == ("demo", "patched", "by demo-1.0 on the reference only")


def test_a_file_of_nobodys_is_told_with_whom_it_lies() -> None:
    other = side(beside={"demo/x.bak": "demo"})
    found = compare(side(), other, [difference(f"{SITE}/demo/x.bak", None, file(A))])
    assert only(found) == ("demo", "extra", "owned by nobody")
    alone = compare(side(), side(), [difference(f"{SITE}/x.bak", None, file(A))])
    assert only(alone) == (None, "extra", "owned by nobody")


def test_mode_and_link_are_told_apart_from_content() -> None:
    both = side(recorded=RECORDED)
    assert only(compare(both, both, [difference(PATH, file(A), file(A, 0o755))]))[1] == "mode"
    assert only(compare(both, both, [difference(PATH, file(A), Entry(0, 0, "", "y"))]))[1] == "symlink"


def test_what_could_not_be_read_is_unknown_and_hides_what_lies_below() -> None:
    unread = (Unread(side="target", path=f"{SITE}/demo", reason="cannot be read"),)
    found = compare(side(), side(), [difference(PATH, file(A), None)], unread)
    assert (found.groups, found.outcome) == ((), Outcome.UNKNOWN)
    different = compare(side(), side(), [difference("pyvenv.cfg", file(A), file(B))], unread)
    assert different.outcome is Outcome.DIFFERENT


def test_what_may_differ_is_told_and_what_is_ignored_is_counted() -> None:
    both = side(recorded={"demo/x.py": A, "demo/a.log": A})
    found = compare(
        both,
        both,
        [difference(PATH, file(A), file(B)), difference(f"{SITE}/demo/a.log", file(A), file(B))],
        demands=Demands(may_differ=("demo/*",), ignore=("**/*.log",)),
    )
    assert (found.outcome, found.ignored) == (Outcome.ALLOWED, 1)
    assert [each.demanded for group in found.groups for each in group.differing] == [False]


def test_a_layer_that_may_differ_does_not_excuse_an_edit() -> None:
    one = side(recorded=RECORDED, applied={"demo/x.py": B})
    other = side(recorded=RECORDED, series=())
    demands = Demands(layers=frozenset({Layer.LOCK}))
    assert (
        compare(one, other, [difference(PATH, file(B), file(A))], demands=demands).outcome is Outcome.ALLOWED
    )
    assert (
        compare(one, other, [difference(PATH, file(C), file(A))], demands=demands).outcome
        is Outcome.DIFFERENT
    )


def test_layers_are_those_of_the_inputs_and_unknown_without() -> None:
    one, other = side(series=()).kept, side(overlays=(A,)).kept
    assert layer_states(one, other) == {
        Layer.LOCK: LayerState.EQUAL,
        Layer.PATCHES: LayerState.DIFFERENT,
        Layer.OVERLAYS: LayerState.DIFFERENT,
    }
    assert set(layer_states(one, None).values()) == {LayerState.UNKNOWN}


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a.log", "**/*.log", True),
        ("x/y/a.log", "**/*.log", True),
        ("x/y", "x/", True),
        ("xy", "x/", False),
        ("x/a[1].log", "x/a[[]1].log", True),
    ],
)
def test_patterns(path: str, pattern: str, *, expected: bool) -> None:
    assert matches(path, [pattern]) is expected


def test_text_differences_show_line_ends_and_are_bounded() -> None:
    crlf = text_difference("x", "a\nb\n", "a\r\nb\n")
    assert crlf.lines[3:5] == ("-a", "+a\r")
    assert text_difference("x", "a", "a\n").lines[3:] == ("-a\\ No newline at end of file", "+a")
    long = text_difference("x", "", "line\n" * 1000)
    assert (len(long.lines), long.cut) == (LONGEST, 1003 - LONGEST)
    assert text_difference("x", None, "a\n").lines[0] == "--- /dev/null"


def test_memory_keeps_the_last_and_forgets_what_is_damaged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path / "kept")
    monkeypatch.setattr("hostenv.machine.memory.LARGEST", 3_000)
    for number in range(4):
        content = os.urandom(1_000)
        memory.save(f"host{number}", Remembered(stat="s", tree={"files": number}, manifest=content))
    assert [bool(memory.load(f"host{number}")) for number in range(4)] == [False, False, True, True]
    name = "host3"
    found = memory.load(name)
    assert found is not None
    assert (found.tree["files"], memory.manifest(name), memory.cache(name)) == (3, content, None)
    for path in (tmp_path / "kept").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_bytes(path.read_bytes()[:-20])
    assert memory.load(name) is None
