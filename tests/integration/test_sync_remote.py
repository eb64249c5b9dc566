"""``sync_patches`` between hosts behind SSH: the reference is only read, the target gets what it lacks."""

from __future__ import annotations

import json
import os
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.spec.fleet import load_fleet
from hostenv.spec.host import Mode
from kit.forwarder import Forwarder
from kit.remotes import Remotes, remote_hosts
from kit.repository import DEMO_PATCH, Repository, listing
from kit.trio import digests

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from kit.remotes import RemoteHost
    from kit.repository import Ran

OVERLAY = '[[overlays]]\nname = "ours"\n'
REFERENCE = OVERLAY + '[reference]\nhost = "r"\n'
WANTED = ("demo==1.0", "kernel==1.0")
HOLE = 64 << 20


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RemoteHost]]:
    with remote_hosts(tmp_path_factory.mktemp("hosts"), ["r", "c"]) as started:
        yield started


@pytest.fixture
def remotes(repository: Repository, hosts: dict[str, RemoteHost], monkeypatch: pytest.MonkeyPatch) -> Remotes:
    """A reference ``r`` with series and overlay, and a bare target ``c`` that nothing but SSH reaches."""
    made = Remotes(repository=repository, hosts=hosts)
    for name, value in made.install().items():
        monkeypatch.setenv(name, value)
    repository.wheel("kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'index'\n"})
    made.share(*WANTED)
    made.spec("r", supply="offline = true")
    done(repository.run("lock", hosts=("r",)))
    done(repository.run("build_env", hosts=("r",)))
    (site(made, "r") / "kernel/__init__.py").write_text("WHOSE = 'ours'\n")
    (site(made, "r") / "kernel/ops.bin").write_bytes(os.urandom(4 << 20))
    add_odd_files(site(made, "r") / "kernel")
    done(repository.run("overlay", hosts=("r", "ours", "kernel")))
    repository.series("demo-1.0", DEMO_PATCH)
    made.share(*WANTED, env='patches = ["demo-1.0"]')
    made.spec("r", supply="offline = true", more=OVERLAY)
    made.spec("c", supply="offline = true", more=REFERENCE)
    done(repository.run("build_env", hosts=("r",)))
    return made


def add_odd_files(folder: pathlib.Path) -> None:
    """Add what a copy may lose: odd names, modes, links, an empty file, and 64 MB that are a hole."""
    for name in ("caf\u00e9.txt", 'two\nlines, "quoted".txt', "not\udcffutf8.bin", "100% [x] *.txt", " "):
        (folder / name).write_text(f"{name!r}\n")
    (folder / "caf\u00e9.txt").chmod(0o444)
    (folder / "run me").write_text("#!/bin/sh\n")
    (folder / "run me").chmod(0o755)
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/empty").write_bytes(b"")
    (folder / "deep/link").symlink_to("../caf\u00e9.txt")
    (folder / "deep/all").symlink_to("er")
    with (folder / "sparse.bin").open("wb") as file:
        file.write(b"here")
        file.truncate(HOLE)


def room(path: pathlib.Path) -> int:
    """Return the bytes that a file takes on the disk."""
    return path.stat().st_blocks * 512


def done(ran: Ran) -> dict[str, dict[str, Any]]:
    """Return the part of each host of a session that must have succeeded."""
    assert ran.error is None, ran.error
    assert ran.failure is None, ran.message
    return {host["host"]: host for host in ran.document["hosts"]}


def site(remotes: Remotes, name: str) -> pathlib.Path:
    (found,) = (remotes.root(name) / "current/env").resolve().glob("lib/python3*/site-packages")
    return found


def test_series_and_overlay_go_from_one_host_behind_ssh_to_another(remotes: Remotes) -> None:
    before = listing(remotes.root("r"))
    shutil.rmtree(remotes.repository.folder / "home/.cache/hostenv/store")

    first = done(remotes.repository.run("sync_patches", hosts=("r", "c")))["c"]

    assert listing(remotes.root("r")) == before
    assert any("equal to r in every file" in note for note in first["notes"])
    assert digests(site(remotes, "c")) == digests(site(remotes, "r"))
    there, here = (site(remotes, name) / "kernel" for name in ("c", "r"))
    names = {path.name for path in there.rglob("*")}
    assert names >= {'two\nlines, "quoted".txt', "not\udcffutf8.bin", " "}
    assert (there / "deep/link").readlink() == (here / "deep/link").readlink()
    assert room(there / "sparse.bin") <= room(here / "sparse.bin") + (1 << 20)
    again = done(remotes.repository.run("sync_patches", hosts=("r", "c")))["c"]
    assert again["headline"] == "nothing to do"
    assert again["seconds"] < 5


def test_a_reference_that_is_gone_is_needed_no_more(remotes: Remotes) -> None:
    wanted = digests(site(remotes, "r"))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    remotes.reach_by({"r": port})
    ran = remotes.repository.run("sync_patches", hosts=("r", "c"))
    assert "what was taken from r is kept here: nox -s build_env -- c" in str(ran.error)
    done(remotes.repository.run("build_env", hosts=("c",)))
    assert digests(site(remotes, "c")) == wanted


def test_a_link_cut_in_the_middle_leaves_the_target_as_it_was_and_the_next_run_finishes(
    remotes: Remotes, hosts: dict[str, RemoteHost]
) -> None:
    with Forwarder(("127.0.0.1", hosts["c"].port)) as link:
        link.cut_after = 2 << 20
        remotes.reach_by({"c": link.port})
        ran = remotes.repository.run("sync_patches", hosts=("r", "c"))
        assert ran.failure is not None
        assert not (remotes.root("c") / "current").exists()
    remotes.reach_by({})
    done(remotes.repository.run("sync_patches", hosts=("r", "c")))
    assert digests(site(remotes, "c")) == digests(site(remotes, "r"))


def test_a_target_that_is_another_machine_than_its_spec_says_is_refused(remotes: Remotes) -> None:
    remotes.reach_by({}, {"c": "r"})
    ran = remotes.repository.run("sync_patches", hosts=("r", "c"))
    assert ran.failure is not None or ran.error is not None
    assert not (remotes.root("c") / "current").exists()


def test_a_host_that_no_spec_names_is_captured_by_its_alias_and_described(remotes: Remotes) -> None:
    repository, new = remotes.repository, remotes.hosts["c"]
    written = repository.path / "envspecs/c.toml"
    written.unlink()
    venv = (remotes.root("r") / "current/env").resolve()
    ran = repository.run("capture", hosts=("c",))
    assert 'there is no host "c"' in str(ran.error)
    ran = repository.run("capture", "--venv", str(venv), hosts=("c",))
    assert "patches/demo-1.0 is there and says something else" in ran.message
    assert not (repository.path / "overlays/c-captured.toml").exists(), "nothing is written by half"
    shutil.rmtree(repository.path / "patches/demo-1.0")
    done(repository.run("capture", "--venv", str(venv), hosts=("c",)))

    spec = load_fleet(repository.path / "envspecs").specs["c"]
    assert spec.identity is not None
    assert (spec.identity.machine_id, spec.identity.host_key) == (new.machine_id, new.host_key)
    assert spec.host.mode is Mode.OBSERVE
    assert spec.classes == ("c-captured",)
    assert json.loads((repository.path / "envspecs/manifests/c.json").read_text())["venv"] == str(venv)

    written.unlink()
    remotes.reach_by({}, {"c": "r"})
    ran = repository.run("capture", "--venv", str(venv), hosts=("c",))
    assert "c is the machine of envspecs/r.toml" in ran.message
    assert not written.exists()
