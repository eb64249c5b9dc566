"""The real commands on real hosts in namespaces: probe, builds side by side, and root by sudo."""

from __future__ import annotations

import platform
import shutil
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from kit.fleet import Fleet, missing_fleet
from kit.repository import done

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.fleet import Host
    from kit.repository import Repository

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(bool(missing_fleet()), reason=missing_fleet() or ""),
]

ROOT = "/srv/hostenv"
VERSION = "import platform; print(platform.python_version())"
USER = 23456
"""A user id that the machine on which the tests run does not have."""


@pytest.fixture
def fleet(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Return a fleet whose hosts the repository's commands reach by their names."""
    with Fleet() as started:
        programs = repository.folder / "client-bin"
        programs.mkdir()
        ssh = programs / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {started.client_config} "$@"\n')
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{repository.environment['PATH']}")
        yield started


def python_of(host: Host) -> str:
    """Return the version of the ``python3`` that a login on the host finds."""
    return host.run("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "python3", "-c", VERSION).strip()


def write_specs(repository: Repository, hosts: dict[str, Host], supply: str, host: str = "") -> None:
    minor = python_of(next(iter(hosts.values()))).rpartition(".")[0]
    (repository.path / "envspecs/classes").mkdir(exist_ok=True)
    (repository.path / "envspecs/classes/kit.toml").write_text(
        f'[env]\nrequires = ["demo==1.0"]\n[platform]\narch = "{platform.machine()}"\n'
        f'glibc = "2.17"\npython = "{minor}"\n'
    )
    for name, each in hosts.items():
        (repository.path / f"envspecs/{name}.toml").write_text(
            f'extends = "classes/kit"\n[host]\nroot = "{ROOT}"\n{host}\n'
            f'[identity]\nmachine-id = "{each.machine_id}"\nhost-key = "{each.fingerprint}"\n'
            f'[supply]\n{supply}\n[build]\nmin-free = "1MiB"\n'
        )


def test_two_machines_are_built_side_by_side_online_and_offline(repository: Repository, fleet: Fleet) -> None:
    hosts = {name: fleet.add(name) for name in ("a", "c")}
    port = urllib.parse.urlsplit(repository.registry.simple).port
    assert port
    write_specs(repository, hosts, "offline = true")
    done(repository.run("lock", hosts=["a"]))
    offline = done(repository.run("build_env", hosts=["a", "c"]))
    for name, host in hosts.items():
        host.run("mv", ROOT, f"{ROOT}-offline")
        assert name in offline
    write_specs(repository, hosts, 'fetch = "host"')
    repository.registry.requests.clear()
    with hosts["a"].reaches(port), hosts["c"].reaches(port):
        online = done(repository.run("build_env", hosts=["a", "c"]))
    asked = [each.file for each in repository.registry.requests if each.method == "GET" and not each.range]
    wheels = sorted(path.name for path in repository.registry.folder.glob("*.whl"))
    assert sorted(file for file in asked if file in wheels) == sorted(wheels * 2), "each host by itself"
    prints = {each["fingerprint"] for built in (offline, online) for each in built.values()}
    assert len(prints) == 1
    for host in hosts.values():
        for root in (ROOT, f"{ROOT}-offline"):
            assert (
                host.run(f"{root}/current/env/bin/python", "-Bc", "import demo; demo.main()") == "demo 1.0\n"
            )
    before = {name: host.listing() for name, host in hosts.items()}
    assert {each["headline"] for each in done(repository.run("build_env", hosts=["a", "c"])).values()} == {
        "nothing to do"
    }
    changed = {name: set(host.listing()) ^ set(before[name]) for name, host in hosts.items()}
    assert {path for each in changed.values() for path, *_ in each if not path.endswith("/lock")} == set()


def test_the_probe_command_tells_a_container_from_its_machine_and_changes_nothing(
    repository: Repository, fleet: Fleet
) -> None:
    a = fleet.add("a")
    hosts = {"a": a, "b": fleet.add("b", inside=a), "c": fleet.add("c")}
    for name in hosts:
        (repository.path / f"envspecs/{name}.toml").write_text(f'[host]\nroot = "{ROOT}"\nmode = "observe"\n')
    before = {name: host.listing() for name, host in hosts.items()}
    ran = repository.run("probe", hosts=list(hosts))
    assert ran.failure is None
    assert {name: host.listing() for name, host in hosts.items()} == before
    told = {(each["first"], each["second"]): each["kind"] for each in ran.document["relations"]}
    assert told == {("a", "b"): "container-of", ("a", "c"): "different", ("b", "c"): "different"}


def test_a_host_that_falls_silent_in_a_build_is_given_up_and_the_other_finishes(
    repository: Repository, fleet: Fleet
) -> None:
    hosts = {name: fleet.add(name) for name in ("a", "c")}
    silent = hosts["c"].link
    fleet.write_config(extra="Host c\n  ServerAliveInterval 2\n  ServerAliveCountMax 2\n")
    write_specs(repository, hosts, "offline = true")
    done(repository.run("lock", hosts=["a"]))
    silent.freeze_after = 5 << 20  # in the middle of uv
    ran = repository.run("build_env", hosts=["a", "c"])
    outcomes = {host["host"]: host["outcome"] for host in ran.document["hosts"]}
    assert outcomes == {"a": "done", "c": "unreachable"}
    assert "c: root@127.0.0.1" in ran.message
    assert "it has not answered for 4 s, while uv was sent" in ran.message
    assert "run the session again" in ran.message
    assert ran.failure
    assert "c (unreachable)" in ran.failure
    silent.thaw()
    done(repository.run("build_env", hosts=["a", "c"]))


def test_a_host_with_another_key_than_the_pinned_one_is_not_written_to(
    repository: Repository, fleet: Fleet
) -> None:
    host = fleet.add("a")
    write_specs(repository, {"a": host}, "offline = true")
    done(repository.run("lock", hosts=["a"]))
    pinned = host.fingerprint
    host.new_host_key()
    before = host.listing()
    refused = repository.run("build_env", hosts=["a"])
    assert refused.host["outcome"] == "refused"
    assert pinned in refused.message
    assert host.fingerprint in refused.message
    assert host.listing() == before


def test_the_machine_of_a_container_is_probed_beside_it(repository: Repository, fleet: Fleet) -> None:
    a = fleet.add("a")
    hosts = {
        "a": a,
        "b": fleet.add("b", inside=a, files={"run/systemd/container": "lxc\n"}),
        "c": fleet.add("c"),
    }
    for name, parent in (("b", "a"), ("c", "a")):
        (repository.path / f"envspecs/{name}.toml").write_text(
            f'[host]\nroot = "{ROOT}"\nmode = "observe"\n'
            f'[host.container]\nkind = "lxc"\nid = 200\nparent = "{parent}"\n'
        )
    before = {name: host.listing() for name, host in hosts.items()}
    ran = repository.run("probe", "--save", hosts=["b"])
    assert ran.failure is None
    assert [(each["name"], each["parent_of"]) for each in ran.document["hosts"]] == [("b", []), ("a", ["b"])]
    assert [(each["first"], each["second"], each["kind"]) for each in ran.document["relations"]] == [
        ("a", "b", "container-of")
    ]
    assert not [
        note for host in ran.document["hosts"] for note in host["notes"] if "container" in note["rule"]
    ]
    assert [path.stem for path in (repository.path / "envspecs/facts").iterdir()] == ["b"]
    assert {name: host.listing() for name, host in hosts.items()} == before
    [wrong] = repository.run("probe", hosts=["c"]).document["hosts"][:1]
    told = [note["message"] for note in wrong["notes"] if note["rule"] == "container-differs"]
    assert any("a and c are different machines" in message for message in told)
    a.link.cut()
    fleet.known_hosts.write_text(f"b {hosts['b'].host_key_line}\n")
    refused = repository.run("probe", hosts=["b"])
    assert refused.failure is None, "the parent was not asked for"
    told = [note["message"] for note in refused.document["hosts"][0]["notes"]]
    assert any("its parent a could not be probed" in message for message in told)


@pytest.fixture
def operated(fleet: Fleet) -> Host:
    """Return a host with a user who is not root."""
    if not shutil.which("sudo"):
        pytest.skip("needs sudo")
    files = {
        "etc/sudoers": "Defaults env_reset\n@includedir /etc/sudoers.d\n",
        "etc/shadow": "root:*:19000:0:99999:7:::\ndeploy:*:19000:0:99999:7:::\n",
        "etc/sudoers.d/README": "",
    }
    host = fleet.add("d", files=files)
    entry = f"deploy:x:{USER}:{USER}:operator:/home/deploy:/bin/sh"
    host.run("sh", "-c", f"echo '{entry}' >>/etc/passwd; echo '127.0.0.1 d' >>/etc/hosts")
    host.run("install", "-d", "-o", str(USER), "/home/deploy")
    return host


def allow(host: Host, rule: str) -> None:
    host.run("sh", "-c", f"echo 'deploy ALL=(root) {rule}' >/etc/sudoers.d/deploy")


def test_root_is_reached_by_sudo_that_asks_nothing(repository: Repository, operated: Host) -> None:
    write_specs(repository, {"d": operated}, "offline = true", 'user = "deploy"\nbecome = "sudo"')
    done(repository.run("lock", hosts=["d"]))
    allow(operated, "ALL")
    refused = repository.run("build_env", hosts=["d"])
    assert refused.host["outcome"] == "unreachable"
    assert "a password is required" in refused.message
    assert "NOPASSWD" in refused.message
    assert operated.run("sh", "-c", f"ls -d {ROOT} 2>/dev/null || true") == ""
    allow(operated, "NOPASSWD: ALL")
    done(repository.run("build_env", hosts=["d"]))
    assert operated.run("stat", "-c", "%U", ROOT, f"{ROOT}/current/env/bin/python").split() == [
        "root",
        "root",
    ]
    assert operated.run("ls", "-A", "/home/deploy") == ""
    probed = repository.run("probe", hosts=["d"])
    assert probed.failure is None
    assert probed.document["hosts"][0]["facts"]["identity"]["user"]["value"] == {"uid": 0, "name": "root"}
