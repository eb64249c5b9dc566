"""Building on hosts behind SSH: online and offline, cut, refused, and what comes along."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pathlib
import platform
import random
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from hostenv.steps import supply_host, supply_uv
from hostenv.steps.depot import Depot
from kit.archives import another_python, pack_python, version_of
from kit.forwarder import Forwarder
from kit.offline import without_network
from kit.registry import Fault
from kit.remotes import PYTHON
from kit.repository import DEMO_PATCH, done, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.remotes import RemoteHost, Remotes
    from kit.repository import Repository

OFFLINE = "offline = true"


def current(remotes: Remotes, name: str) -> str | None:
    link = remotes.root(name) / "current/env"
    return link.resolve().name if link.exists() else None


def fetched(repository: Repository) -> dict[str, int]:
    """Return how often the content of each wheel was asked for by hostenv."""
    names = [path.name for path in repository.registry.folder.iterdir()]
    whole = [each for each in repository.registry.requests if each.method == "GET" and each.range is None]
    return {name: sum(each.file == name for each in whole) for name in names}


@pytest.mark.parametrize("supply", [OFFLINE, ""])
def test_two_hosts_side_by_side_hold_the_same_bytes(
    remotes: Remotes, repository: Repository, supply: str
) -> None:
    for name in ("a", "c"):
        remotes.spec(name, supply=supply)
    done(repository.run("lock", hosts=["a"]))
    repository.registry.requests.clear()
    built = done(repository.run("build_env", hosts=["a", "c"]))
    each = 1 if supply else 2  # by default each host fetches by itself
    assert fetched(repository) == {"demo-1.0-py3-none-any.whl": each, "helper-1.0-py3-none-any.whl": each}
    assert built["a"]["fingerprint"] == built["c"]["fingerprint"]
    for name in ("a", "c"):
        assert current(remotes, name) == built[name]["build"]
        environment = remotes.root(name) / "current/env"
        assert repository.python("import demo, helper; print(helper.ONE)", environment) == "1"
    before = {name: listing(remotes.root(name), skipped=["lock"]) for name in ("a", "c")}
    again = done(repository.run("build_env", hosts=["a", "c"]))
    assert {host["headline"] for host in again.values()} == {"nothing to do"}
    assert {name: listing(remotes.root(name), skipped=["lock"]) for name in ("a", "c")} == before


def test_a_series_is_computed_here_on_what_the_host_fetched(remotes: Remotes, repository: Repository) -> None:
    repository.series("demo-1.0", DEMO_PATCH)
    remotes.share("demo==1.0", env='patches = ["demo-1.0"]')
    remotes.spec("a")
    remotes.spec("c", supply=OFFLINE)
    built = done(repository.run("build_env", "--relock", hosts=["a", "c"]))
    assert built["a"]["fingerprint"] == built["c"]["fingerprint"]
    told = repository.python("import demo; demo.main()", remotes.root("a") / "current/env")
    assert told == "demo 1.0, patched"


def test_a_host_that_cannot_reach_the_index_is_sent_the_wheels(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost]
) -> None:
    remotes.spec("a")
    done(repository.run("lock", hosts=["a"]))
    with without_network(hosts["a"]):
        planned = repository.run("build_env", "--dry-run", hosts=["a"])
        built = done(repository.run("build_env", hosts=["a"]))
    assert done(planned)["a"]["changed"] is False
    assert current(remotes, "a") == built["a"]["build"]
    assert (repository.folder / "home/.cache/hostenv/wheelhouse").is_dir()


def test_what_a_host_cannot_fetch_after_all_comes_from_here_and_is_told(
    remotes: Remotes, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    remotes.spec("a")
    done(repository.run("lock", hosts=["a"]))
    wheel = "demo-1.0-py3-none-any.whl"
    real = supply_host.HostFetch.apply

    def refused_there(*words: Any, **more: Any) -> None:
        repository.registry.faults[wheel].append(Fault(status=403))
        real(*words, **more)

    monkeypatch.setattr(supply_host.HostFetch, "apply", refused_there)
    built = done(repository.run("build_env", hosts=["a"]))["a"]
    assert current(remotes, "a") == built["build"]
    (note,) = built["notes"]
    assert wheel in note
    assert "the server answers 403" in note


def test_wrong_bytes_are_neither_fetched_nor_kept(remotes: Remotes, repository: Repository) -> None:
    for name, supply in (("a", ""), ("c", OFFLINE)):
        remotes.spec(name, supply=supply)
    done(repository.run("lock", hosts=["a"]))
    wheel = repository.registry.folder / "helper-1.0-py3-none-any.whl"
    repository.registry.lasting[wheel.name] = Fault(body=bytes(wheel.stat().st_size))
    ran = repository.run("build_env", hosts=["a", "c"])
    for host in ran.document["hosts"]:
        assert "not the bytes that the lock names" in host["error"]["message"]
        assert current(remotes, host["host"]) is None
        assert not list(remotes.root(host["host"]).glob("wheelhouse/*/helper*"))


@pytest.mark.parametrize("layout", ["flat", "by hash"])
def test_a_filled_wheelhouse_is_read_and_never_written(
    remotes: Remotes, repository: Repository, layout: str
) -> None:
    remotes.spec("a", supply=OFFLINE)
    done(repository.run("lock", hosts=["a"]))
    filled = repository.folder / "srv"
    for path in repository.registry.folder.iterdir():
        place = filled / (hashlib.sha256(path.read_bytes()).hexdigest() if layout == "by hash" else "")
        place.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place / path.name)
    before = listing(filled)
    remotes.spec("a", supply=f'{OFFLINE}\nwheelhouse = "{filled}"')
    built = done(repository.run("build_env", hosts=["a"]))
    assert current(remotes, "a") == built["a"]["build"]
    assert listing(filled) == before
    assert not list(remotes.root("a").glob("wheelhouse/*/*.whl"))


def test_other_bytes_in_a_filled_wheelhouse_are_not_used(remotes: Remotes, repository: Repository) -> None:
    filled = repository.folder / "srv"
    filled.mkdir()
    for path in repository.registry.folder.iterdir():
        (filled / path.name).write_bytes(bytes(path.stat().st_size))
    remotes.spec("a", supply=f'{OFFLINE}\nwheelhouse = "{filled}"')
    built = done(repository.run("build_env", "--relock", hosts=["a"]))
    assert current(remotes, "a") == built["a"]["build"]
    assert len(list(remotes.root("a").glob("wheelhouse/*/*.whl"))) == 2


def test_another_machine_is_refused_before_any_write(remotes: Remotes, repository: Repository) -> None:
    for name in ("a", "c"):
        remotes.spec(name, supply=OFFLINE)
    done(repository.run("lock", hosts=["a"]))
    remotes.reach_by({}, alias={"a": "c"})
    ran = repository.run("build_env", hosts=["a"])
    assert ran.host["outcome"] == "refused"
    assert "this is c" in ran.message
    assert not remotes.root("a").exists()


def test_a_machine_with_the_right_key_and_another_id_is_refused(
    remotes: Remotes, repository: Repository, hosts: dict[str, RemoteHost]
) -> None:
    remotes.spec("a", supply=OFFLINE)
    spec = repository.path / "envspecs/a.toml"
    spec.write_text(spec.read_text().replace(hosts["a"].machine_id, "0" * 32))
    ran = repository.run("build_env", "--relock", hosts=["a"])
    assert ran.host["outcome"] == "refused"
    assert hosts["a"].machine_id in ran.message
    assert "0" * 32 in ran.message
    assert not remotes.root("a").exists()


def test_without_identity_the_lines_to_paste_are_told_and_work(
    remotes: Remotes, repository: Repository
) -> None:
    remotes.spec("a", supply=OFFLINE, identity=False)
    ran = repository.run("build_env", "--relock", hosts=["a"])
    assert ran.host["outcome"] == "refused"
    assert not remotes.root("a").exists()
    hint = ran.host["error"]["hint"]
    pasted = hint[hint.index("[identity]") :]
    spec = repository.path / "envspecs/a.toml"
    spec.write_text(f"{spec.read_text()}\n{pasted}\n")
    done(repository.run("build_env", "--relock", hosts=["a"]))


def test_wheels_of_another_architecture_come_too(remotes: Remotes, repository: Repository) -> None:
    python = f"cp{PYTHON.replace('.', '')}"
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    for arch in (other, platform.machine()):
        tag = f"{python}-{python}-manylinux_2_17_{arch}"
        repository.wheel("native", "1.0", {"native/words.txt": arch}, tag=tag)
    remotes.share("native==1.0", arch=other)
    remotes.spec("a", supply=OFFLINE)
    done(repository.run("lock", hosts=["a"]))
    done(repository.run("fetch", hosts=["a"]))
    (wheel,) = remotes.root("a").glob("wheelhouse/*/*.whl")
    assert wheel.name.endswith(f"{other}.whl")
    again = done(repository.run("fetch", hosts=["a"]))
    assert again["a"]["changed"] is False


def test_uv_for_another_architecture_comes_out_of_its_wheel(repository: Repository) -> None:
    version = supply_uv.own_version()
    script = f"uv-{version}.data/scripts/uv"
    repository.wheel("uv", version, {script: b"\x7fELF other"}, tag="py3-none-manylinux_2_17_aarch64")
    repository.wheel("uv", version, {script: b"\x7fELF wrong"}, tag="py3-none-manylinux_2_17_x86_64")
    arch = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    binary = supply_uv.binary_for(arch, Depot(repository.folder / "depot"))
    assert binary.path.read_bytes() == (b"\x7fELF other" if arch == "aarch64" else b"\x7fELF wrong")
    assert os.access(binary.path, os.X_OK)
    assert binary.sha256 == hashlib.sha256(binary.path.read_bytes()).hexdigest()


def test_two_sessions_never_write_to_one_host(remotes: Remotes, repository: Repository) -> None:
    remotes.spec("a", supply=OFFLINE)
    done(repository.run("lock", hosts=["a"]))
    root = remotes.root("a")
    with agent_on(LocalTransport("first")) as first:
        first.call("writer.take", root=str(root), who={"by": "somebody@desk", "session": "build_env"})
        ran = repository.run("build_env", hosts=["a"])
    assert ran.host["outcome"] == "refused"
    assert "build_env by somebody@desk" in ran.message
    assert [path.name for path in root.iterdir()] == ["lock"]


def test_credentials_reach_no_command_line_and_no_file(
    remotes: Remotes, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "only-for-the-index"  # noqa: S105  a made-up one
    repository.registry.login = ("reader", secret)
    address = repository.registry.simple.replace("//", f"//reader:{secret}@")
    monkeypatch.setenv("UV_DEFAULT_INDEX", address)
    remotes.spec("a", supply='fetch = "host"')
    seen: set[str] = set()
    with watching_command_lines(seen):
        done(repository.run("build_env", "--relock", hosts=["a"]))
    assert any("hostenv.index.remote" in line for line in seen), "the fetch was not seen"
    assert not [line for line in seen if secret in line]
    texts = [
        path for path in remotes.root("a").rglob("*") if path.is_file() and path.stat().st_size < 1 << 20
    ]
    assert not [path for path in texts if secret.encode() in path.read_bytes()]


@contextlib.contextmanager
def watching_command_lines(seen: set[str]) -> Iterator[None]:
    """Collect every command line and environment that this machine shows."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_an_offline_build_survives_twenty_cuts(remotes: Remotes, repository: Repository) -> None:
    chance = random.Random(20)  # noqa: S311  moments to cut at, the same in every run
    remotes.spec("a", supply=OFFLINE)
    old = done(repository.run("build_env", "--relock", hosts=["a"]))["a"]["build"]
    noise = {f"demo/blob{number}": chance.randbytes(1 << 20) for number in range(4)}
    repository.wheel("demo", "2.0", {"demo/__init__.py": "VERSION = '2.0'\n", **noise}, requires=["helper"])
    remotes.share("demo==2.0")
    done(repository.run("lock", hosts=["a"]))
    rounds = itertools.count()
    cuts = 0
    while cuts < 20:
        cuts += cut_build(remotes, repository, chance, in_time=next(rounds) % 2 == 1)
        environment = remotes.root("a") / "current/env"
        version = repository.python("import demo; print(demo.VERSION)", environment)
        assert version == ("1.0" if current(remotes, "a") == old else "2.0")
        start_over(remotes, repository, old)
    new = done(repository.run("build_env", hosts=["a"]))["a"]
    assert current(remotes, "a") == new["build"] != old
    remotes.spec("c", supply=OFFLINE)
    never_cut = done(repository.run("build_env", hosts=["c"]))["c"]
    assert never_cut["fingerprint"] == new["fingerprint"]


