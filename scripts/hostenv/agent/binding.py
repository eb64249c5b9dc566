"""Which object's symbol a reference binds to, as glibc's lookup decides it.

References of all objects get a number; what an object wants and what it satisfies are then sets of numbers,
held as the bits of an integer: whether a scope satisfies an object is one expression.

The rule for one symbol is ``check_match`` of glibc's ``elf/dl-lookup.c``:

- a versioned reference takes that version, hidden or not; or a definition without any version that is not
  hidden; and anything of an object that has no versions at all;
- an unversioned one takes a definition without version or of the object's first version, else the only
  default version that there is; a hidden version never.

A versioned reference that names a file ends its search at that file, found or not.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from hostenv.agent.elf import HIDDEN_VERSION
from hostenv.agent.elfsymbols import Offer, Reference, Symbols

_FIRST_OWN_VERSION = 2
_NONE: Mapping[int, str] = {}


def accepts(reference: Reference, offer: Offer, definitions: Optional[Mapping[int, str]], versioned: bool) -> bool:  # noqa: FBT001  read by position in one place
    """Say whether a definition under the version entries ``offer`` satisfies ``reference``.

    ``definitions`` are the versions of the object that offers; ``versioned`` whether it has DT_VERSYM.
    """
    entries = offer if isinstance(offer, tuple) else (offer,)
    if not versioned:
        return True
    known = _NONE if definitions is None else definitions
    if reference.version is not None:
        return any(
            known.get(entry & ~HIDDEN_VERSION) == reference.version
            or (not reference.hidden and not entry & HIDDEN_VERSION and entry not in known)
            for entry in entries
        )
    defaults = 0
    for entry in entries:
        if entry & ~HIDDEN_VERSION <= _FIRST_OWN_VERSION:
            return True
        defaults += not entry & HIDDEN_VERSION
    return defaults == 1


class Wants(NamedTuple):
    """The references of one object as bits: all, and those that name a file, by file."""

    bits: int
    by_file: Tuple[Tuple[str, int], ...]


class Universe:
    """The references of all objects, numbered."""

    def __init__(self) -> None:
        self._numbers: Dict[Reference, int] = {}
        self._by_name: Dict[bytes, List[Tuple[Reference, int]]] = {}

    def add(self, references: Iterable[Reference]) -> Wants:
        """Number the references of one object; return them as bits."""
        everything: List[int] = []
        by_file: Dict[str, List[int]] = {}
        for reference in references:
            number = self._numbers.setdefault(reference, len(self._numbers))
            if number == len(self._numbers) - 1:
                known = self._by_name.setdefault(reference.name, [])
                if not known or known[-1][1] != number:
                    known.append((reference, number))
            everything.append(number)
            if reference.file is not None:
                by_file.setdefault(reference.file, []).append(number)
        return Wants(_bits(everything), tuple((file, _bits(numbers)) for file, numbers in by_file.items()))

    def satisfied(self, symbols: Symbols, definitions: Optional[Mapping[int, str]]) -> int:
        """Return the references that an object's definitions satisfy, as bits."""
        numbers: List[int] = []
        offered = symbols.offered
        for name in self._by_name.keys() & offered.keys():
            offer = offered[name]
            for reference, number in self._by_name[name]:
                if accepts(reference, offer, definitions, symbols.versioned):
                    numbers.append(number)
        return _bits(numbers)


def _bits(numbers: List[int]) -> int:
    if not numbers:
        return 0
    field = bytearray(max(numbers) // 8 + 1)
    for number in numbers:
        field[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(field, "little")
