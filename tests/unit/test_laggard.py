"""A target that stops taking what the reference sends: who else needs the reference does not wait for it."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.machine import forward
from hostenv.machine.local import LocalChannel
from hostenv.machine.reach import Reach
from hostenv.machine.turns import Turns
from hostenv.spec.fleet import load_fleet
from hostenv.spec.overlay import Origin, OverlaidDistribution, Overlay
from hostenv.spec.overlaylist import OverlayFile
from hostenv.steps.overlays import BringOverlays
from hostenv.steps.payload import Payload, Source

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

LONG = 120
"""Seconds after which a test that hangs has failed."""
CONTENTS = {f"part{number}.bin": os.urandom(3_000_000) for number in range(4)}
"""More than waits to be sent on, and a pipe's fill."""


class Stopped:
    """One local host whose input takes no bulk data while it is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.channel: LocalChannel | None = None
        self.reached, self.goes = threading.Event(), threading.Event()
        real = LocalChannel.send

        def send(channel: LocalChannel, data: bytes) -> None:
            if channel is self.channel and len(data) > 64 << 10:
                self.reached.set()
                assert self.goes.wait(LONG)
            real(channel, data)

        monkeypatch.setattr(LocalChannel, "send", send)


class Hosts:
    """``ref``, ``slow`` and ``quick`` on this machine, and an overlay that was taken from ``ref``."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.turn = folder, Turns()
        site = folder / "ref/venv/lib/python3.12/site-packages"
        site.mkdir(parents=True)
        (folder / "envspecs").mkdir()
        for path, content in CONTENTS.items():
            (site / path).write_bytes(content)
        for name in ("ref", "slow", "quick"):
            (folder / name).mkdir(exist_ok=True)
            (folder / f"envspecs/{name}.toml").write_text(
                f'[host]\ntransport = "local"\nroot = "{folder / name}"\nmode = "observe"\n'
            )
        self.specs = load_fleet(folder / "envspecs").specs
        files = [(path, len(content), hashlib.sha256(content)) for path, content in CONTENTS.items()]
        self.overlay = Overlay(
            name="ours",
            why="w",
            origin=Origin(
                host="ref",
                venv=str(folder / "ref/venv"),
                taken=dt.date(2026, 12, 1),
                python="3.12",
                arch="x86_64",
            ),
            distributions=(OverlaidDistribution(name="kernel", version="1.0"),),
            binaries=(),
            files=tuple(
                OverlayFile(path=path, dist="kernel", mode=0o644, size=size, sha256=digest.hexdigest())
                for path, size, digest in files
            ),
        )
        self.payload = Payload(folder / "controller")
        self._stack = contextlib.ExitStack()
        self.reach = {name: self._stack.enter_context(Reach(spec)) for name, spec in self.specs.items()}
        self.source = Source(self.reach["ref"], root=str(folder / "ref"), environments=(), turn=self.turn)

    def close(self) -> None:
        self._stack.close()

    def bring(self, name: str) -> None:
        """Bring the overlay's contents to a host."""
        step = BringOverlays(
            root=str(self.folder / name),
            overlays=(self.overlay,),
            missing=self.overlay.contents,
            elsewhere={},
            payload=self.payload,
            source=self.source,
        )
        who: Any = {"user": "u", "host": "h", "pid": 1, "command": "c", "session": "s"}
        step.apply(self.reach[name], who, on_start=lambda _: None, on_progress=lambda _: None)

    def has_all(self, name: str) -> bool:
        """Tell whether a host's store holds every content, by coreutils' names for them."""
        store = self.folder / name / "store"
        wanted = {hashlib.sha256(content).hexdigest() for content in CONTENTS.values()}
        there = [path for path in store.glob("??/*") if path.is_file()]
        return {hashlib.sha256(path.read_bytes()).hexdigest() for path in there} >= wanted


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def test_who_waits_for_the_reference_is_done_while_a_target_is_stopped(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(monkeypatch)
    stopped.channel = hosts.reach["slow"].agent._channel  # type: ignore[assignment]
    with ThreadPoolExecutor(2) as pool:
        try:
            slow = pool.submit(hosts.bring, "slow")
            assert stopped.reached.wait(LONG)
            pool.submit(hosts.bring, "quick").result(LONG)
            assert hosts.has_all("quick")
            assert not slow.done()
            assert not hosts.has_all("slow")
        finally:
            stopped.goes.set()
        slow.result(LONG)
    assert hosts.has_all("slow")


def test_who_only_asks_the_reference_something_does_not_wait_either(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(monkeypatch)
    stopped.channel = hosts.reach["slow"].agent._channel  # type: ignore[assignment]

    def ask() -> Any:
        with hosts.turn:
            return hosts.reach["ref"].agent.call("echo", value=1)

    with ThreadPoolExecutor(2) as pool:
        try:
            slow = pool.submit(hosts.bring, "slow")
            assert stopped.reached.wait(LONG)
            assert pool.submit(ask).result(LONG) == 1
            assert not slow.done()
        finally:
            stopped.goes.set()
        slow.result(LONG)
    assert hosts.has_all("slow")


def test_a_slow_target_alone_is_sent_all_while_it_comes(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "PATIENCE", 0.0)
    stopped = Stopped(monkeypatch)
    stopped.channel = hosts.reach["slow"].agent._channel  # type: ignore[assignment]
    sent: list[str] = []
    real = Reach.send_files

    def noted(reach: Reach, *words: Any, **more: Any) -> Any:
        sent.append(reach.name)
        return real(reach, *words, **more)

    monkeypatch.setattr(Reach, "send_files", noted)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(hosts.bring, "slow")
        assert stopped.reached.wait(LONG)
        threading.Timer(0.5, stopped.goes.set).start()
        slow.result(LONG)
    assert hosts.has_all("slow")
    assert sent == []
