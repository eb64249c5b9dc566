"""Keeping a host's stable facts in this repository."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.errors import HostenvError
from hostenv.facts.host_saved import saved_form

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFacts:
    """Write what a probe answered to ``path`` (``envspecs/facts/HOST.json``), what changes left out."""

    path: pathlib.Path
    answer: Mapping[str, Any]

    def plan(self) -> tuple[str, ...]:
        """Say what will be written."""
        return (f"save     {self.path.name}: {'replaced' if self.path.exists() else 'new'}",)

    def apply(self) -> pathlib.Path:
        """Write the file beside its place and move it there; return its path.

        Raises :class:`HostenvError` where it cannot be written.
        """
        beside = self.path.with_name(f".{self.path.name}.tmp-{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_text(saved_form(self.answer), encoding="utf-8")
                beside.replace(self.path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            raise HostenvError(f"{self.path}: cannot be written: {error.strerror}") from error
        return self.path
