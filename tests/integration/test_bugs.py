"""A bug on one host, in every session over many: the others' results are told, then its traceback."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hostenv import commands
from hostenv.machine.agent import Agent
from kit.repository import PROJECT, repository_in
from kit.schema import violations

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from kit.repository import Repository

HOSTS = ("bad", "local", "two")

SESSIONS = {
    **dict.fromkeys(("lock", "fetch", "build_env", "switch", "rollback", "prune"), "results"),
    **{name: name for name in ("builds", "status", "probe", "verify_abi", "match")},
    "sync_patches": "results",
}
"""Session → the schema of its JSON."""

OTHERWISE = {"switch": "refused", "rollback": "refused", "match": "equal"}
"""What comes of a sound host where it is not that all is well."""

WITH_REFERENCE = ("match", "sync_patches")

BROKEN = """
from hostenv.machine.agent import Agent
_call = Agent.call
def call(self, operation, /, **more):
    if self.host == "bad":
        raise KeyError("this is the bug")
    return _call(self, operation, **more)
Agent.call = call
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """Return a repository of three hosts on this machine; ``local`` and ``two`` are built."""
    with repository_in(tmp_path_factory.mktemp("three")) as repository, pytest.MonkeyPatch.context() as patch:
        for name, value in repository.environment.items():
            patch.setenv(name, value)
        specs = repository.path / "envspecs"
        repository.spec("demo==1.0")
        text = (specs / "local.toml").read_text()
        for name in ("bad", "two"):
            (specs / f"{name}.toml").write_text(
                text.replace(f'{repository.root}"', f'{repository.root}-{name}"')
            )
        assert commands.run("build_env", ["local", "two"], repository.path) is None
        yield repository


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break every question to the host ``bad``."""
    call = Agent.call

    def call_or_break(agent: Agent, operation: str, /, **more: Any) -> Any:
        if agent.host == "bad":
            raise KeyError("this is the bug")
        return call(agent, operation, **more)

    monkeypatch.setattr(Agent, "call", call_or_break)


def outcomes(written: pathlib.Path, schema: str) -> dict[str, str]:
    """Return host → outcome of a session's JSON."""
    document = json.loads(written.read_text())
    assert violations(document, json.loads((PROJECT / f"docs/schema/{schema}.schema.json").read_text())) == []
    told = document["targets"] if schema == "match" else document["hosts"]
    assert "hostenv has a bug: KeyError: 'this is the bug'" in json.dumps(told)
    return {
        each.get("host") or each.get("name") or each["place"]: each.get("outcome")
        or (each["error"]["outcome"] if each["error"] else "done")
        for each in told
    }


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("session", SESSIONS)
def test_the_others_are_told_and_then_the_bug_is_raised(
    three: Repository, tmp_path: pathlib.Path, session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "result.json"
    hosts = ("local", "bad", "two") if session in WITH_REFERENCE else HOSTS
    with pytest.raises(KeyError, match="this is the bug") as caught:
        commands.run(session, [*hosts, "--json", str(written)], three.path)
    assert caught.value.__notes__ == ["while working on bad"]
    told = outcomes(written, SESSIONS[session])
    assert list(told) == [host for host in hosts if session not in WITH_REFERENCE or host != "local"]
    assert told["bad"] == "failed"
    assert told["two"] == OTHERWISE.get(session, told["two"])
    assert told["two"] in {"done", "ok", *OTHERWISE.values()}
    shown = capsys.readouterr().out
    assert "two" in shown
    assert "hostenv has a bug: KeyError" in shown


@pytest.mark.usefixtures("broken")
def test_a_bug_on_the_reference_is_raised_too(three: Repository) -> None:
    for session in WITH_REFERENCE:
        with pytest.raises(KeyError, match="this is the bug"):
            commands.run(session, ["bad", "two"], three.path)


def test_nox_shows_the_others_and_then_the_traceback(three: Repository) -> None:
    with (three.path / "noxfile.py").open("a") as noxfile:
        noxfile.write(BROKEN)
    argv = [*three.command("status")[:-1], *HOSTS]
    ran = subprocess.run(
        argv,
        cwd=three.path,
        env=three.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    shown, traceback, bug = ran.stdout.partition("Traceback (most recent call last)")
    assert traceback
    assert "KeyError: 'this is the bug'" in bug
    assert "while working on bad" in bug
    rows = [line.split()[:1] for line in shown.splitlines()]
    assert all([host] in rows for host in HOSTS)
