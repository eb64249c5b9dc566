"""What several hosts show together: the same libnccl or not, told to each, waived by each."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.checks.across_hosts import Library, Peers, with_peers
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, judge

if TYPE_CHECKING:
    from hostenv.checks.waivers import Waiver

TODAY = dt.date(2026, 12, 1)
CU13 = Library(path="nvidia/nccl/lib/libnccl.so.2", owners=("nvidia-nccl-cu13==2.28.9",), size=299)
CU12 = Library(path="nvidia/nccl/lib/libnccl.so.2", owners=("nvidia-nccl-cu12==2.28.9",), size=473)
NOTHING = judge(Facts(), (), today=TODAY)


@dataclass(frozen=True)
class Allowed:
    """A waiver as a spec has it."""

    rule: str
    object: str
    reason: str = "they never meet"
    until: dt.date = TODAY


def peers(host: str, other: str = "class", **nccl: Library) -> Peers:
    found = {name: (library,) for name, library in nccl.items()}
    return Peers(host=host, nccl=found, locks={"a": "class", "b": other})


def test_another_libnccl_than_on_a_host_of_the_same_lock_is_a_warning_with_both() -> None:
    """vllm-project/vllm#42354: the same version, built for another CUDA."""
    verdict = with_peers(NOTHING, peers("a", a=CU13, b=CU12), (), today=TODAY)
    (finding,) = verdict.findings
    assert (finding.rule, finding.kind, finding.severity) == ("nccl-differs", "K20", Severity.WARNING)
    assert "than on b" in finding.message
    assert finding.evidence == (
        "a: nvidia/nccl/lib/libnccl.so.2, nvidia-nccl-cu13 2.28.9, 299 bytes",
        "b: nvidia/nccl/lib/libnccl.so.2, nvidia-nccl-cu12 2.28.9, 473 bytes",
    )


def test_hosts_of_another_lock_are_a_note() -> None:
    (finding,) = with_peers(NOTHING, peers("a", "other", a=CU13, b=CU12), (), today=TODAY).findings
    assert finding.severity is Severity.NOTE


def test_the_same_one_none_and_a_host_alone_are_silent() -> None:
    for known in (peers("a", a=CU13, b=CU13), peers("a", b=CU12), peers("a", a=CU13)):
        assert with_peers(NOTHING, known, (), today=TODAY).findings == ()


def test_a_waiver_by_kind_that_only_this_needs_is_used() -> None:
    waivers: tuple[Waiver, ...] = (Allowed(rule="K20", object="libnccl.so.2"),)
    before = judge(Facts(), (), waivers, today=TODAY)
    verdict = with_peers(before, peers("a", a=CU13, b=CU12), waivers, today=TODAY)
    assert verdict.findings == ()
    assert [each.finding.rule for each in verdict.waived] == ["nccl-differs"]
