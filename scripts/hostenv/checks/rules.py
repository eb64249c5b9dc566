"""Every rule that hostenv knows: a module of rules adds its own ``RULES`` here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks import metadata, record, tags

if TYPE_CHECKING:
    from hostenv.checks.judge import Rule

RULES: tuple[Rule, ...] = (*metadata.RULES, *tags.RULES, *record.RULES)
