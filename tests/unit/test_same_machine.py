"""Which probed hosts are one machine."""

from __future__ import annotations

from typing import Any

import pytest

from hostenv.checks.same_machine import Kind, Relation, related, relations
from kit.hostfacts import facts, recorded

CLOCK = 1796139196.565  # recorded
BOOT = "0b0b0b0b-1111-4222-8333-444444444444"
OTHER_BOOT = "0c0c0c0c-1111-4222-8333-444444444444"
OUTER = {"mnt": 4026531832, "pid": 4026531836}
INNER = {"mnt": 4026532266, "pid": 4026532268}
GROUP = {
    "pid_namespace": INNER["pid"],
    "mount_namespace": INNER["mnt"],
    "container": {"kind": "lxc", "id": "200"},
    "pid": 7001,
    "processes": 12,
}
SEES = {"listed": [], "seen": 90, "hidden": 0, "complete": True, "namespaces": [GROUP]}
NO_GPUS = {"gpus": None, "driver.kernel_gpus": None}
LXC = {"kind": "lxc", "id": None, "evidence": "/run/systemd/container"}
IN_LXC = {"identity.namespaces": INNER, "identity.container": LXC}


def relate(one: dict[str, Any], two: dict[str, Any]) -> Relation:
    (found,) = relations({"one": facts(one), "two": facts(two)})
    return found


def test_two_addresses_of_one_system() -> None:
    found = relate({}, {})
    assert found.kind is Kind.SAME
    assert f"same boot id {BOOT}" in found.evidence
    assert str(found) == "one and two are one system behind two addresses"


def test_a_recorded_container_and_its_recorded_host() -> None:
    inner = recorded("probe-in-container")["identity"]["namespaces"]["value"]
    group = {**GROUP, "pid_namespace": inner["pid"], "mount_namespace": inner["mnt"]}
    (found,) = relations(
        {
            "inner": facts(name="probe-in-container"),
            "outer": facts({"processes": {**SEES, "namespaces": [group]}}),
        }
    )
    assert (found.first, found.second, found.kind) == ("outer", "inner", Kind.CONTAINER_OF)
    assert found.container == "lxc 200"
    assert str(found) == "inner is a container on outer (lxc 200)"


def test_a_container_with_a_boot_id_of_its_own() -> None:
    # LXC covers the kernel's boot id in each container: different ids, one machine.
    own = {**IN_LXC, "identity.boot_id": OTHER_BOOT, "identity.boot_id_own": True}
    found = relate({"processes": SEES}, own)
    assert (found.first, found.second, found.kind) == ("one", "two", Kind.CONTAINER_OF)
    found = relate(own, {"processes": SEES})
    assert (found.first, found.second, found.kind) == ("two", "one", Kind.CONTAINER_OF)


def test_namespaces_hidden_from_the_user_and_the_boot_id_shared() -> None:
    found = relate(IN_LXC, {})
    assert (found.first, found.second, found.kind) == ("two", "one", Kind.CONTAINER_OF)
    assert found.container == "lxc"


def test_namespaces_hidden_and_the_boot_id_covered_leaves_the_gpus() -> None:
    own = {**IN_LXC, "identity.boot_id": OTHER_BOOT, "identity.boot_id_own": True}
    found = relate({}, own)
    assert found.kind is Kind.CONTAINER_OF
    assert any("GPU" in line for line in found.evidence)


def test_nothing_but_equal_clocks_is_unknown() -> None:
    own = {**NO_GPUS, **IN_LXC, "identity.boot_id": OTHER_BOOT, "identity.boot_id_own": True}
    found = relate({}, own)
    assert found.kind is Kind.UNKNOWN
    assert any("started within 0.000 s" in line for line in found.evidence)


def test_clocks_apart_decide_where_the_boot_id_is_covered() -> None:
    own = {**IN_LXC, "identity.boot_id": OTHER_BOOT, "identity.boot_id_own": True}
    assert relate({}, {**own, "identity.boot_clock": CLOCK - 3600}).kind is Kind.DIFFERENT


def test_equal_namespace_numbers_of_two_kernels_mean_nothing() -> None:
    other = {**IN_LXC, **NO_GPUS, "identity.boot_id": OTHER_BOOT, "identity.boot_clock": CLOCK - 3600}
    assert relate({"processes": SEES}, other).kind is Kind.DIFFERENT


def test_siblings_on_one_machine() -> None:
    second = {"identity.namespaces": {"mnt": 4026532999, "pid": 4026532998}, "identity.container": LXC}
    assert relate(IN_LXC, second).kind is Kind.SIBLINGS


def test_another_machine() -> None:
    found = relate({}, {**NO_GPUS, "identity.boot_id": OTHER_BOOT})
    assert found.kind is Kind.DIFFERENT
    assert found.evidence == (f"boot ids differ: {BOOT}, {OTHER_BOOT}",)
    assert related((found,)) == ()


def test_a_reboot_between_two_probes_is_said() -> None:
    same = {"identity.machine_id": "a" * 32}
    found = relate(same, {**same, "identity.boot_id": OTHER_BOOT})
    assert found.kind is Kind.DIFFERENT
    assert any("same machine id" in line for line in found.evidence)
    assert any("the same UUID has 1 GPU" in line for line in found.evidence)


@pytest.mark.parametrize("path", ["identity.boot_id", "identity.boot_id_own"])
def test_an_unknown_boot_id_is_no_difference(path: str) -> None:
    found = relate({**NO_GPUS, path: None, "identity.boot_clock": None}, {"identity.boot_id": OTHER_BOOT})
    assert found.kind is Kind.UNKNOWN


def test_every_pair_is_told() -> None:
    hosts = {name: facts() for name in "abcd"}
    assert len(relations(hosts)) == 6
