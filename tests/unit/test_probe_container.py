"""Which container a process is in, from recorded control groups and marks."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from hostenv.agent.probe import container
from hostenv.agent.probe.container import INITIAL_PID_NAMESPACE
from hostenv.agent.probe.identity import read
from hostenv.agent.probe.tree import Tree

HEX = "4f5d1a9c" * 8
OVER_HOSTNAME = f"1 2 8:1 /var/lib/docker/containers/{HEX}/hostname /etc/hostname rw - ext4 /dev/sda rw"


@pytest.mark.parametrize(
    ("text", "kind", "identifier"),
    [
        ("0::/lxc/200/ns/system.slice/ssh.service", "lxc", "200"),  # Proxmox VE
        ("0::/lxc.payload.web-1/init.scope", "lxc", "web-1"),  # LXC 4 and later
        (f"0::/system.slice/docker-{HEX}.scope", "docker", HEX),  # systemd's driver
        (f"12:memory:/docker/{HEX}\n0::/", "docker", HEX),  # cgroup v1
        (f"0::/machine.slice/libpod-{HEX}.scope/container", "podman", HEX),
        (f"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{HEX}.scope", "kubernetes", HEX),
        (f"0::/kubepods/burstable/pod1-2/{HEX}", "kubernetes", HEX),
        ("0::/machine.slice/systemd-nspawn@build.service/payload", "systemd-nspawn", "build"),
    ],
)
def test_control_groups_name_kind_and_id(text: str, kind: str, identifier: str) -> None:
    assert container.of_cgroup(text) == {"kind": kind, "id": identifier}


@pytest.mark.parametrize(
    "text", ["0::/", "0::/system.slice/ssh.service", "0::/user.slice/docker.service", ""]
)
def test_other_control_groups_name_none(text: str) -> None:
    assert container.of_cgroup(text) is None


def fake(root: pathlib.Path, pid_namespace: int, files: dict[str, str]) -> Tree:
    for process in ("self", "1"):
        spaces = root / "proc" / process / "ns"
        spaces.mkdir(parents=True)
        (spaces / "pid").symlink_to(f"pid:[{pid_namespace}]")
        (spaces / "mnt").symlink_to("mnt:[4026531832]")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Tree(str(root))


def test_marks_of_an_image_make_no_container(tmp_path: pathlib.Path) -> None:
    # Seen on a virtual machine made from an image: /.dockerenv and /run/systemd/container were there.
    tree = fake(tmp_path, INITIAL_PID_NAMESPACE, {".dockerenv": "", "run/systemd/container": "docker\n"})
    told = container.own(tree)
    assert told["kind"] == "none"
    assert "leftover" in told["evidence"]


@pytest.mark.parametrize(
    ("files", "kind", "identifier"),
    [
        ({"run/systemd/container": "lxc\n"}, "lxc", None),
        ({"proc/1/environ": "A=b\0container=podman\0"}, "podman", None),
        ({"run/.containerenv": ""}, "podman", None),
        ({".dockerenv": ""}, "docker", None),
        ({".dockerenv": "", "proc/self/mountinfo": OVER_HOSTNAME}, "docker", HEX),
        ({"proc/1/cgroup": "0::/lxc/105/ns"}, "lxc", "105"),
        ({}, "other", None),
    ],
)
def test_a_pid_namespace_of_its_own_is_a_container(
    tmp_path: pathlib.Path, files: dict[str, str], kind: str, identifier: str | None
) -> None:
    told = container.own(fake(tmp_path, 4026532999, files))
    assert (told["kind"], told["id"]) == (kind, identifier)


def test_a_boot_id_that_is_covered_is_said(tmp_path: pathlib.Path) -> None:
    line = "90 80 0:50 /.lxc-boot-id /proc/sys/kernel/random/boot_id ro - tmpfs none rw"
    identity = read(fake(tmp_path, 4026532999, {"proc/self/mountinfo": line}))
    assert identity["boot_id_own"]["value"] is True
    assert read(Tree())["boot_id_own"]["value"] is False


def test_an_empty_machine_id_is_unknown(tmp_path: pathlib.Path) -> None:
    identity = read(fake(tmp_path, 4026532999, {"etc/machine-id": ""}))
    assert identity["machine_id"] == {"unknown": "the file is empty", "how": "/etc/machine-id"}


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is the oracle")
def test_host_keys_are_told_as_ssh_keygen_does(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "etc" / "ssh"
    folder.mkdir(parents=True)
    key = folder / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    oracle = subprocess.run(
        ["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True
    ).stdout
    (folder / "ssh_host_rsa_key.pub").write_text("ssh-rsa not+base64! comment")
    assert read(Tree(str(tmp_path)))["host_keys"]["value"] == [oracle.split()[1]]


def test_namespaces_are_the_kernels() -> None:
    assert container.namespaces()["mnt"] == pathlib.Path("/proc/self/ns/mnt").stat().st_ino
