"""The rules on surroundings under facts that are odd, half there or absent: no crash, no false ok."""

from __future__ import annotations

import copy
import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, judge
from hostenv.checks.surrounding import RULES
from hostenv.document import DocumentError
from hostenv.facts.host import HostFacts
from hostenv.facts.surroundings import Surroundings
from kit.hostfacts import recorded
from kit.surroundings import AROUND, CACHE, KERNEL, SERVICE, around, judged, loads, service, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

_TODAY = dt.date(2026, 12, 1)


def _facts_in(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where the facts of a probe's answer stand: what can be unknown."""
    if isinstance(document, dict):
        if "how" in document:
            yield path
        for name, value in document.items():
            yield from _facts_in(value, (*path, name))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from _facts_in(value, (*path, index))


_WHERE = tuple(_facts_in(recorded()))


def _without(*places: tuple[str | int, ...]) -> HostFacts:
    answer = copy.deepcopy(recorded())
    for place in sorted(places, key=len, reverse=True):  # what lies within another fact goes first
        fact: Any = answer
        for step in place:
            fact = fact[step]
        fact.pop("value", None)
        fact["unknown"] = "made unknown"
    return HostFacts.from_dict(answer, name="damaged")


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(_WHERE), max_size=8))
def test_what_is_unknown_never_becomes_an_error(places: set[tuple[str | int, ...]]) -> None:
    found = judged(host=_without(*places))
    assert {one.severity for one in found} <= {Severity.UNKNOWN, Severity.NOTE, Severity.WARNING}


@pytest.mark.parametrize("missing", [HostFacts, Surroundings])
def test_a_kind_of_fact_that_was_not_read_is_unknown(missing: type[object]) -> None:
    known = [
        each for each in (judged_host(), loads(), AROUND, SERVICE, targets()) if type(each) is not missing
    ]
    found = judge(Facts(*known), RULES, today=_TODAY).findings
    assert {one.severity for one in found} == {Severity.UNKNOWN}


def judged_host() -> HostFacts:
    """Return the recorded host."""
    return HostFacts.from_dict(recorded(), name="recorded")


_TEXTS = st.text(max_size=12)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    env=st.dictionaries(
        st.sampled_from(
            [
                "FLASHINFER_CUDA_ARCH_LIST",
                "TORCH_CUDA_ARCH_LIST",
                "LD_LIBRARY_PATH",
                "LD_PRELOAD",
                "NCCL_NET_PLUGIN",
                "VLLM_NCCL_SO_PATH",
                "GLIBC_TUNABLES",
                "CUDA_HOME",
            ]
        ),
        _TEXTS,
    ),
    args=st.lists(
        st.one_of(_TEXTS, st.sampled_from(["--attention-backend", "--kv-cache-dtype"])), max_size=5
    ),
    version=_TEXTS,
    needs=st.from_regex(r"\d{1,3}(\.\d{1,3}){1,2}", fullmatch=True),
)
def test_any_words_of_a_spec_or_of_metadata(
    env: dict[str, str], args: list[str], version: str, needs: str
) -> None:
    odd = dict.fromkeys(("flashinfer-cubin", "flashinfer-jit-cache", "sglang", "numpy"), version)
    cached = replace(CACHE, objects=(replace(KERNEL, needs_glibc=needs, needs_glibcxx=needs),))
    found = judged(loads(odd), service(env, *args), around({"caches": (cached,)}))
    assert all(one.message and one.object for one in found)


@pytest.mark.parametrize("damage", [None, [], "x", {"venv": 1}, {"venv": "/v"}])
def test_a_damaged_answer_is_refused_with_its_name(damage: object) -> None:
    with pytest.raises(DocumentError, match="answer"):
        Surroundings.from_dict(damage)
