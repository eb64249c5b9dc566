"""``--json -``: the document alone on standard output, what people read on the other."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from hostenv import commands

if TYPE_CHECKING:
    import pytest

    from kit.repository import Repository

SESSIONS = {
    "build_env": ("local",),
    "status": ("local",),
    "builds": ("local",),
    "match": ("local",),
    "probe": ("local",),
    "verify_abi": ("local",),
    "overlay": ("local", "ours", "demo", "--dry-run"),
    "prune": ("local", "--dry-run"),
}


def test_every_session_writes_its_document_to_standard_output(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    for session, words in SESSIONS.items():
        commands.run(session, [*words, "--json", "-"], repository.path)
        said = capfd.readouterr()
        document: dict[str, Any] = json.loads(said.out)
        assert document["version"], session
        assert said.err, session
    assert not (repository.path / "-").exists()


def test_nox_adds_nothing_to_the_document(repository: Repository) -> None:
    done = subprocess.run(
        repository.command("status", "--json", "-"),
        cwd=repository.path,
        env=repository.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [each["name"] for each in json.loads(done.stdout)["hosts"]] == ["local"]
