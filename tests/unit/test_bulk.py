"""Streams of files: what lands is what was named, in its place, and nowhere else."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.agent import place, ranges, stream
from hostenv.agent.folders import Folders
from hostenv.agent.store import Place, Store
from hostenv.agent.wire import AgentError
from hostenv.errors import HostError, RefusedError
from hostenv.machine import bulk
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostenv.machine.agent import Agent


@pytest.fixture
def agent() -> Iterator[Agent]:
    with agent_on(LocalTransport("here"), python=sys.executable) as started:
        yield started


TIMES = (1_700_000_000_123_456_789, 10_413_792_000 * 10**9 + 7, -86_400 * 10**9 + 7)
"""Modification times in nanoseconds: one of today, one of the year 2300, and one before 1970."""


def fill(root: pathlib.Path) -> list[bulk.File]:
    """Write files of every kind of size and return them with the digests that sha256sum gives."""
    sizes = {"empty": 0, "a/small": 13, "a/b/page": 70_000, "a/b/large": 3_500_001, "z é\udcff": 5}
    for index, (name, size) in enumerate(sizes.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
        path.chmod(0o640 + index % 2)
        os.utime(path, ns=(1, TIMES[index % len(TIMES)] + index))
    return [bulk.File(path=name, size=size, sha256=sha256sum(root / name)) for name, size in sizes.items()]


def sha256sum(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return subprocess.run(["sha256sum"], stdin=file, capture_output=True, check=True).stdout.decode()[:64]


def listing(root: pathlib.Path) -> dict[str, tuple[int, int, str]]:
    return {
        os.fsencode(path.relative_to(root)).hex(): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            sha256sum(path),
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("direction", ["there", "back"])
def test_files_arrive_with_bytes_mode_and_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, connections: int, direction: str
) -> None:
    monkeypatch.setattr(bulk, "RANGE", 1 << 20)
    source, destination = tmp_path / "source", tmp_path / "new" / "destination"
    files = fill(source)
    told: list[int] = []
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(agent_on(LocalTransport("here"), python=sys.executable))
            for _ in range(connections)
        ]
        if direction == "there":
            digests = bulk.send_files(agents, source, str(destination), files, on_progress=told.append)
        else:
            digests = bulk.receive_files(agents, str(source), destination, files, on_progress=told.append)
    assert digests == {file.path: file.sha256 for file in files}
    assert listing(destination) == listing(source)
    assert sum(told) >= sum(file.size for file in files)
    assert not list(destination.glob(".incoming-*"))


def test_a_wrong_digest_is_refused_and_the_old_file_stays(agent: Agent, tmp_path: pathlib.Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    fill(source)
    destination.mkdir()
    (destination / "empty").write_text("old")
    wrong = bulk.File(path="empty", size=0, sha256="0" * 64)
    with pytest.raises(HostError, match=r"here: /.*/source/empty: landed with sha256 e3b0c.*expected 0000"):
        bulk.send_files([agent], source, str(destination), [wrong])
    assert (destination / "empty").read_text() == "old"
    assert agent.call("echo", value=1) == 1


@pytest.mark.parametrize(
    "move",
    [
        lambda agents, source, to, files: bulk.send_files(agents, source, str(to), files),
        lambda agents, source, to, files: bulk.receive_files(agents, str(source), to, files),
    ],
)
def test_a_file_in_ranges_is_refused_too_where_its_digest_is_wrong(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, move: Callable[..., object]
) -> None:
    monkeypatch.setattr(bulk, "RANGE", 1 << 20)
    source, destination = tmp_path / "source", tmp_path / "destination"
    fill(source)
    wrong = bulk.File(path="a/b/large", size=3_500_001, sha256="0" * 64)
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(agent_on(LocalTransport("here"), python=sys.executable)) for _ in range(2)
        ]
        with pytest.raises(HostError, match=r"here: /.*/a/b/large: landed with sha256 .*, expected 0000"):
            move(agents, source, destination, [wrong])
    assert not (destination / "a").exists()


@pytest.mark.parametrize("sizes", [(20, 30), (30, 20)])
def test_a_file_whose_size_changes_between_its_ranges_is_refused(
    tmp_path: pathlib.Path, sizes: tuple[int, int]
) -> None:
    """A log that grows while it is sent: each range is whole, and together they are no file that ever was."""
    place.begin(root=str(tmp_path), label="t")
    with contextlib.closing(place.Landing(str(tmp_path), "t")) as landing:
        for offset, size in zip((0, 10), sizes, strict=True):
            unit = stream.Unit("log", 0o644, size, offset, 10, 0, "")
            landing.receive([unit.head() + bytes(10)])
        with pytest.raises(AgentError, match="log: its size changed while it was sent"):
            landing.finish()
    assert not (tmp_path / "log").exists()


RANGES = st.permutations([(0, 700), (700, 700), (1400, 601)])


@given(order=RANGES, owners=st.lists(st.booleans(), min_size=3, max_size=3))
def test_ranges_may_come_in_any_order_over_any_connection(
    order: list[tuple[int, int]], owners: list[bool]
) -> None:
    content = (bytes(range(256)) * 8)[:2001]
    digest = hashlib.sha256(content).hexdigest()
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        place.begin(root=root, label="t")
        landings = [stack.enter_context(contextlib.closing(place.Landing(root, "t"))) for _ in range(2)]
        for (offset, length), owner in zip(order, owners, strict=True):
            unit = stream.Unit("a/file", 0o640, len(content), offset, length, 5_000_000_000, digest)
            landings[owner].receive([unit.head() + content[offset : offset + length]])
        finished = [landing.finish() for landing in landings]
        placed = pathlib.Path(root, "a/file")
        assert {**finished[0], **finished[1]} == {"a/file": digest}
        assert placed.read_bytes() == content
        assert (placed.stat().st_mode & 0o7777, placed.stat().st_mtime) == (0o640, 5)
        assert [path.name for path in pathlib.Path(root).iterdir()] == ["a"]


def test_a_landing_of_many_folders_outlives_the_name_of_the_incoming_folder(tmp_path: pathlib.Path) -> None:
    """Another landing of the label that finishes meanwhile removes the folder, which is empty by then."""
    source, root = tmp_path / "source", tmp_path / "root"
    for number in range(20):
        (source / f"folder{number}").mkdir(parents=True)
        (source / f"folder{number}/file").write_text(str(number))
    place.begin(root=str(root), label="t")
    wanted = [stream.Wanted(f"folder{number}/file", "") for number in range(20)]
    with contextlib.closing(place.Landing(str(root), "t")) as landing:
        landing.receive(stream.send(str(source), wanted))
        landing.settle()
        pathlib.Path(place.incoming(str(root), "t")).rmdir()
        landing._sync_folders({f"folder{number}" for number in range(20)})
        landing.finish()
    assert listing(root) == listing(source)


def test_a_range_that_cannot_be_read_tells_why_and_not_that_it_never_came(tmp_path: pathlib.Path) -> None:
    unit = stream.Unit("file", 0o644, 3, 0, 3, 0, "")
    incoming = os.open(tmp_path, os.O_RDONLY)
    gathering = ranges.Gathering(incoming, unit)
    list(gathering.write(unit, [memoryview(b"abc")]))
    kept, unreadable = os.dup(gathering.descriptor), os.open(tmp_path, os.O_RDONLY)
    os.dup2(unreadable, gathering.descriptor)  # EISDIR, where a failing disk has EIO
    for again in (gathering.follow, gathering.result):
        with pytest.raises(IsADirectoryError):
            again()
    os.dup2(kept, gathering.descriptor)
    assert gathering.result() == hashlib.sha256(b"abc").hexdigest()
    gathering.close()
    for descriptor in (kept, unreadable, incoming):
        os.close(descriptor)


def test_a_file_of_which_a_range_never_came_does_not_appear(tmp_path: pathlib.Path) -> None:
    place.begin(root=str(tmp_path), label="t")
    with contextlib.closing(place.Landing(str(tmp_path), "t", source="/there")) as landing:
        for offset in (0, 20):
            unit = stream.Unit("file", 0o644, 30, offset, 10, 0, hashlib.sha256(bytes(30)).hexdigest())
            landing.receive([unit.head() + bytes(10)])
        with pytest.raises(AgentError, match="/there/file: the stream ended before the file did"):
            landing.finish()
    assert not (tmp_path / "file").exists()


def test_a_file_that_does_not_exist_here_ends_the_transfer(agent: Agent, tmp_path: pathlib.Path) -> None:
    with pytest.raises(HostError, match="No such file"):
        bulk.send_files([agent], tmp_path, str(tmp_path / "d"), [bulk.File(path="missing", size=1)])


def test_a_refusal_ends_a_large_transfer_at_once(agent: Agent, tmp_path: pathlib.Path) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4 << 30:
            sent += 1 << 20
            yield bytes(1 << 20)

    agent.call("place.begin", root=str(tmp_path), label="t")
    with pytest.raises(HostError):
        agent.call("place.put", root=str(tmp_path), label="t", data=endless())
    assert sent < 200 << 20
    assert agent.call("echo", value=1) == 1


def test_a_host_without_room_refuses_before_anything_is_sent(agent: Agent, tmp_path: pathlib.Path) -> None:
    huge = bulk.File(path="huge", size=1 << 60)
    with pytest.raises(RefusedError, match="are to come and"):
        bulk.send_files([agent], tmp_path, str(tmp_path / "d"), [huge])


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../out", "", "a//b", "a/", "./a", "nul\0"])
def test_no_path_leaves_its_root(tmp_path: pathlib.Path, path: str) -> None:
    """Neither the sender nor the receiver trusts the other."""
    root = tmp_path / "root"
    place.begin(root=str(root), label="t")
    unit = stream.Unit(path, 0o644, 3, 0, 3, 0, "")
    landing = place.Landing(str(root), "t")
    with pytest.raises(AgentError, match="is no path below a root"):
        landing.receive([unit.head() + b"abc"])
    landing.close()
    with pytest.raises(AgentError, match="is no path below a root"):
        list(stream.send(str(root), [stream.Wanted(path)]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["root"]


def test_no_link_leads_out_of_a_root(agent: Agent, tmp_path: pathlib.Path) -> None:
    source, destination, outside = tmp_path / "source", tmp_path / "destination", tmp_path / "outside"
    files = fill(source)
    outside.mkdir()
    destination.mkdir()
    (destination / "a").symlink_to(outside)
    with pytest.raises(HostError, match="is a link or no folder"):
        bulk.send_files([agent], source, str(destination), files)
    assert not list(outside.iterdir())
    (source / "way").symlink_to(outside)
    (outside / "secret").write_text("secret")
    with pytest.raises(HostError, match="is a link or no folder"):
        bulk.receive_files([agent], str(source), tmp_path / "d", [bulk.File(path="way/secret", size=6)])


def test_a_link_at_the_place_is_replaced_and_not_written_through(
    agent: Agent, tmp_path: pathlib.Path
) -> None:
    source, destination, outside = tmp_path / "source", tmp_path / "destination", tmp_path / "outside"
    files = [file for file in fill(source) if file.path == "empty"]
    destination.mkdir()
    outside.write_text("kept")
    (destination / "empty").symlink_to(outside)
    bulk.send_files([agent], source, str(destination), files)
    assert outside.read_text() == "kept"
    assert not (destination / "empty").is_symlink()


def sent(root: pathlib.Path, size: int, change: Callable[[pathlib.Path], object]) -> list[stream.Piece]:
    """Return the stream of a file of ``size`` bytes that is changed when its first piece is on the way."""
    path = root / "kernel/ops.bin"
    path.parent.mkdir()
    path.write_bytes(b"x" * size)
    pieces = stream.send(str(root), [stream.Wanted("kernel/ops.bin", sha256sum(path))])
    first = [bytes(next(pieces))]
    change(path)
    return [*first, *pieces]


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: pathlib.Path) -> None:
    def shrink(path: pathlib.Path) -> None:
        os.truncate(path, 1 << 20)

    with pytest.raises(AgentError, match=rf"{tmp_path}/kernel/ops\.bin became shorter while it was read"):
        sent(tmp_path, 3 << 20, shrink)


@pytest.mark.parametrize("at", [0, (3 << 20) - 1])
def test_a_file_that_changes_while_it_is_read_lands_as_it_was_named_or_not_at_all(
    tmp_path: pathlib.Path, at: int
) -> None:
    def change(path: pathlib.Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"!")

    (tmp_path / "there").mkdir()
    pieces = sent(tmp_path / "there", 3 << 20, change)
    (tmp_path / "here/kernel").mkdir(parents=True)
    (tmp_path / "here/kernel/ops.bin").write_text("old")
    place.begin(root=str(tmp_path / "here"), label="t")
    landing = place.Landing(str(tmp_path / "here"), "t", source="/srv")
    with pytest.raises(AgentError, match=r"^/srv/kernel/ops\.bin: landed with sha256"):
        landing.receive(pieces)
    landing.close()
    assert (tmp_path / "here/kernel/ops.bin").read_text() == "old"


def test_a_file_that_grows_while_it_is_read_lands_as_it_was_named(tmp_path: pathlib.Path) -> None:
    def grow(path: pathlib.Path) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    (tmp_path / "there").mkdir()
    pieces = sent(tmp_path / "there", 3 << 20, grow)
    place.begin(root=str(tmp_path / "here"), label="t")
    landing = place.Landing(str(tmp_path / "here"), "t")
    landing.receive(pieces)
    landing.settle()
    landing.close()
    assert (tmp_path / "here/kernel/ops.bin").read_bytes() == b"x" * (3 << 20)


def _listening(path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, _listening, lambda path: path.symlink_to("/etc/passwd"), os.mkdir],
    ids=["FIFO", "socket", "link", "folder"],
)
def test_what_is_no_regular_file_is_not_sent_and_is_named(
    agent: Agent, tmp_path: pathlib.Path, make: Callable[[pathlib.Path], None]
) -> None:
    make(tmp_path / "odd")
    with pytest.raises(HostError, match=rf"{tmp_path}/odd is no regular file"):
        bulk.receive_files([agent], str(tmp_path), tmp_path / "d", [bulk.File(path="odd", size=0)])


@pytest.mark.parametrize("connections", [1, 2])
def test_holes_stay_holes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, connections: int) -> None:
    """A file of 24 MB of zeros and a few bytes, holes at its start, in the middle and at its end."""
    monkeypatch.setattr(bulk, "RANGE", 4 << 20)
    path = tmp_path / "source/sparse"
    path.parent.mkdir()
    with path.open("wb") as file:
        for at in (5 << 20, 13 << 20):
            file.seek(at)
            file.write(b"here")
        file.truncate((24 << 20) + 1)
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("no sparse files on this file system")
    digest = sha256sum(path)
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(agent_on(LocalTransport("here"), python=sys.executable))
            for _ in range(connections)
        ]
        files = [bulk.File(path="sparse", size=path.stat().st_size, sha256=digest)]
        bulk.send_files(agents, path.parent, str(tmp_path / "d"), files)
    store = Store(str(tmp_path / "store"))
    store.prepare()
    assert store.take(Place(str(tmp_path / "d/sparse")), digest, path.stat().st_size)
    for landed in (tmp_path / "d/sparse", pathlib.Path(store.path(digest))):
        assert sha256sum(landed) == digest
        assert landed.stat().st_blocks * 512 < 8 << 20


def test_what_a_killed_transfer_left_is_removed_by_the_next(agent: Agent, tmp_path: pathlib.Path) -> None:
    stale = tmp_path / "d" / ".incoming-dead"
    stale.mkdir(parents=True)
    (stale / "1-1").write_text("half")
    bulk.send_files([agent], tmp_path, str(tmp_path / "d"), [])
    assert not list((tmp_path / "d").iterdir())


def test_more_folders_than_stay_open(tmp_path: pathlib.Path) -> None:
    folders = Folders(str(tmp_path))
    for index in range(200):
        folder, name = folders.locate(f"{index % 100}/x/file", make=True)
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    folders.close()
    assert len(list(tmp_path.glob("*/x/file"))) == 100


@given(cuts=st.lists(st.integers(1, 400), max_size=40))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    bodies = {"a": b"x" * 300, "b/é": b"", "c": b"yz"}
    whole = b"".join(
        stream.Unit(path, 0o644, len(body), 0, len(body), -5, hashlib.sha256(body).hexdigest()).head() + body
        for path, body in bodies.items()
    )
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(whole[start : start + cut])
        start += cut
    reader = stream.Reader([*pieces, whole[start:]])
    read = {}
    while unit := reader.unit():
        read[unit.path] = b"".join(reader.body(unit.length))
    assert read == bodies


@pytest.mark.parametrize(
    ("allowed", "round_trip", "size", "expected"),
    [(4, 0.0003, 4 << 30, 1), (4, 0.02, 4 << 30, 4), (1, 0.02, 4 << 30, 1), (4, 0.02, 1 << 20, 1)],
)
def test_connections_where_they_pay(allowed: int, round_trip: float, size: int, expected: int) -> None:
    assert bulk.worthwhile_connections(allowed, round_trip, size) == expected
