"""``build.io = "idle"``: what makes a build stands back behind a live server."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from hostenv.machine import uv

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Repository


def recording(folder: pathlib.Path) -> pathlib.Path:
    """Return a uv that notes, before it does its work, how it was called and how much it stands back."""
    script = folder / "recording-uv"
    told = '"$(nice) $(ionice -p $$) $*"'
    script.write_text(f'#!/bin/sh\necho {told} >>{folder}/calls\nexec {uv.binary()} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.skipif(not shutil.which("ionice"), reason="needs ionice of util-linux as an oracle")
@pytest.mark.parametrize(("io", "said"), [("idle", "19 idle "), ("normal", f"{os.nice(0)} none: ")])
def test_uv_runs_as_the_spec_says(
    repository: Repository, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, io: str, said: str
) -> None:
    fake = recording(tmp_path)
    monkeypatch.setattr(uv, "binary", lambda: fake)
    before = os.nice(0)
    repository.spec("demo==1.0", more=f'[build]\nio = "{io}"')
    repository.build()
    calls = (tmp_path / "calls").read_text().splitlines()
    (installed,) = (call for call in calls if " pip sync " in call)
    assert installed.startswith(said)
    assert os.nice(0) == before, "this process is not the one that stands back"
