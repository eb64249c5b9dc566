"""A finding: the result of a check, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is. ``UNKNOWN`` means that a fact is missing: it is never ok."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a rule says about a host or an environment.

    ``rule`` is a stable identifier (``metadata-closure``); ``kind`` the catalogue's number (``K47``) where
    there is one. ``object`` is what the finding is about (a distribution, or a path relative to
    site-packages) and is the key of a waiver. ``message`` says what will happen and when; ``evidence`` the
    facts that show it, one line each; ``fix`` what can be typed. Findings that share a ``cause`` (``missing
    libcudart.so.13``), of whatever rule, are shown as one, whose ``also`` names the other objects.
    """

    rule: str
    severity: Severity
    object: str
    message: str
    kind: str | None = None
    evidence: tuple[str, ...] = ()
    fix: str | None = None
    cause: str | None = None
    also: tuple[str, ...] = ()
