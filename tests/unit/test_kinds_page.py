"""The page on kinds of fault says all that verify_abi judges, and names tests that there are."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

from hostenv.workflows.verify_abi import RULES

TESTS = pathlib.Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/kinds.md").read_text(encoding="utf-8")


def test_every_kind_of_the_catalogue_has_its_entry() -> None:
    headings = " ".join(re.findall(r"^### (K[^:]*):", PAGE, re.MULTILINE))
    assert sorted(re.findall(r"K\d\d", headings)) == [f"K{number:02}" for number in range(1, 59)]


def test_every_rule_of_a_kind_is_on_the_page() -> None:
    missing = {rule.id for rule in RULES if rule.kind and f"`{rule.id}`" not in PAGE}
    assert missing == set()


def test_no_two_rules_have_one_name() -> None:
    assert [name for name, count in Counter(rule.id for rule in RULES).items() if count > 1] == []


def test_the_tests_that_the_page_names_are_there() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("*/test_*.py"))
    functions = re.findall(r"`(test_\w+)`", PAGE)
    modules = re.findall(r"`(test_\w+\.py)`", PAGE)
    assert [name for name in functions if f"def {name}(" not in code] == []
    assert [name for name in modules if not [*TESTS.glob(f"*/{name}")]] == []
