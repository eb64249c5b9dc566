"""Every rule on what surrounds an environment: driver, compilers, caches, search paths, arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks import (
    arch_rules,
    cache_rules,
    driver_rules,
    host_rules,
    jit_rules,
    launch_rules,
    shadow_rules,
    toolkit_rules,
)

if TYPE_CHECKING:
    from hostenv.checks.judge import Rule

RULES: tuple[Rule, ...] = (
    *shadow_rules.RULES,
    *driver_rules.RULES,
    *launch_rules.RULES,
    *jit_rules.RULES,
    *toolkit_rules.RULES,
    *arch_rules.RULES,
    *cache_rules.RULES,
    *host_rules.RULES,
)
