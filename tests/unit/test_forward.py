"""Files from one host to another through the controller: kept here, and checked at both ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import place, stream
from hostenv.agent.wire import AgentError
from hostenv.errors import HostError
from hostenv.machine import bulk
from hostenv.machine.agent import agent_on
from hostenv.machine.forward import Forwarding
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Mapping

    from hostenv.machine.agent import Agent

ODD = "z é\udcff"
CONTENTS = {
    "empty": b"",
    "a/small": b"small",
    "a/b/page": os.urandom(70_000),
    "zeros": bytes(2_000_000),
    ODD: os.urandom(5_500_003),
}
FILES = [
    bulk.File(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    for path, content in CONTENTS.items()
]
NAMES = {file.path: f"{number:02}/{file.sha256}" for number, file in enumerate(FILES)}


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(agent_on(LocalTransport(name), python=sys.executable))
            for name in ("from", "from", "from", "to", "to")
        ]


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    for path, content in CONTENTS.items():
        file = tmp_path / "source" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o751)
        os.utime(file, ns=(1, 1_700_000_000_123_456_789))
    return tmp_path / "source"


def forward(
    source: pathlib.Path,
    sources: list[Agent],
    targets: list[Agent],
    names: Mapping[str, str] = NAMES,
    files: list[bulk.File] = FILES,
) -> Mapping[str, str]:
    (source.parent / "keep").mkdir()
    size = sum(file.size for file in files)
    with Forwarding(targets, str(source.parent / "target"), size=size) as way:
        told = way.receive(
            files, sources=sources, source=str(source), keep=source.parent / "keep", names=names
        )
        assert way.settle()
    return told


def listing(folder: pathlib.Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(("there", "onward"), [(1, 1), (3, 2), (1, 2)])
def test_files_arrive_at_both_ends(
    source: pathlib.Path, agents: list[Agent], monkeypatch: pytest.MonkeyPatch, there: int, onward: int
) -> None:
    monkeypatch.setattr(bulk, "RANGE", 1 << 20)
    told = forward(source, agents[:there], agents[3 : 3 + onward])
    assert told == {file.path: file.sha256 for file in FILES}
    sent = listing(source)
    assert listing(source.parent / "keep") == sent
    assert listing(source.parent / "target") == {NAMES[path]: file for path, file in sent.items()}


def test_a_target_that_fails_does_not_end_the_source(source: pathlib.Path, agents: list[Agent]) -> None:
    names = {**NAMES, "a/small": "../out"}
    with pytest.raises(HostError, match=r"to: '\.\./out' is no path below a root"):
        forward(source, agents[:1], agents[3:4], names)
    assert listing(source.parent / "keep") == listing(source)
    assert not (source.parent / "out").exists()
    assert [each.call("echo", value=1) for each in (agents[0], agents[3])] == [1, 1]


@pytest.mark.parametrize("count", [1, 2])
def test_a_file_that_is_not_the_one_wanted_comes_to_neither_end(
    source: pathlib.Path, agents: list[Agent], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(bulk, "RANGE", 1 << 20)
    (source / ODD).write_bytes(os.urandom(5_500_003))
    with pytest.raises(HostError, match=r"from: /.*: landed with sha256 [0-9a-f]{64}, expected"):
        forward(source, agents[:count], agents[3 : 3 + count])
    for end in (f"keep/{ODD}", f"target/{NAMES[ODD]}"):
        assert not (source.parent / end).exists()
    assert agents[3].call("echo", value=1) == 1


def test_what_the_source_no_longer_has_ends_it(source: pathlib.Path, agents: list[Agent]) -> None:
    (source / "zeros").unlink()
    with pytest.raises(HostError, match=r"from: /.*/zeros"):
        forward(source, agents[:1], agents[3:4])
    assert [each.call("echo", value=1) for each in (agents[0], agents[3])] == [1, 1]


def test_a_source_cannot_send_what_nobody_asked_for(tmp_path: pathlib.Path) -> None:
    """A controller's store would otherwise hold other bytes under a name that is a digest."""
    place.begin(root=str(tmp_path), label="t")
    for path, digest in (("other", "0" * 64), ("file", hashlib.sha256(b"abc").hexdigest()), ("file", "")):
        unit = stream.Unit(path, 0o644, 3, 0, 3, 0, digest)
        with (
            contextlib.closing(place.Landing(str(tmp_path), "t", expected={"file": "0" * 64})) as landing,
            pytest.raises(AgentError, match="was not asked for"),
        ):
            landing.receive([unit.head() + b"abc"])
