"""Files, answers and limits that are broken beyond measure end in one error, soon, and no harm."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import os
import pathlib
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.files import remove
from hostenv.agent.layout import Layout, read_json
from hostenv.agent.wheelhouse import Wheelhouse
from hostenv.agent.wire import AgentError
from hostenv.agent.writer import sole_writer
from hostenv.document import DocumentError, Problem, Problems, load_toml, read
from hostenv.errors import HostError, InputError, PatchError, SupplyError, UnreachableError
from hostenv.index import session
from hostenv.index.download import Download
from hostenv.index.source import Source
from hostenv.machine import uv
from hostenv.machine.agent import agent_on, argv
from hostenv.machine.local import LocalTransport
from hostenv.spec import words
from hostenv.spec.extends import Folder
from hostenv.spec.inputs import digest_of
from hostenv.spec.lock import Lock
from hostenv.spec.series import load_series
from hostenv.steps import lockfile
from kit.registry import Fault, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = "9" * 5000
"""More digits than int() takes (sys.int_info.default_max_str_digits: 4300)."""
WHEEL = "demo-1.0-py3-none-any.whl"


@pytest.fixture
def layout(tmp_path: pathlib.Path) -> Layout:
    (tmp_path / "root").mkdir()
    return Layout(str(tmp_path / "root"))


@pytest.fixture
def registry(tmp_path: pathlib.Path) -> Iterator[Registry]:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / WHEEL).write_bytes(b"content")
    with Registry(tmp_path / "files") as served:
        yield served


def toml_problem(path: pathlib.Path) -> str:
    problems = Problems()
    assert load_toml(path, document="x.toml", problems=problems) is None
    (problem,) = problems.found
    return str(problem)


def bring(registry: Registry, folder: pathlib.Path) -> Wheelhouse:
    digest = hashlib.sha256(b"content").hexdigest()
    source = Source(sha256=digest, filename=WHEEL, size=7, url=registry.file_url(WHEEL))
    house = Wheelhouse(str(folder / "wheelhouse"))
    pathlib.Path(house.partial(source.wheel)).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(house.path(source.wheel)).parent.mkdir(parents=True, exist_ok=True)
    opened = session.Session({}, 1)
    with contextlib.closing(opened):
        job = Download(house=house, session=opened, on_bytes=lambda _: None, stop=threading.Event())
        job.bring(source)
    return house


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to(path.parent.parent / "precious"), "a symbolic link"),
        (lambda path: path.mkdir(), "a folder"),
        (os.mkfifo, "a pipe"),
    ],
)
def test_the_lock_must_be_a_file(layout: Layout, make: Callable[[pathlib.Path], None], said: str) -> None:
    precious = pathlib.Path(layout.root).parent / "precious"
    precious.write_text("precious")
    make(pathlib.Path(layout.lock))
    with pytest.raises(AgentError, match=said), sole_writer(layout, {}):
        pass
    assert precious.read_text() == "precious"


def test_the_next_writer_removes_whatever_a_killed_one_left(layout: Layout) -> None:
    root = pathlib.Path(layout.root)
    (root / ".tmp-file").touch()
    (root / ".tmp-folder/below").mkdir(parents=True)
    (root / "kept").mkdir()
    (root / ".tmp-link").symlink_to(root / "kept")
    with sole_writer(layout, {}):
        assert sorted(path.name for path in root.iterdir()) == ["kept", "lock"]


def test_removing_nothing_is_fine(tmp_path: pathlib.Path) -> None:
    remove(str(tmp_path / "absent"))


def test_a_pipe_is_never_waited_for(tmp_path: pathlib.Path) -> None:
    series = tmp_path / "demo-1.0"
    series.mkdir()
    (series / "series").write_text("a.patch\n")
    for path in (tmp_path / "pipe", series / "a.patch"):
        os.mkfifo(path)
    pipe = tmp_path / "pipe"
    with pytest.raises(AgentError, match="not a regular file"):
        read_json(str(pipe))
    assert "not a regular file" in toml_problem(pipe)
    with pytest.raises(InputError, match="not a regular file"):
        lockfile.load(pipe, document="x.txt")
    with pytest.raises(PatchError, match=r"a\.patch: cannot be read: not a regular file"):
        load_series(series)
    (series / "series").unlink()
    os.mkfifo(series / "series")
    with pytest.raises(PatchError, match="series: cannot be read: not a regular file"):
        load_series(series)


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, f"a = {LONG}"], ids=["deep", "long"])
def test_toml_that_no_parser_takes_is_told(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    assert toml_problem(tmp_path / "x.toml").startswith("x.toml: not TOML: ")


def test_json_that_no_parser_takes_is_told(layout: Layout) -> None:
    pathlib.Path(layout.hold).write_text("[" * 100_000)
    with pytest.raises(AgentError, match="does not hold JSON"):
        read_json(layout.hold)


@pytest.mark.parametrize("value", [f"{LONG}GiB", 2**63, "9223372036855 MB"])
def test_a_size_is_less_than_8_eib(value: object) -> None:
    with pytest.raises(DocumentError, match="must be"):
        read(value, words.size, document="x")


def test_the_largest_size_is_taken() -> None:
    assert read(2**63 - 1, words.size, document="x") == 2**63 - 1


@pytest.mark.parametrize("value", [f"3.{LONG}", f">={LONG}"])
def test_a_range_of_pythons_is_short(value: str) -> None:
    with pytest.raises(DocumentError, match="at most 100 characters"):
        read(value, words.pythons, document="x")


def lock_text(*inputs: str, entry: str = "") -> str:
    head = ["# hostenv lock 1, made by `nox -s lock`; do not edit", "# name: x"]
    head += ["# platform: cp312 x86_64 glibc 2.34", *(f"# input: {line}" for line in inputs)]
    head += [f"# inputs: sha256:{digest_of(inputs)}", f"# packages: {1 if entry else 0}"]
    return "\n".join([*head, entry])


def test_a_version_of_a_lock_with_too_many_digits_is_told() -> None:
    entry = f"demo==={LONG} --hash=sha256:{'0' * 64}  # {WHEEL}, 7"
    with pytest.raises(DocumentError, match="line 6: bad version"):
        Lock.parse(lock_text(entry=entry), document="x")


@pytest.mark.parametrize("line", ["platform.python: 3.11", "platform.arch: aarch64", "platform.glibc: 2.17"])
def test_a_lock_whose_inputs_name_another_platform_is_refused(line: str) -> None:
    with pytest.raises(DocumentError, match=f'is not that of "# input: {line}"'):
        Lock.parse(lock_text(line), document="x")


def test_what_is_no_number_of_a_generation_is_none(layout: Layout) -> None:
    for name in ("1", "12", "²", "٣", "007", "0", "9" * 250, "1\n"):
        (pathlib.Path(layout.generations) / name).mkdir(parents=True)
    assert layout.generation_numbers() == [1, 12]
    for name in ("²", "٣", "007", "9" * 250):
        pathlib.Path(layout.current).unlink(missing_ok=True)
        pathlib.Path(layout.current).symlink_to(f"generations/{name}")
        with pytest.raises(AgentError, match="no generation"):
            layout.current_number()


def test_a_root_that_cannot_be_is_told_as_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AgentError, match="Not a directory") as caught:
        Layout(str(tmp_path / "file")).current_number()
    assert "move it away" not in (caught.value.hint or "")
    with pytest.raises(AgentError, match="File name too long"):
        Layout(str(tmp_path / ("a" * 300))).current_number()


def test_a_long_chain_of_classes_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "classes").mkdir()
    for number in range(1500):
        text = f'extends = "classes/c{number + 1}"\n'
        (tmp_path / f"classes/c{number}.toml").write_text(text)
    (tmp_path / "classes/c1500.toml").touch()
    (tmp_path / "host.toml").write_text('extends = "classes/c0"\n')
    problems = Problems()
    Folder(path=tmp_path, problems=problems).merged("host")
    (problem,) = problems.found
    assert problem.message == "more than 20 classes extend one another, from host on"
    within_bounds = Problems()
    merged = Folder(path=tmp_path, problems=within_bounds).merged("classes/c1480")
    assert merged
    assert (len(merged.classes), within_bounds.found) == (20, {})


def test_a_message_names_50_problems() -> None:
    error = DocumentError(Problem(document="x", path=str(number), message="bad") for number in range(60))
    assert len(error.problems) == 60
    assert error.message.splitlines()[49:] == ["x: 49: bad", "and 10 more"]


@pytest.mark.parametrize("wait", ["99999999", LONG, email.utils.formatdate(time.time() + 86400, usegmt=True)])
def test_a_server_that_asks_for_hours_is_not_waited_for(
    registry: Registry, tmp_path: pathlib.Path, wait: str
) -> None:
    registry.faults[WHEEL] = [Fault(status=429, headers=(("Retry-After", wait),))]
    with pytest.raises(SupplyError, match="answers 429 and asks to wait"):
        bring(registry, tmp_path)
    assert len(registry.asked(WHEEL)) == 1


def test_a_redirect_to_no_url_is_told(registry: Registry, tmp_path: pathlib.Path) -> None:
    registry.faults[WHEEL] = [Fault(redirect="http://[::1")]
    with pytest.raises(SupplyError, match=WHEEL):
        bring(registry, tmp_path)


def test_what_is_downloaded_is_written_by_its_owner_only(registry: Registry, tmp_path: pathlib.Path) -> None:
    before = os.umask(0)
    try:
        house = bring(registry, tmp_path)
    finally:
        os.umask(before)
    (path,) = (path for path in pathlib.Path(house.folder).rglob("*.whl"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_uv_that_cannot_be_started_is_told(tmp_path: pathlib.Path) -> None:
    uv.binary()  # its module is imported
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1, hard))
        try:
            with pytest.raises(HostError, match="uv cannot be started here: Too many open files"):
                uv.run(["--version"], folder=tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_on_file_sizes_is_named_by_the_agent(tmp_path: pathlib.Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -f 1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (
        pytest.raises(UnreachableError, match="File too large") as caught,
        agent_on(LocalTransport("here"), python=str(python)),
    ):
        pass
    assert "ulimit -f" in (caught.value.hint or "")


def test_a_host_without_python_is_told_what_is_needed(tmp_path: pathlib.Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 127\n")
    python.chmod(0o755)
    with (
        pytest.raises(UnreachableError, match="exit 127") as caught,
        agent_on(LocalTransport("here"), python=str(python)),
    ):
        pass
    assert "3.8" in (caught.value.hint or "")


def test_the_start_of_the_agent_is_read_by_pythons_that_are_too_old() -> None:
    """Python 3.4's grammar, by Python's own parser (``feature_version``)."""
    script = "import ast,sys; ast.parse(sys.argv[1], feature_version=(3, 4))"
    subprocess.run([sys.executable, "-c", script, argv("python3")[-1]], check=True, timeout=30)
