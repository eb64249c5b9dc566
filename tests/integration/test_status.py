"""``status`` on hosts behind SSH: what stands there and what really runs; looking changes nothing."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pathlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kit.remotes import Remotes, remote_hosts
from kit.repository import Repository, listing
from kit.schema import violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.remotes import RemoteHost

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs/schema/status.schema.json").read_text(encoding="utf-8")
)
OFFLINE = "offline = true"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RemoteHost]]:
    with remote_hosts(tmp_path_factory.mktemp("hosts"), ["a", "c"]) as started:
        yield started


@pytest.fixture
def remotes(repository: Repository, hosts: dict[str, RemoteHost], monkeypatch: pytest.MonkeyPatch) -> Remotes:
    made = Remotes(repository=repository, hosts=hosts)
    for name, value in made.install().items():
        monkeypatch.setenv(name, value)
    made.share("demo==1.0")
    for name in hosts:
        made.spec(name, supply=OFFLINE)
    return made


@contextlib.contextmanager
def running(python: pathlib.Path) -> Iterator[int]:
    """Run an interpreter that waits."""
    program = "import demo, time; print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([python, "-B", "-c", program], stdout=subprocess.PIPE, cwd="/")
    try:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def status(repository: Repository, *names: str) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """Return the failure line and the document's hosts; it keeps to its published schema."""
    ran = repository.run("status", hosts=names)
    assert ran.error is None, ran.error
    assert violations(ran.document, SCHEMA) == []
    return ran.failure, {host["name"]: host for host in ran.document["hosts"]}


def test_what_runs_is_told_whatever_is_current(
    remotes: Remotes, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    old = repository.run("build_env", "--relock", hosts=["a"]).host["build"]
    with running(remotes.root("a") / "builds" / old / "bin/python") as pid:
        repository.wheel("demo", "2.0", {"demo/__init__.py": "VERSION = '2.0'\n"})
        remotes.share("demo==2.0")
        new = repository.run("build_env", "--relock", hosts=["a"]).host["build"]
        before = listing(remotes.root("a"))
        capsys.readouterr()
        failure, told = status(repository, "a", "c")
        assert listing(remotes.root("a")) == before
    assert failure is None
    assert (told["a"]["build"], told["a"]["generation"], told["a"]["identity"]) == (new, 2, None)
    assert [user["pid"] for user in told["a"]["users"][old]] == [pid]
    assert told["c"]["build"] is None
    assert not remotes.root("c").exists()
    page = capsys.readouterr().out
    assert f"build {old[:8]} is not current" in page


def test_a_rollback_shows_as_a_hold_and_a_stage_as_staged(remotes: Remotes, repository: Repository) -> None:
    old = repository.run("build_env", "--relock", hosts=["a"]).host["build"]
    repository.wheel("demo", "2.0", {"demo/__init__.py": "VERSION = '2.0'\n"})
    remotes.share("demo==2.0")
    new = repository.run("build_env", "--relock", "--stage", hosts=["a"]).host["build"]
    assert status(repository, "a")[1]["a"]["staged"] == new
    assert repository.run("switch", hosts=["a"]).failure is None
    assert repository.run("rollback", "--why", "too slow", hosts=["a"]).failure is None
    _, told = status(repository, "a")
    assert told["a"]["build"] == old
    assert told["a"]["hold"]["why"] == "too slow"


def test_a_host_that_does_not_answer_fails_the_session_and_no_other_host(
    remotes: Remotes, repository: Repository
) -> None:
    remotes.reach_by({"c": 1})
    failure, told = status(repository, "@all")
    assert failure == "1 of 3 hosts: c"
    assert told["c"]["outcome"] == "unreachable"
    assert {told["a"]["outcome"], told["local"]["outcome"]} == {"ok"}


def test_another_machine_is_shown_as_such(remotes: Remotes, repository: Repository) -> None:
    spec = repository.path / "envspecs/a.toml"
    spec.write_text(spec.read_text().replace(remotes.hosts["a"].machine_id, "0" * 32))
    _, told = status(repository, "a")
    assert "wrong machine" in told["a"]["identity"]


def test_waivers_that_end_soon_are_told(remotes: Remotes, repository: Repository) -> None:
    soon = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=3)
    allow = f'{{ rule = "K1", object = "x", reason = "y", until = {soon} }}'
    remotes.spec("a", supply=OFFLINE, more=f"[checks]\nallow = [{allow}]")
    _, told = status(repository, "a")
    assert told["a"]["expiring"] == [{"rule": "K1", "object": "x", "until": str(soon)}]
