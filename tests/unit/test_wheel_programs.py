"""A capture tells a program that a wheel brings from a script, whose first line the installer rewrites."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hostenv.facts.manifest import Entry
from hostenv.steps.captured import changes_of
from hostenv.steps.wheelfiles import wheel_files
from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib

PROGRAM, SCRIPT = b"\x7fELF one", b"#!python\nprint()\n"


def entry(content: bytes) -> Entry:
    return Entry(0o755, len(content), hashlib.sha256(content).hexdigest())


def test_another_program_of_the_same_name_is_a_change_and_a_rewritten_script_is_none(
    tmp_path: pathlib.Path,
) -> None:
    files = {"demo-1.0.data/scripts/ninja": PROGRAM, "demo-1.0.data/scripts/run": SCRIPT}
    pristine = {
        path: file
        for path, file in wheel_files(build_wheel(tmp_path, "demo", "1.0", files).path).items()
        if path.startswith("{prefix}/bin/")
    }
    there = {
        "{prefix}/bin/ninja": entry(PROGRAM),
        "{prefix}/bin/run": entry(b"#!/opt/venv/bin/python\nprint()\n"),
    }
    assert pristine.keys() == there.keys()
    assert changes_of(pristine, there, []) == ()
    there["{prefix}/bin/ninja"] = entry(b"\x7fELF other")
    assert [each.path for each in changes_of(pristine, there, [])] == ["{prefix}/bin/ninja"]
