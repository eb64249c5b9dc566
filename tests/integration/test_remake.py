"""``build_env --remake``: a finished build made anew, at one moment, and not under a process."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.repository import Repository


@pytest.fixture
def damaged(repository: Repository) -> Repository:
    """Return a repository whose current build has lost a file."""
    repository.build()
    (repository.site() / "demo/words.txt").unlink()
    return repository


def test_a_damaged_build_is_made_anew(damaged: Repository) -> None:
    assert damaged.build().host["headline"] == "nothing to do"
    ran = damaged.build("--remake")
    assert ran.host["changed"]
    assert (damaged.site() / "demo/words.txt").read_text() == "a b c\n"
    assert damaged.build().host["headline"] == "nothing to do"


def test_a_dry_run_of_it_only_says_so(damaged: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    damaged.build("--remake", "--dry-run")
    assert "exchange" in capsys.readouterr().err
    assert not (damaged.site() / "demo/words.txt").exists()


def test_a_build_that_a_process_uses_is_left_alone(damaged: Repository) -> None:
    python = damaged.current / "bin/python"
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE) as process:
        refused = damaged.run("build_env", "--remake")
        assert refused.document["outcome"] == "refused"
        assert f"pid {process.pid}" in refused.message
        assert not (damaged.site() / "demo/words.txt").exists()
        damaged.build("--remake", "--despite-running")
        assert (damaged.site() / "demo/words.txt").exists()
        process.communicate(b"\n")


def test_where_checks_failed_the_hint_names_it(repository: Repository) -> None:
    repository.wheel("demo", "3.0", {"demo.py": "X = 1\n"}, record={"demo.py": "sha256=" + "A" * 43})
    repository.spec("demo==3.0")
    ran = repository.run("build_env")
    assert ran.document["outcome"] == "checks", ran.message
    assert "nox -s build_env -- local --remake" in ran.message
