"""Many hosts at once: every one finishes, and the controller stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.many import build_on_many
from kit.sshd import missing_sshd

if TYPE_CHECKING:
    import pathlib

MOST_MEMORY = 500 << 20


@pytest.mark.skipif(bool(missing_sshd()), reason=missing_sshd() or "")
def test_many_hosts_are_built_at_once_in_little_memory(tmp_path: pathlib.Path, hosts_at_once: int) -> None:
    many = build_on_many(tmp_path, hosts_at_once, jobs=hosts_at_once)
    assert [host["outcome"] for host in many.hosts] == ["done"] * hosts_at_once, many.output
    assert len({host["fingerprint"] for host in many.hosts}) == 1
    for number in range(hosts_at_once):
        environment = tmp_path / f"roots/host{number:02}/current/env"
        assert environment.resolve().name == many.hosts[number]["build"]
    assert 20 << 20 < many.peak < MOST_MEMORY, "bytes; an interpreter alone takes some 20 MiB"
