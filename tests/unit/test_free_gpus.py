"""Which GPUs are free, which are held, by what, since when."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hostenv.checks.free_gpus import GpuUse, Use, gpu_uses
from hostenv.facts.host import HostFacts
from hostenv.spec.host import ReservedGpu
from kit.hostfacts import facts, recorded

UUID = "GPU-5d3f6a52-7c1e-4b0a-9e55-0c1a2b3c4d5e"


def one(host: HostFacts, *reserved: ReservedGpu) -> GpuUse:
    (use,) = gpu_uses(host, reserved).value
    return use


def with_gpu(**values: Any) -> HostFacts:
    answer = recorded()
    answer["gpus"]["value"][0].update(values)
    return HostFacts.from_dict(answer, name="recorded")


def test_an_idle_gpu_is_free() -> None:
    use = one(facts())
    assert (use.use, use.holders, use.why) == (Use.FREE, (), "no process, 0 MiB in use")


def test_a_held_gpu_names_its_holders_and_since_when() -> None:
    use = one(facts(name="probe-held"))
    assert use.use is Use.HELD
    assert [(each.pid, each.bytes) for each in use.holders] == [(431, 1634 << 20), (528, 1634 << 20)]
    assert use.holders[0].since == dt.datetime(2026, 12, 1, 15, 33, 40, tzinfo=dt.UTC)
    assert all(holder.process for holder in use.holders)


def test_a_gpu_held_from_outside_of_the_container() -> None:
    # Recorded: inside, nvidia-smi shows 1643 MiB in use and no process.
    use = one(facts(name="probe-in-container"))
    assert (use.use, use.why) == (Use.HELD, "1643 MiB in use")
    assert use.holders[0].process is None
    assert "container host" in use.holders[0].what


def test_a_pid_of_another_namespace_is_not_taken_for_one_of_ours() -> None:
    shown = {"pid": 999_999, "kind": "C", "name": "sglang::scheduler", "memory": 1 << 30}
    use = one(with_gpu(processes=[shown], memory_used=1 << 30))
    assert use.use is Use.HELD
    assert (use.holders[0].what, use.holders[0].process) == ("sglang::scheduler", None)


def test_a_reserved_gpu_is_not_free() -> None:
    by_uuid = ReservedGpu(uuid=UUID, index=None, why="temporary server", owner="ops")
    by_index = ReservedGpu(uuid=None, index=0, why="temporary server", owner=None)
    other = ReservedGpu(uuid=None, index=1, why="x", owner=None)
    assert one(facts(), by_uuid).use is Use.RESERVED
    assert one(facts(), by_index).use is Use.RESERVED
    assert one(facts(), other).use is Use.FREE
    assert one(facts(name="probe-held"), by_uuid).use is Use.HELD


def test_without_nvidia_smi_nothing_is_known() -> None:
    uses = gpu_uses(facts({"gpus": None}))
    assert uses.unknown == "made unknown"


def test_memory_that_is_not_told_is_unknown_not_free() -> None:
    assert one(with_gpu(memory_used=None)).use is Use.UNKNOWN


def test_a_display_server_holds_its_gpu() -> None:
    shown = {"pid": 1200, "kind": "G", "name": "/usr/lib/xorg/Xorg", "memory": 4 << 20}
    assert one(with_gpu(processes=[shown], memory_used=4 << 20)).use is Use.HELD