def cut_build(remotes: Remotes, repository: Repository, chance: random.Random, *, in_time: bool) -> bool:
    """Build over a connection that is cut; tell whether that kept it from its end."""
    host = remotes.hosts["a"]
    with Forwarder(("127.0.0.1", host.port)) as link:
        remotes.reach_by({"a": link.port})
        timer = threading.Timer(chance.uniform(0.1, 1.0), link.cut)
        if in_time:
            timer.start()
        else:
            link.cut_after = int(chance.uniform(1_000, 4_200_000))
        ran = repository.run("build_env", hosts=["a"])
        timer.cancel()
    remotes.reach_by({})
    if "on their way" in ran.message:
        assert "run the session again" in ran.message
    return bool(ran.host["outcome"] == "unreachable")


def start_over(remotes: Remotes, repository: Repository, old: str) -> None:
    """Take the host back to its first build and leave nothing of the second."""
    if current(remotes, "a") != old:
        done(repository.run("switch", "--build", old, hosts=["a"]))
    root = remotes.root("a")
    for path in (*root.glob("builds/*"), *root.glob("wheelhouse/*/demo-2.0-*.whl")):
        if path.is_dir() and path.name != old:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()


def test_a_host_without_a_fitting_python_gets_one_by_hash(
    remotes: Remotes, repository: Repository, tmp_path: pathlib.Path
) -> None:
    minor, python = another_python()
    archive = tmp_path / f"cpython-{minor}-install_only.tar.gz"
    pack_python(python, minor, archive)
    version = version_of(python)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    remotes.share("demo==1.0", python=minor)
    table = (
        f'[supply.python]\nfile = "{archive.name}"\nsha256 = "{digest}"\nversion = "{version}"\n'
        f'url = "{archive.as_uri()}"'
    )
    remotes.spec("a", supply=OFFLINE)
    refused = repository.run("build_env", "--relock", hosts=["a"])
    assert f"there is no CPython {minor}" in refused.message
    remotes.spec("a", supply=f"{OFFLINE}\n{table}")
    built = done(repository.run("build_env", "--relock", hosts=["a"]))
    assert built["a"]["interpreter"] == version
    there = remotes.root("a") / "pythons" / digest[:16] / "python/bin" / f"python{minor}"
    assert (remotes.root("a") / "current/env/bin/python").resolve() == there
    assert done(repository.run("build_env", hosts=["a"]))["a"]["changed"] is False
