"""Every rule that judges an environment where it lies: its files, its binaries, and what its host has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks import (
    agreement_rules,
    driver_floor,
    gpu_rules,
    integrity_rules,
    objects,
    op_schemas,
    python_rules,
    rules,
    stack_rules,
    surrounding,
)

if TYPE_CHECKING:
    from hostenv.checks.judge import Rule

RULES: tuple[Rule, ...] = (
    *rules.RULES,
    *integrity_rules.RULES,
    *stack_rules.RULES,
    *agreement_rules.RULES,
    *python_rules.RULES,
    *op_schemas.RULES,
    *objects.RULES,
    *gpu_rules.RULES,
    *driver_floor.RULES,
    *surrounding.RULES,
)
"""Those by which ``verify_abi`` judges any environment, and a session that builds its build."""
