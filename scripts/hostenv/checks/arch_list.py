"""Lists of GPU architectures as build variables have them (``9.0a 12.0f``, ``8.0;9.0+PTX``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.facts.gpu_code import DottedPair

if TYPE_CHECKING:
    from collections.abc import Callable

_ENTRY = re.compile(r"(\d{1,2})\.(\d)([af]?)(\+PTX)?")
_NAMES = {
    "Volta": "7.0",
    "Turing": "7.5",
    "Ampere": "8.0 8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell": "10.0 10.3 12.0 12.1+PTX",
}
"""Names that torch knows (torch/utils/cpp_extension.py, ``named_arches``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arch:
    """One architecture: machine code for it, and PTX beside it where ``ptx`` is set."""

    capability: DottedPair
    suffix: str
    ptx: bool

    def covers(self, gpu: DottedPair) -> bool:
        """Whether its code runs on a GPU (CUDA C++ Programming Guide, "Binary compatibility")."""
        same_family = gpu.major == self.capability.major and gpu.minor >= self.capability.minor
        runs: dict[str, Callable[[], bool]] = {
            "": lambda: same_family,
            "f": lambda: same_family,
            "a": lambda: gpu == self.capability,
        }
        return runs[self.suffix]() or (self.ptx and not self.suffix and gpu >= self.capability)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchList:
    """The architectures of a list; ``unread`` are words that are none."""

    archs: tuple[Arch, ...]
    unread: tuple[str, ...]

    @classmethod
    def parse(cls, written: str) -> ArchList:
        """Read a list separated by blanks, commas or semicolons."""
        words = [word for word in re.split(r"[\s,;]+", written) if word]
        expanded = [each for word in words for each in _NAMES.get(word, word).split()]
        found = {word: _ENTRY.fullmatch(word) for word in expanded}
        return cls(
            archs=tuple(
                Arch(capability=DottedPair(int(one[1]), int(one[2])), suffix=one[3], ptx=bool(one[4]))
                for one in found.values()
                if one
            ),
            unread=tuple(word for word, one in found.items() if not one),
        )

    def covers(self, gpu: DottedPair) -> bool:
        """Whether something in the list runs on a GPU."""
        return any(arch.covers(gpu) for arch in self.archs)
