"""What a spec says of a container, against what it and its parent show."""

from __future__ import annotations

from typing import Any

import pytest

from hostenv.checks.container_claim import container_notes
from hostenv.checks.finding import Severity
from hostenv.spec.host import Container, ContainerKind
from kit.hostfacts import facts, recorded

CONTAINER = "probe-in-container"
INNER = recorded(CONTAINER)["identity"]["namespaces"]["value"]
GROUP = {
    "pid_namespace": INNER["pid"],
    "mount_namespace": INNER["mnt"],
    "container": {"kind": "docker", "id": "0123456789abcdef"},
    "pid": 7001,
    "processes": 12,
}
CLAIM = Container(kind=ContainerKind.DOCKER, id="0123456789ab", parent="iron")


def parent(changes: dict[str, Any] | None = None) -> Any:
    """Return the recorded host, on which two processes hold the GPU; it sees the container's namespaces."""
    processes = {**recorded("probe-held")["processes"], "namespaces": [GROUP]}
    return facts({"processes": processes, **(changes or {})}, name="probe-held")


def test_a_container_on_its_parent_stands_out_by_nothing_but_who_holds_its_gpus() -> None:
    found = container_notes("box", CLAIM, facts(name=CONTAINER), ("iron", parent()))
    assert {(note.rule, note.severity, note.object) for note in found} == {
        ("gpu-holder", Severity.NOTE, "GPU 0")
    }
    assert [note.message.partition(": ")[2] for note in found] == ["pid 431 python3", "pid 528 python3"]


def test_another_machine_than_the_parent_is_an_error() -> None:
    elsewhere = {
        "identity.boot_id": "0c0c0c0c-1111-4222-8333-444444444444",
        "identity.boot_clock": 1700000000.0,
        "processes": {**recorded("probe-held")["processes"], "namespaces": []},
    }
    [note] = container_notes("box", CLAIM, facts(name=CONTAINER), ("iron", parent(elsewhere)))[:1]
    assert note.severity is Severity.ERROR
    assert (
        "the spec says that it is a container on iron; but iron and box are different machines"
        in note.message
    )
    assert note.evidence


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ({"kind": "none", "id": None}, "is no container, the spec says docker"),
        ({"kind": "lxc", "id": "200"}, "is a container of kind lxc, the spec says docker"),
        (
            {"kind": "docker", "id": "fedcba9876543210"},
            "is docker fedcba9876543210, the spec says 0123456",
        ),
    ],
)
def test_another_kind_or_id_is_told(shown: dict[str, Any], message: str) -> None:
    claim = Container(kind=ContainerKind.DOCKER, id="0123456", parent=None)
    host = facts({"identity.container": {**shown, "evidence": "/proc/1/cgroup"}}, name=CONTAINER)
    [note] = container_notes("box", claim, host, None)
    assert (note.message, note.severity, note.evidence) == (message, Severity.WARNING, ("/proc/1/cgroup",))


@pytest.mark.parametrize(
    "shown", [{"kind": "docker", "id": "0123456789abcdef"}, {"kind": "other", "id": None}]
)
def test_what_agrees_or_does_not_show_is_not_told(shown: dict[str, Any]) -> None:
    host = facts({"identity.container": {**shown, "evidence": "x"}}, name=CONTAINER)
    assert (
        container_notes("box", Container(kind=ContainerKind.DOCKER, id="0123456", parent=None), host, None)
        == ()
    )


def test_a_parent_that_could_not_be_probed_is_unknown() -> None:
    [note] = container_notes("box", CLAIM, facts(name=CONTAINER), ("iron", "iron: no route to host"))
    assert note.severity is Severity.UNKNOWN
    assert "iron: no route to host" in note.message
