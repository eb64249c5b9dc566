"""For which platform a host's lock is made, and who may share one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from hostenv.errors import HostError, InputError, RefusedError
from hostenv.spec.fleet import Fleet, load_fleet
from hostenv.spec.inputs import input_lines
from hostenv.spec.lock import Lock
from hostenv.spec.lockplatform import LockPlatform
from hostenv.workflows.locking import Locker, platform_of
from kit.roots import root_state

if TYPE_CHECKING:
    import pathlib

    from hostenv.machine.agent import Agent


def fleet_of(folder: pathlib.Path, *, platform: str = "") -> Fleet:
    """Return two hosts of one class, which share its lock."""
    specs = folder / "envspecs"
    (specs / "classes").mkdir(parents=True)
    (specs / "classes/gpu.toml").write_text(
        f'[env]\nrequires = ["demo"]\n[platform]\npython = "3.12"\narch = "x86_64"\n{platform}\n'
    )
    for name in "ab":
        text = f'extends = "classes/gpu"\n[host]\naddress = "{name}.example"\nroot = "/srv/{name}"\n'
        (specs / f"{name}.toml").write_text(text)
    return load_fleet(specs)


def platform_with(glibc: str) -> LockPlatform:
    return LockPlatform(python="3.12", arch="x86_64", glibc=glibc)


def test_two_hosts_with_two_glibcs_cannot_share_a_lock(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(tmp_path)
    one, two = fleet.specs.values()
    older = platform_with("2.31")
    path = fleet.lock_path(one, python="3.12", arch="x86_64")
    assert path == fleet.lock_path(two, python="3.12", arch="x86_64")
    path.parent.mkdir()
    lock = Lock(name=one.lock_owner, platform=older, inputs=input_lines(one.env, older), entries=())
    path.write_text(lock.render())
    locker = Locker(fleet, upgrade=None, relock=False)
    assert locker.lock(one, older, lambda: None).lock == lock
    assert locker.lock(two, older, lambda: None).lock == lock
    with pytest.raises(InputError, match=rf"a and b share .*{path.name}, with glibc 2\.31 and 2\.39"):
        locker.lock(two, platform_with("2.39"), lambda: None)


@pytest.mark.parametrize(("asked", "has"), [("2.34", "2.31"), ("2.34", "2.9"), ("2.17", None)])
def test_a_host_that_cannot_load_the_wheels_is_refused(
    tmp_path: pathlib.Path, asked: str, has: str | None
) -> None:
    spec = fleet_of(tmp_path, platform=f'glibc = "{asked}"').specs["a"]
    with pytest.raises(RefusedError, match=rf"the lock needs {asked}") as caught:
        platform_of(spec, root_state(glibc=has), None)
    assert f"has glibc {has}" in caught.value.message or "another C library" in caught.value.message


@pytest.mark.parametrize("has", ["2.34", "2.39", "2.100"])
def test_a_host_with_as_much_or_more_is_served(tmp_path: pathlib.Path, has: str) -> None:
    spec = fleet_of(tmp_path, platform='glibc = "2.34"').specs["a"]
    assert platform_of(spec, root_state(glibc=has), None).glibc == "2.34"


def test_where_no_interpreter_fits_it_is_said_what_to_do(tmp_path: pathlib.Path) -> None:
    class Bare:
        def call(self, operation: str, **arguments: object) -> list[object]:
            assert operation == "interpreters.find", arguments
            return []

    fleet = fleet_of(tmp_path, platform='glibc = "2.31"')
    file = fleet.folder / "classes/gpu.toml"
    file.write_text(file.read_text().replace('"3.12"', '">=3.11,<3.14"'))
    spec = load_fleet(fleet.folder).specs["a"]
    with pytest.raises(HostError, match=r"no CPython fits .* found: none") as caught:
        platform_of(spec, root_state(), cast("Agent", Bare()))
    assert "install one" in str(caught.value.hint)
