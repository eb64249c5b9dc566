"""How much room a build needs, and how sizes are told."""

from __future__ import annotations

import pytest

from hostenv.agent.amounts import megabytes
from hostenv.errors import RefusedError
from hostenv.spec.environment import Build, Bytecode
from hostenv.spec.lock import Lock, LockEntry
from hostenv.spec.lockplatform import LockPlatform
from hostenv.steps.build import BuildInputs
from hostenv.steps.make import UNPACKED, Make
from kit.roots import root_state

GB = 10**9
WHEELS = 4 * GB
KEPT = 30 * GB


def make() -> Make:
    """Return the making of a build from one wheel."""
    entry = LockEntry(
        name="demo", version="1", sha256="0" * 64, filename="demo-1-py3-none-any.whl", size=WHEELS
    )
    platform = LockPlatform(python="3.12", arch="x86_64", glibc="2.34")
    lock = Lock(name="a", platform=platform, inputs=(), entries=(entry,))
    inputs = BuildInputs(lock=lock, series=(), bytecode=Bytecode.NONE)
    return Make(inputs=inputs, settings=Build(min_free=KEPT))


@pytest.mark.parametrize("missing", [0, GB, WHEELS])
def test_wheels_that_lie_there_need_no_room_again(missing: int) -> None:
    needed = int(2 * UNPACKED * WHEELS) + KEPT + missing
    assert make().plan(root_state(free=needed), missing=missing)
    with pytest.raises(RefusedError, match=r"GB needed .* GB free"):
        make().plan(root_state(free=needed - 1), missing=missing)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 bytes"),
        (99_999, "99999 bytes"),
        (100_000, "0.1 MB"),
        (12_345_678, "12.3 MB"),
        (4_050_000_000, "4.05 GB"),
    ],
)
def test_sizes_are_told_in_one_way(count: int, told: str) -> None:
    assert megabytes(count) == told


def test_a_host_of_another_architecture_is_refused() -> None:
    make().check_ground(root_state())
    with pytest.raises(RefusedError, match="the host is aarch64, the lock is for x86_64"):
        make().check_ground(root_state(arch="aarch64"))
