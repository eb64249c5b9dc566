"""Real hosts in namespaces: a machine, a container on it, and another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hostenv.errors import RefusedError, UnreachableError
from hostenv.machine.agent import agent_on
from hostenv.machine.reach import Reach
from hostenv.machine.ssh import Address, open_ssh
from hostenv.spec.fleet import load_fleet
from hostenv.steps.identity import Seen, require_identity
from kit.fleet import Fleet, missing_fleet, recorded_smi
from kit.pythons import find_python

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from hostenv.spec.fleet import Fleet as Specs
    from kit.fleet import Host

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(bool(missing_fleet()), reason=missing_fleet() or ""),
]

SMI = "GPU 0: NVIDIA H200 (UUID: GPU-11111111-2222-3333-4444-555555555555)"
PYTHON = find_python("3.12") or find_python("3.11") or "python3"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    smi = {"usr/local/bin/nvidia-smi": recorded_smi({"-L": SMI})}
    with Fleet() as started:
        machine = started.add("a", files=smi)
        started.add("b", inside=machine, files=smi)
        started.add("c")
        yield started


def specs_of(fleet: Fleet, folder: pathlib.Path, address: str | None = None) -> Specs:
    """Write a spec for every host; ``address`` is where the one of ``c`` leads instead."""
    for name, host in fleet.hosts.items():
        (folder / f"{name}.toml").write_text(
            f'[host]\naddress = "{address if address and name == "c" else name}"\nroot = "/root/hostenv"\n'
            f'[identity]\nmachine-id = "{host.machine_id}"\nhost-key = "{host.fingerprint}"\n'
            '[env]\nrequires = ["x"]\n[platform]\nglibc = "2.34"\npython = "3.12"\n'
        )
    return load_fleet(folder)


def machine_id(host: Host) -> str:
    return host.run("cat", "/etc/machine-id").strip()


def test_each_host_is_a_machine_of_its_own(fleet: Fleet) -> None:
    a, b, c = (fleet.hosts[name] for name in "abc")
    assert [host.run("hostname").strip() for host in (a, b, c)] == ["a", "b", "c"]
    assert len({machine_id(host) for host in (a, b, c)}) == 3
    boots = [host.run("cat", "/proc/sys/kernel/random/boot_id") for host in (a, b, c)]
    assert boots[0] == boots[1] != boots[2]
    assert a.run("/usr/local/bin/nvidia-smi", "-L").strip() == SMI
    assert "sleep infinity" in a.run("cat", f"/proc/{inner_pid(a, b)}/cmdline").replace("\0", " ")


def inner_pid(machine: Host, container: Host) -> int:
    """Return what the machine calls the container's first process."""
    for pid in machine.run("sh", "-c", "ls /proc | grep '^[0-9]'").split():
        if machine.run("readlink", f"/proc/{pid}/ns/uts") == container.run("readlink", "/proc/self/ns/uts"):
            return int(pid)
    message = "the machine does not see its container"
    raise AssertionError(message)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_an_agent_leaves_nothing_on_a_host(fleet: Fleet, name: str) -> None:
    host = fleet.hosts[name]
    before = host.listing()
    address = Address(alias=name, ssh_config=fleet.client_config)
    with open_ssh(name, address) as transport, agent_on(transport, python=PYTHON) as agent:
        assert agent.call("echo", value=name) == name
        assert transport.host_key == host.fingerprint
    assert host.listing() == before


def test_the_right_machine_passes_the_guard(fleet: Fleet, tmp_path: pathlib.Path) -> None:
    specs = specs_of(fleet, tmp_path)
    with Reach(
        specs.specs["c"], specs=specs.specs.values(), ssh_config=fleet.client_config, python=PYTHON
    ) as reach:
        seen = Seen(machine_id=machine_id(fleet.hosts["c"]), host_key=reach.host_key)
    require_identity(specs.specs["c"], seen, specs.specs.values())


def test_another_machine_behind_an_alias_is_refused_by_name(fleet: Fleet, tmp_path: pathlib.Path) -> None:
    specs = specs_of(fleet, tmp_path, address="a")
    reach = Reach(specs.specs["c"], specs=specs.specs.values(), ssh_config=fleet.client_config, python=PYTHON)
    with pytest.raises(RefusedError, match="c: wrong host key: this is a;"), reach:
        pass


def test_a_reinstalled_host_is_refused(fleet: Fleet) -> None:
    host = fleet.add("reinstalled")
    known = host.fingerprint
    host.new_host_key()
    address = Address(alias="reinstalled", ssh_config=fleet.client_config)
    with (
        open_ssh("reinstalled", address) as transport,
        pytest.raises(RefusedError, match="CHANGED") as refused,
    ):
        transport.connect()
    assert known in str(refused.value)
    assert host.fingerprint in str(refused.value)


def test_a_host_that_loses_its_power_is_given_up(fleet: Fleet) -> None:
    host = fleet.add("dark")
    fleet.write_config(extra="Host dark\n  ServerAliveInterval 1\n  ServerAliveCountMax 1\n")
    address = Address(alias="dark", ssh_config=fleet.client_config)
    with open_ssh("dark", address) as transport, agent_on(transport, python=PYTHON) as agent:
        host.link.freeze()
        with pytest.raises(UnreachableError, match="has not answered"):
            agent.call("echo")


def test_an_agent_dies_with_its_connection(fleet: Fleet) -> None:
    host = fleet.hosts["c"]
    address = Address(alias="c", ssh_config=fleet.client_config)
    with open_ssh("c", address) as transport, agent_on(transport, python=PYTHON) as agent:
        agent.call("echo")
        assert "memfd_create" in host.run("ps", "axww")
        host.link.cut()
        for _ in range(200):
            if "memfd_create" not in host.run("ps", "axww"):
                break
        else:
            pytest.fail("the agent outlives its connection")
