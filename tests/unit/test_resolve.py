"""Resolving, locating and fetching against a real uv and an index on loopback."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.metadata
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import uv as uv_package
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hostenv.errors import InputError, RefusedError, SupplyError
from hostenv.machine import uv
from hostenv.spec.environment import Env, Prereleases
from hostenv.spec.lock import Lock, LockEntry
from hostenv.spec.lockplatform import LockPlatform
from hostenv.steps import fetch, lockfile, resolve
from hostenv.steps.locate import locate
from hostenv.steps.pylock import PylockPackage, PylockWheel, read
from hostenv.steps.uvwheel import uv_lock
from kit.registry import Fault, Registry
from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

PLATFORM = LockPlatform(python="3.12", arch="x86_64", glibc="2.34")


@pytest.fixture(autouse=True)
def registry(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    (tmp_path / "files").mkdir()
    with Registry(tmp_path / "files") as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.simple)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        for name in ("UV_INDEX", "UV_FIND_LINKS", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield served


def env(*requires: str, **fields: Any) -> Env:
    return Env(requires=tuple(map(Requirement, requires)), **fields)


def lock(spec: Env, *, current: Lock | None = None, upgrade: tuple[str, ...] = ()) -> Lock:
    asked = resolve.plan("demo", spec, PLATFORM, current=current, upgrade=upgrade)
    assert asked is not None
    return resolve.apply(asked)


def versions(found: Lock) -> dict[str, str]:
    return {entry.name: entry.version for entry in found.entries}


def test_a_lock_holds_what_is_needed_and_the_hash_of_each(registry: Registry) -> None:
    a = build_wheel(registry.folder, "a", "1.0", requires=["b>=1"])
    b = build_wheel(registry.folder, "b", "1.5")
    build_wheel(registry.folder, "unrelated", "1")

    found = lock(env("a"))

    assert [(e.name, e.version, e.sha256, e.filename, e.size) for e in found.entries] == [
        (w.name, w.version, w.sha256, w.filename, w.size) for w in (a, b)
    ]
    assert Lock.parse(found.render(), document="x") == found
    assert "127.0.0.1" not in found.render()


def test_constraints_overrides_excludes_and_dates_reach_uv(registry: Registry) -> None:
    build_wheel(registry.folder, "a", "1", requires=["b<2", "c"])
    for version in ("1.0", "1.5", "2.0"):
        build_wheel(registry.folder, "b", version)
    one = {"excludes": (canonicalize_name("c"),)}

    assert versions(lock(env("a", **one))) == {"a": "1", "b": "1.5"}
    assert versions(lock(env("a", **one, constraints=(Requirement("b<1.5"),))))["b"] == "1.0"
    assert versions(lock(env("a", **one, overrides=(Requirement("b==2.0"),))))["b"] == "2.0"
    with pytest.raises(SupplyError, match="no version"):
        lock(env("a", **one, exclude_newer=dt.datetime(2025, 1, 1, tzinfo=dt.UTC)))


def test_prereleases_are_chosen_only_where_allowed(registry: Registry) -> None:
    build_wheel(registry.folder, "a", "1.0")
    build_wheel(registry.folder, "a", "2.0rc1")

    assert versions(lock(env("a"))) == {"a": "1.0"}
    assert versions(lock(env("a", prereleases=Prereleases.ALLOW))) == {"a": "2.0rc1"}


def test_markers_are_those_of_the_platform_not_of_this_machine(registry: Registry) -> None:
    for name in ("linux", "windows", "old", "arm"):
        build_wheel(registry.folder, name, "1")
    build_wheel(
        registry.folder,
        "a",
        "1",
        requires=[
            "linux; sys_platform == 'linux'",
            "windows; sys_platform == 'win32'",
            "old; python_version < '3.12'",
            "arm; platform_machine == 'aarch64'",
        ],
    )

    assert set(versions(lock(env("a")))) == {"a", "linux"}
    arm = dataclasses.replace(PLATFORM, arch="aarch64", python="3.11")
    asked = resolve.plan("demo", env("a"), arm, current=None)
    assert asked
    assert set(versions(resolve.apply(asked))) == {"a", "linux", "old", "arm"}


def test_the_wheel_is_the_one_that_uv_would_install(registry: Registry, tmp_path: pathlib.Path) -> None:
    tags = [
        "py3-none-any",
        "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp312-abi3-manylinux_2_34_x86_64",
        "cp311-abi3-manylinux_2_34_x86_64",
        "cp313-cp313-manylinux_2_34_x86_64",
        "cp312-cp312-manylinux_2_28_aarch64",
        "cp312-cp312-musllinux_1_2_x86_64",
        "cp312-cp312-manylinux_2_40_x86_64",
        "cp312-none-manylinux_2_28_x86_64",
    ]
    for tag in tags:
        build_wheel(registry.folder, "a", "1", {"which.txt": tag}, tag=tag)

    command = [uv_package.find_uv_bin(), "pip", "install", "--no-config", "--target", str(tmp_path / "into")]
    command += ["--python-version", "3.12", "--python-platform", PLATFORM.uv_platform]
    command += ["--default-index", registry.simple, "a"]
    subprocess.run(command, check=True, capture_output=True)
    by_uv = (tmp_path / "into/which.txt").read_text()

    assert [entry.filename for entry in lock(env("a")).entries] == [f"a-1-{by_uv}.whl"]
    assert by_uv == tags[2]


def test_the_greater_build_number_wins() -> None:
    wheels = tuple(
        PylockWheel(filename=f"a-1-{build}py3-none-any.whl", url="", sha256=None, size=None)
        for build in ("", "2-", "10-", "9-")
    )
    best = PylockPackage(name="a", version="1", wheels=wheels).best(PLATFORM)
    assert best
    assert best.filename == "a-1-10-py3-none-any.whl"


def test_a_visible_local_version_does_not_leak_in(registry: Registry) -> None:
    build_wheel(registry.folder, "a", "1.0")
    found = lock(env("a"))
    build_wheel(registry.folder, "a", "1.0+cu130")

    sources, _ = locate(found, found.entries)

    assert [source.filename for source in sources] == ["a-1.0-py3-none-any.whl"]


def test_versions_stay_until_an_upgrade_is_asked_for(registry: Registry) -> None:
    for name in ("a", "b"):
        build_wheel(registry.folder, name, "1")
    first = lock(env("a", "b"))
    for name in ("a", "b"):
        build_wheel(registry.folder, name, "2")
    build_wheel(registry.folder, "c", "1")

    assert resolve.plan("demo", env("a", "b"), PLATFORM, current=first) is None
    assert versions(lock(env("a", "b", "c"), current=first)) == {"a": "1", "b": "1", "c": "1"}
    assert versions(lock(env("a", "b"), current=first, upgrade=("B",))) == {"a": "1", "b": "2"}
    every = lock(env("a", "b"), current=first, upgrade=(resolve.ALL,))
    assert versions(every) == {"a": "2", "b": "2"}
    assert resolve.differences(first, every) == ("a 1 → 2", "b 1 → 2")
    with pytest.raises(InputError, match="holds no x"):
        resolve.plan("demo", env("a", "b"), PLATFORM, current=first, upgrade=("x",))


def test_the_plan_says_why(registry: Registry) -> None:
    build_wheel(registry.folder, "a", "1")
    first = lock(env("a"))

    asked = resolve.plan("demo", env("a<2"), PLATFORM, current=first, upgrade=("a",))

    assert asked
    assert asked.reasons == ("env.requires: + a<2, - a", "upgrade: a")


def test_what_cannot_be_met_is_told_with_its_cause(registry: Registry) -> None:
    build_wheel(registry.folder, "a", "1", requires=["b<2"])
    build_wheel(registry.folder, "b", "1")

    with pytest.raises(SupplyError) as caught:
        lock(env("a", "b>=2"))

    assert "b>=2" in str(caught.value)
    assert "unsatisfiable" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_without_wheels_is_named_with_what_to_do(registry: Registry) -> None:
    (registry.folder / "only_source-1.0.tar.gz").write_bytes(b"no archive")
    build_wheel(registry.folder, "a", "1", requires=["only-source"])

    with pytest.raises(SupplyError, match=r"no wheel for cp312-x86_64 .*only-source") as caught:
        lock(env("a"))

    assert caught.value.hint
    assert "env.excludes" in caught.value.hint


def test_an_index_that_states_neither_hash_nor_size(registry: Registry, tmp_path: pathlib.Path) -> None:
    wheel = build_wheel(registry.folder, "a", "1")
    registry.bare = True

    found = lock(env("a"))
    fetch.apply(fetch.plan(found, tmp_path / "wheelhouse"))

    assert [(entry.sha256, entry.size) for entry in found.entries] == [(wheel.sha256, wheel.size)]


def test_a_folder_of_wheels_is_an_index_too(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = build_wheel(tmp_path / "links", "a", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))

    found = lock(env("a"))
    fetch.apply(fetch.plan(found, tmp_path / "wheelhouse"))

    assert found.entries[0].size == wheel.size
    assert fetch.plan(found, tmp_path / "wheelhouse").missing == ()
    assert (tmp_path / "wheelhouse" / wheel.sha256 / wheel.filename).read_bytes() == wheel.path.read_bytes()


def test_fetch_brings_what_is_missing_and_nothing_else(registry: Registry, tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        build_wheel(registry.folder, name, "1")
    found = lock(env("a", "b"))
    house = tmp_path / "wheelhouse"

    first = fetch.plan(found, house)
    assert first.lines() == (f"fetch    2 of 2 wheels, {first.size} bytes, into {house}",)
    assert not house.exists()
    fetch.apply(first)
    assert fetch.plan(found, house).lines() == ()

    fetch.paths(found, house)[0].write_bytes(b"damaged")
    again = fetch.plan(found, house)
    assert [entry.name for entry in again.missing] == [entry.name for entry in again.wrong] == ["a"]
    registry.requests.clear()
    fetch.apply(again)
    assert fetch.plan(found, house).missing == ()
    assert registry.asked("b-1-py3-none-any.whl") == []


def test_other_bytes_on_the_index_are_refused(registry: Registry, tmp_path: pathlib.Path) -> None:
    wheel = build_wheel(registry.folder, "a", "1")
    found = lock(env("a"))
    registry.lasting[wheel.filename] = Fault(body=bytes(wheel.size))

    with pytest.raises(SupplyError, match="not the bytes that the lock names"):
        fetch.apply(fetch.plan(found, tmp_path / "wheelhouse"))

    assert [entry.name for entry in fetch.plan(found, tmp_path / "wheelhouse").missing] == ["a"]


def test_a_wheel_that_is_gone_is_named(registry: Registry) -> None:
    build_wheel(registry.folder, "a", "1")
    found = lock(env("a"))
    entry = dataclasses.replace(found.entries[0], sha256="0" * 64)

    with pytest.raises(SupplyError, match=r"a-1-py3-none-any.whl \(sha256 0{64}\): the index has it with"):
        locate(found, [entry])


def test_too_little_space_is_told_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    huge = LockEntry(name="a", version="1", sha256="0" * 64, filename="a-1-py3-none-any.whl", size=1 << 40)
    found = Lock(name="x", platform=PLATFORM, inputs=(), entries=tuple([huge] * 200))

    with pytest.raises(RefusedError, match=r"219902\.33 GB needed .* free"):
        fetch.apply(fetch.plan(found, tmp_path / "wheelhouse"))

    assert not (tmp_path / "wheelhouse").exists()


def test_a_wheelhouse_that_cannot_be_read_is_told(registry: Registry, tmp_path: pathlib.Path) -> None:
    build_wheel(registry.folder, "a", "1")
    found = lock(env("a"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    with pytest.raises(SupplyError, match="cannot be read"):
        fetch.plan(found, tmp_path / "loop")


def test_credentials_reach_the_index_and_no_message(
    registry: Registry, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel(registry.folder, "a", "1")
    registry.login = ("ann", "s3cret")
    host = registry.origin.removeprefix("http://")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://ann:s3cret@{host}/simple")
    found = lock(env("a"))
    fetch.apply(fetch.plan(found, tmp_path / "one"))

    monkeypatch.setenv("UV_DEFAULT_INDEX", f"inner={registry.simple}")
    monkeypatch.setenv("UV_INDEX_INNER_USERNAME", "ann")
    monkeypatch.setenv("UV_INDEX_INNER_PASSWORD", "s3cret")
    fetch.apply(fetch.plan(found, tmp_path / "two"))

    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://ann:s3cret@127.0.0.1:9/simple")
    with pytest.raises(SupplyError) as caught:
        lock(env("b"))
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in found.render()


def test_an_index_is_chosen_by_its_name_in_the_settings_of_uv(
    registry: Registry, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel(tmp_path / "more", "extra", "1")
    build_wheel(registry.folder, "a", "1", requires=["extra"])
    with Registry(tmp_path / "more", login=("ann", "s3cret")) as more:
        place = more.simple.removeprefix("http://")
        settings = f'[[index]]\nname = "inner"\nurl = "http://ann:s3cret@{place}"\nexplicit = true\n'
        (tmp_path / "uv.toml").write_text(settings)
        monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
        monkeypatch.delenv("UV_NO_CONFIG")

        found = lock(env("a", indexes=("default", "inner")))
        fetch.apply(fetch.plan(found, tmp_path / "wheelhouse"))

    assert versions(found) == {"a": "1", "extra": "1"}
    assert fetch.plan(found, tmp_path / "wheelhouse").missing == ()
    assert "inner" in found.render()
    assert "127.0.0.1" not in found.render()


def test_the_wheel_of_uv_is_the_one_of_this_environments_version(registry: Registry) -> None:
    version = importlib.metadata.version("uv")
    wheel = build_wheel(registry.folder, "uv", version, tag="py3-none-manylinux_2_17_aarch64")
    build_wheel(registry.folder, "uv", version, tag="py3-none-manylinux_2_17_x86_64")

    found = uv_lock(dataclasses.replace(PLATFORM, arch="aarch64"))

    assert [entry.sha256 for entry in found.entries] == [wheel.sha256]


def test_settings_that_would_change_a_resolution_are_left_out() -> None:
    given = {
        "HOME": "/home/x",
        "UV_PYTHON": "3.8",
        "UV_PROJECT": "/p",
        "UV_EXCLUDE_NEWER": "2020-01-01",
        "VIRTUAL_ENV": "/v",
        "PYTHONPATH": "/x",
        "UV_INDEX": "inner=https://index.invalid/simple",
        "UV_INDEX_INNER_PASSWORD": "p",
        "HTTPS_PROXY": "http://proxy.invalid",
    }
    kept = uv.environment(given)

    assert {"UV_PYTHON", "UV_PROJECT", "UV_EXCLUDE_NEWER", "VIRTUAL_ENV", "PYTHONPATH"}.isdisjoint(kept)
    assert {"HOME", "UV_INDEX", "UV_INDEX_INNER_PASSWORD", "HTTPS_PROXY"} <= kept.keys()
    assert kept["UV_SYSTEM_CERTS"] == "1"
    assert uv.environment({"UV_SYSTEM_CERTS": "0"})["UV_SYSTEM_CERTS"] == "0"


def test_a_pylock_that_is_not_understood_is_an_error(tmp_path: pathlib.Path) -> None:
    for text in ("", "x", 'lock-version = "9.0"', 'lock-version = "1.0"\npackages = 3'):
        with pytest.raises(SupplyError):
            read(text, folder=tmp_path, platform=PLATFORM)


def test_a_lock_is_written_whole_and_only_when_it_changed(registry: Registry, tmp_path: pathlib.Path) -> None:
    build_wheel(registry.folder, "a", "1")
    found = lock(env("a"))
    path = tmp_path / "locks/demo.cp312-x86_64.txt"

    assert lockfile.load(path, document="x") is None
    lockfile.store(found, path)
    written = path.stat()
    lockfile.store(found, path)
    assert path.stat() == written
    assert lockfile.load(path, document="x") == found
    assert [each.name for each in path.parent.iterdir()] == ["demo.cp312-x86_64.txt"]
