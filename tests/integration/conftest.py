"""Fixtures that several files of integration tests use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kit.remotes import Remotes, remote_hosts
from kit.repository import Repository, repository_in

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from kit.remotes import RemoteHost


@pytest.fixture
def repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Return a repository whose host ``local`` lies in ``tmp_path``; this process has its environment."""
    with repository_in(tmp_path) as made:
        for name in list(os.environ):
            if name.startswith(("UV_", "PIP_")) or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RemoteHost]]:
    with remote_hosts(tmp_path_factory.mktemp("hosts"), ["r", "a", "c"]) as started:
        yield started


@pytest.fixture
def remotes(repository: Repository, hosts: dict[str, RemoteHost], monkeypatch: pytest.MonkeyPatch) -> Remotes:
    made = Remotes(repository=repository, hosts=hosts)
    for name, value in made.install().items():
        monkeypatch.setenv(name, value)
    made.share("demo==1.0")
    return made
