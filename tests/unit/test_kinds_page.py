"""The page on kinds of fault says all that verify_abi judges, and names tests that there are."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

from hostenv.checks import abi_rules, across_hosts

TESTS = pathlib.Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/kinds.md").read_text(encoding="utf-8")
RULES = (*abi_rules.RULES, *across_hosts.RULES)
ENTRIES = {
    entry.partition(":")[0]: entry.partition("\n## ")[0]
    for entry in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
}
PARTS = ("Seen", "Rule", "Evidence", "Fix", "Test")


def test_every_kind_of_the_catalogue_has_its_entry() -> None:
    headings = " ".join(re.findall(r"^### (K[^:]*):", PAGE, re.MULTILINE))
    assert sorted(re.findall(r"K\d\d", headings)) == [f"K{number:02}" for number in range(1, 59)]


def test_every_rule_of_a_kind_is_in_the_entry_of_that_kind() -> None:
    missing = {
        (rule.id, rule.kind)
        for rule in RULES
        if rule.kind
        and not any(rule.kind in kinds and f"`{rule.id}`" in entry for kinds, entry in ENTRIES.items())
    }
    assert missing == set()


def test_every_entry_says_what_is_seen_by_what_and_what_to_do_or_why_it_is_not_judged() -> None:
    missing = {
        (kinds, part)
        for kinds, entry in ENTRIES.items()
        for part in PARTS
        if not re.search(rf"\*\*(?:\w+, )?{part}s?(?:, \w+)?:\*\*", entry, re.IGNORECASE)
        and "No fault:" not in entry
        and "none of its own" not in entry
    }
    assert missing == set()


def test_every_rule_of_a_kind_is_named_by_a_test() -> None:
    """By its id, or by its kind's number: each has a test that makes the fault."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("*/test_*.py"))
    missing = {rule.id for rule in RULES if rule.kind and f'"{rule.id}"' not in code}
    assert missing == set()


def test_no_two_rules_have_one_name() -> None:
    assert [name for name, count in Counter(rule.id for rule in RULES).items() if count > 1] == []


def test_the_tests_that_the_page_names_are_there() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("*/test_*.py"))
    functions = re.findall(r"`(test_\w+)`", PAGE)
    modules = re.findall(r"`(test_\w+\.py)`", PAGE)
    assert [name for name in functions if f"def {name}(" not in code] == []
    assert [name for name in modules if not [*TESTS.glob(f"*/{name}")]] == []
