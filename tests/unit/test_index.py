"""Wheels come into the wheelhouse whole and right, through every fault of a network, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent.wheelhouse import Wheel, Wheelhouse
from hostenv.agent.wire import AgentError
from hostenv.errors import SupplyError
from hostenv.index import download
from hostenv.index.fetch import Progress, fetch
from hostenv.index.source import Login, Source, origin, split_login
from kit.registry import Fault, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3_000_000
NAME = "demo-1.0-py3-none-any.whl"


@pytest.fixture
def registry(tmp_path: pathlib.Path) -> Iterator[Registry]:
    (tmp_path / "files").mkdir()
    with Registry(tmp_path / "files") as served:
        yield served


@pytest.fixture
def house(tmp_path: pathlib.Path) -> Wheelhouse:
    return Wheelhouse(str(tmp_path / "wheelhouse"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(download, "LONGEST_WAIT", 0.02)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "NETRC"):
        monkeypatch.delenv(name, raising=False)


def file(registry: Registry, name: str = NAME, size: int = SIZE) -> Source:
    content = random.Random(name).randbytes(size)  # noqa: S311  content, no secret
    (registry.folder / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return Source(sha256=digest, filename=name, size=size, url=registry.file_url(name))


def bring(house: Wheelhouse, *sources: Source, **options: Any) -> None:
    fetch(sources, house, **{"logins": {}, **options})


def parts(house: Wheelhouse) -> list[pathlib.Path]:
    return list(pathlib.Path(house.folder, ".partial").iterdir())


def sha256sum(path: str) -> str:
    done = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def test_a_wheel_lies_under_its_hash_and_is_known(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    assert house.survey([source.wheel]) == ["absent"]

    bring(house, source)

    place = str(pathlib.Path(house.folder, source.sha256, NAME))
    assert sha256sum(place) == source.sha256
    assert house.survey([source.wheel]) == ["present"]
    assert parts(house) == []


def test_two_wheels_of_one_name_lie_side_by_side(registry: Registry, house: Wheelhouse) -> None:
    one = file(registry)
    bring(house, one)
    (registry.folder / NAME).write_bytes(b"another build of it")
    digest = hashlib.sha256(b"another build of it").hexdigest()
    two = Source(sha256=digest, filename=NAME, size=19, url=one.url)

    bring(house, two)

    assert house.survey([one.wheel, two.wheel]) == ["present", "present"]


def test_progress_is_in_bytes_and_ends_complete(registry: Registry, house: Wheelhouse) -> None:
    sources = [file(registry, f"a{n}-1-py3-none-any.whl", 400_000 + n) for n in range(5)]
    seen: list[Progress] = []

    bring(house, *sources, on_progress=seen.append)

    total = sum(source.size for source in sources)
    assert seen[-1] == Progress(bytes_done=total, bytes_total=total, wheels_done=5, wheels_total=5)
    assert all(0 <= each.bytes_done <= total for each in seen)


def test_a_cut_is_resumed_where_it_stopped(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    registry.faults[NAME] = [Fault(cut_after=1_000_000), Fault(cut_after=700_000)]
    seen: list[Progress] = []

    bring(house, source, on_progress=seen.append)

    starts = [request.range for request in registry.asked(NAME)]
    assert starts[0] is None
    assert len(starts) == 3
    assert all(start and int(start.removeprefix("bytes=").rstrip("-")) > 0 for start in starts[1:])
    assert sha256sum(house.path(source.wheel)) == source.sha256
    assert seen[-1].bytes_done == SIZE


def test_many_cuts_that_each_bring_something_are_outlived(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    registry.faults[NAME] = [Fault(cut_after=600_000)] * 4 + [Fault(status=503)] * 5

    bring(house, source)

    assert sha256sum(house.path(source.wheel)) == source.sha256


def test_the_next_run_resumes(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    registry.faults[NAME] = [Fault(cut_after=1_500_000)]
    registry.lasting[NAME] = Fault(status=503)
    with pytest.raises(SupplyError, match="run the session again"):
        bring(house, source)
    assert house.survey([source.wheel]) == ["absent"]
    kept = pathlib.Path(house.partial(source.wheel)).stat().st_size
    registry.lasting.clear()
    registry.requests.clear()

    bring(house, source)

    assert kept > 1_000_000
    assert [request.range for request in registry.asked(NAME)] == [f"bytes={kept}-"]
    assert sha256sum(house.path(source.wheel)) == source.sha256


def test_a_damaged_part_is_fetched_again_from_the_start(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    house.prepare()
    pathlib.Path(house.partial(source.wheel)).write_bytes(b"damaged" * 1000)
    seen: list[Progress] = []

    bring(house, source, on_progress=seen.append)

    assert [request.range for request in registry.asked(NAME)] == ["bytes=7000-", None]
    assert sha256sum(house.path(source.wheel)) == source.sha256
    assert seen[-1].bytes_done == SIZE


def test_a_part_that_is_too_long_is_forgotten(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry, size=1000)
    house.prepare()
    pathlib.Path(house.partial(source.wheel)).write_bytes(bytes(2000))

    bring(house, source)

    assert sha256sum(house.path(source.wheel)) == source.sha256


def test_a_server_without_ranges_is_read_from_the_start(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    registry.faults[NAME] = [Fault(cut_after=1_000_000), Fault(no_range=True)]

    bring(house, source)

    assert sha256sum(house.path(source.wheel)) == source.sha256


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(registry: Registry, house: Wheelhouse, status: int) -> None:
    source = file(registry, size=1000)
    registry.faults[NAME] = [Fault(status=status), Fault(status=status)]

    bring(house, source)

    assert len(registry.asked(NAME)) == 3


def test_retry_after_is_waited_for(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry, size=1000)
    registry.faults[NAME] = [Fault(status=429, headers=(("Retry-After", "1"),))]
    begun = time.monotonic()

    bring(house, source)

    assert time.monotonic() - begun >= 1.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_is_told_at_once(registry: Registry, house: Wheelhouse, status: int) -> None:
    source = file(registry, size=1000)
    registry.lasting[NAME] = Fault(status=status)

    with pytest.raises(SupplyError, match=f"{NAME}: the server answers {status}"):
        bring(house, source)

    assert len(registry.asked(NAME)) == 1


def test_wrong_bytes_are_told_with_both_hashes_and_not_kept(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry, size=1000)
    wrong = bytes(1000)
    registry.lasting[NAME] = Fault(body=wrong)

    with pytest.raises(SupplyError) as caught:
        bring(house, source)

    assert NAME in str(caught.value)
    assert source.sha256 in str(caught.value)
    assert hashlib.sha256(wrong).hexdigest() in str(caught.value)
    assert house.survey([source.wheel]) == ["absent"]
    assert parts(house) == []


@pytest.mark.parametrize("length", [10, 999, 1001, 5_000_000])
def test_a_file_of_another_size_is_wrong(registry: Registry, house: Wheelhouse, length: int) -> None:
    source = file(registry, size=1000)
    registry.lasting[NAME] = Fault(body=bytes(length))

    with pytest.raises(SupplyError, match="not the bytes that the lock names"):
        bring(house, source)

    assert parts(house) == []


def test_one_failure_ends_all_and_keeps_what_has_come(registry: Registry, house: Wheelhouse) -> None:
    small = file(registry, "a-1-py3-none-any.whl", 1000)
    slow = file(registry, "b-1-py3-none-any.whl", 2000)
    bad = file(registry, "c-1-py3-none-any.whl", 1500)
    registry.lasting[slow.filename] = Fault(pause=90)
    registry.lasting[bad.filename] = Fault(pause=0.3, body=bytes(1500))
    begun = time.monotonic()

    with pytest.raises(SupplyError, match=r"c-1-py3-none-any\.whl"):
        bring(house, small, slow, bad)

    assert time.monotonic() - begun < 30
    assert house.survey([small.wheel, slow.wheel, bad.wheel]) == ["present", "absent", "absent"]


def test_no_server_is_told_without_hanging(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry, size=10)
    gone = Source(sha256=source.sha256, filename=NAME, size=10, url="http://127.0.0.1:9/files/x.whl")

    with pytest.raises(SupplyError, match="connection was cut or refused"):
        bring(house, gone)


def test_a_login_goes_to_its_origin_and_not_along_a_redirect(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry, size=1000)
    with Registry(registry.folder) as elsewhere:
        registry.login = ("ann", "s3cret")
        registry.lasting[NAME] = Fault(redirect=elsewhere.file_url(NAME))
        logins = {origin(registry.origin): Login(user="ann", password="s3cret")}  # noqa: S106  a test's

        bring(house, source, logins=logins)

        assert [request.authorization for request in elsewhere.asked(NAME)] == [None]
    assert registry.asked(NAME)[0].authorization is not None


def test_netrc_is_asked(
    registry: Registry, house: Wheelhouse, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file(registry, size=1000)
    registry.login = ("ann", "s3cret")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    bring(house, source)

    assert house.survey([source.wheel]) == ["present"]


def test_a_login_is_never_shown(house: Wheelhouse) -> None:
    url, login = split_login("https://ann:s3cret@host.invalid:8443/simple/?x=1")
    source = Source(sha256="0" * 64, filename=NAME, size=1, url="http://ann:s3cret@127.0.0.1:9/x.whl")

    assert url == "https://host.invalid:8443/simple/?x=1"
    assert origin(url) == "https://host.invalid:8443"
    assert (login.user, login.password) == ("ann", "s3cret") if login else False
    assert "s3cret" not in repr(login) + repr(source)
    with pytest.raises(SupplyError) as caught:
        bring(house, source)
    assert "s3cret" not in str(caught.value)


def test_a_file_url_is_copied_and_checked(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    here = Source(sha256=source.sha256, filename=NAME, size=SIZE, url=(registry.folder / NAME).as_uri())

    bring(house, here)

    assert sha256sum(house.path(source.wheel)) == source.sha256
    assert not pathlib.Path(house.path(source.wheel)).samefile(registry.folder / NAME)


def test_a_missing_local_file_is_told(house: Wheelhouse, tmp_path: pathlib.Path) -> None:
    gone = Source(sha256="0" * 64, filename=NAME, size=1, url=(tmp_path / "gone.whl").as_uri())
    with pytest.raises(SupplyError, match=r"gone\.whl cannot be read"):
        bring(house, gone)


def test_two_fetches_at_once_bring_a_wheel_once(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    registry.faults[NAME] = [Fault(pause=0.5)]
    other = threading.Thread(target=bring, args=(Wheelhouse(house.folder), source))
    other.start()

    bring(house, source)
    other.join()

    assert len(registry.asked(NAME)) == 1
    assert house.survey([source.wheel]) == ["present"]


def test_a_changed_wheel_is_seen(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    bring(house, source)
    place = pathlib.Path(house.path(source.wheel))
    with place.open("r+b") as wheel:
        wheel.write(b"x")

    assert house.survey([source.wheel]) == ["wrong"]

    house.discard(source.wheel)
    bring(house, source)
    assert house.survey([source.wheel]) == ["present"]


def test_a_second_look_reads_no_wheel(registry: Registry, house: Wheelhouse) -> None:
    sources = [file(registry, f"a{n}-1-py3-none-any.whl", 100) for n in range(200)]
    bring(house, *sources)
    wheels = [source.wheel for source in sources]
    assert set(house.survey(wheels)) == {"present"}

    begun = time.perf_counter()
    house.survey(wheels)
    took = time.perf_counter() - begun

    assert took < 0.1  # some 3 ms; reading 200 files would still be quick, so this bounds only disasters


def test_wheels_laid_there_by_hand_are_hashed_and_remembered(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    place = pathlib.Path(house.path(source.wheel))
    place.parent.mkdir(parents=True)
    place.write_bytes((registry.folder / NAME).read_bytes())
    lying = Wheel(hashlib.sha256(b"").hexdigest(), NAME, SIZE)
    pathlib.Path(house.path(lying)).parent.mkdir()
    pathlib.Path(house.path(lying)).write_bytes(bytes(SIZE))

    assert house.survey([source.wheel, lying]) == ["present", "wrong"]


@pytest.mark.parametrize(
    ("sha256", "name"), [("0" * 64, "../x.whl"), ("0" * 64, ".whl"), ("..", NAME), ("0" * 63 + "\n", NAME)]
)
def test_no_name_leads_out_of_the_wheelhouse(house: Wheelhouse, sha256: str, name: str) -> None:
    with pytest.raises(AgentError):
        house.path(Wheel(sha256, name, 1))


def test_a_full_disk_is_told(registry: Registry, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch) -> None:
    source = file(registry, size=1000)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download._Arrival, "take", full)

    with pytest.raises(SupplyError, match="no space left"):
        bring(house, source)


def test_a_wheelhouse_that_cannot_be_made_is_told(registry: Registry, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SupplyError, match="cannot be written"):
        bring(Wheelhouse(str(tmp_path / "file/wheelhouse")), file(registry, size=10))


def test_ctrl_c_ends_soon_and_leaves_a_part(registry: Registry, house: Wheelhouse) -> None:
    source = file(registry)
    registry.faults[NAME] = [Fault(cut_after=1_000_000)]
    registry.lasting[NAME] = Fault(pause=90)
    code = (
        "import sys\n"
        "from hostenv.index.fetch import fetch\n"
        "from hostenv.index.source import Source\n"
        "from hostenv.agent.wheelhouse import Wheelhouse\n"
        "sha, name, size, url, folder = sys.argv[1:]\n"
        "source = Source(sha256=sha, filename=name, size=int(size), url=url)\n"
        "fetch([source], Wheelhouse(folder), logins={})\n"
    )
    arguments = [source.sha256, NAME, str(SIZE), source.url, house.folder]
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while len(registry.asked(NAME)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)

    child.send_signal(signal.SIGINT)
    begun = time.monotonic()
    child.wait(60)

    assert time.monotonic() - begun < 30
    assert child.returncode == -signal.SIGINT
    assert house.survey([source.wheel]) == ["absent"]
    assert pathlib.Path(house.partial(source.wheel)).stat().st_size > 500_000
