"""Comparing environments on hosts behind SSH, each with its identity; one of them runs an old Python."""

from __future__ import annotations

import json
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from hostenv import commands
from hostenv.machine.agent import Agent
from kit.remotes import Remotes, remote_hosts
from kit.repository import listing, repository_in

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from kit.remotes import RemoteHost
    from kit.repository import Repository


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Return a root with one real build, current."""
    with repository_in(tmp_path_factory.mktemp("made")) as repository, pytest.MonkeyPatch.context() as patch:
        for name, value in repository.environment.items():
            patch.setenv(name, value)
        repository.build()
        yield repository.root


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RemoteHost]]:
    with remote_hosts(tmp_path_factory.mktemp("hosts"), ["reference", "target"]) as started:
        yield started


@pytest.fixture
def remotes(
    repository: Repository,
    hosts: dict[str, RemoteHost],
    made: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Remotes:
    """Return two hosts that hold the same build."""
    found = Remotes(repository=repository, hosts=hosts)
    for name, value in found.install().items():
        monkeypatch.setenv(name, value)
    found.share("demo==1.0")
    for name in hosts:
        found.spec(name)
        shutil.copytree(made, found.root(name), symlinks=True)
    return found


def match(remotes: Remotes, *words: str) -> tuple[str | None, dict[str, Any]]:
    written = remotes.repository.folder / "match.json"
    failure = commands.run("match", [*words, "--json", str(written)], remotes.repository.path)
    return failure, json.loads(written.read_text())


def words_of(root: pathlib.Path) -> pathlib.Path:
    (found,) = root.glob("builds/*/lib/python3*/site-packages/demo/words.txt")
    return found


def test_equal_different_and_equal_again_and_nothing_is_written(remotes: Remotes) -> None:
    before = [listing(remotes.root(name)) for name in remotes.hosts]
    failure, document = match(remotes, "reference", "target")
    assert (failure, document["equal"]) == (None, True)
    words_of(remotes.root("target")).write_text("A b c\n")
    failure, document = match(remotes, "reference", "target", "--diff")
    assert failure == "1 of 1 not equal to reference: target (different)"
    ((group,),) = (target["distributions"] for target in document["targets"])
    assert [(each["cause"], each["detail"]) for each in group["differing"]] == [("edited", "on the target")]
    assert group["differing"][0]["diff"][-2:] == ["-a b c", "+A b c"]
    words_of(remotes.root("target")).write_text("a b c\n")
    assert match(remotes, "reference", "target")[1]["equal"] is True
    assert [listing(remotes.root(name)).keys() for name in remotes.hosts] == [each.keys() for each in before]


def test_equal_environments_cost_one_question_a_host(
    remotes: Remotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real: Any = Agent.call

    def counted(self: Any, operation: str, /, **arguments: Any) -> Any:
        asked.append(operation)
        return real(self, operation, **arguments)

    monkeypatch.setattr(Agent, "call", counted)
    assert match(remotes, "reference", "target")[1]["equal"] is True
    assert asked == ["environment.look", "environment.look"]


def test_another_machine_under_the_name_proves_nothing(remotes: Remotes) -> None:
    remotes.reach_by({}, {"target": "reference"})
    _, document = match(remotes, "reference", "target")
    (target,) = document["targets"]
    assert target["outcome"] == "refused"
    assert document["equal"] is False


def test_a_target_that_cannot_be_reached_does_not_stop_the_others(remotes: Remotes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    remotes.reach_by({"target": port})
    again = f"reference:{remotes.root('reference')}/current/env"
    failure, document = match(remotes, "reference", "target", again)
    outcomes = {each["place"].partition(":")[0]: each["outcome"] for each in document["targets"]}
    assert outcomes == {"target": "unreachable", "reference": "equal"}
    assert failure is not None
    assert "1 of 2" in failure
