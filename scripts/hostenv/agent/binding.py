"""Which object's symbol a reference binds to, as glibc's lookup decides it.

References of all objects get a number; what an object wants and what it satisfies are then sets of numbers,
held as the bits of an integer: whether a scope satisfies an object is one expression.

The rule for one symbol is ``check_match`` of glibc's ``elf/dl-lookup.c``:

- a versioned reference takes that version, hidden or not; or a definition without any version that is not
  hidden; and anything of an object that has no versions at all;
- an unversioned one takes a definition without version or of the object's first version, else the only
  default version that there is; a hidden version never.
"""

from __future__ import annotations

import array
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from hostenv.agent.elfmodel import (
    HIDDEN_VERSION,
)
from hostenv.agent.elfsymbols import Asked, Group, Offer, Symbols

_FIRST_OWN_VERSION = 2
_NONE: Mapping[int, str] = {}


def accepts(asked: Asked, offer: Offer, definitions: Mapping[int, str]) -> bool:
    """Say whether a definition under the version entries ``offer`` satisfies a reference that ``asked``.

    ``definitions`` are the versions of the object that offers; it has DT_VERSYM.
    """
    entries = offer if isinstance(offer, tuple) else (offer,)
    if asked.version is not None:
        return any(
            definitions.get(entry & ~HIDDEN_VERSION) == asked.version
            or (not asked.hidden and not entry & HIDDEN_VERSION and entry not in definitions)
            for entry in entries
        )
    defaults = 0
    for entry in entries:
        if entry & ~HIDDEN_VERSION <= _FIRST_OWN_VERSION:
            return True
        defaults += not entry & HIDDEN_VERSION
    return defaults == 1


def offers(symbols: Symbols, definitions: Optional[Mapping[int, str]], asked: Asked, name: bytes) -> bool:
    """Say whether an object satisfies the reference to ``name`` that ``asked``."""
    offer = symbols.offered.get(name)
    if offer is None:
        return False
    return not symbols.versioned or accepts(asked, offer, definitions or _NONE)


class Wants(NamedTuple):
    """The references of one object as bits: all, and those that name a file, by file."""

    bits: int
    by_file: Tuple[Tuple[str, int], ...]


class Universe:
    """The references of all objects, numbered in the order in which they were added."""

    def __init__(self) -> None:
        self._numbers: Dict[Asked, Dict[bytes, int]] = {}
        self._order: List[Tuple[Asked, bytes]] = []

    @property
    def size(self) -> int:
        """How many different references there are."""
        return len(self._order)

    def add(self, groups: Iterable[Group]) -> Wants:
        """Give the references of one object their numbers; return them as bits."""
        everything: List[int] = []
        by_file: Dict[str, List[int]] = {}
        order = self._order
        for group in groups:
            numbers = self._numbers.setdefault(group.asked, {})
            for name in group.names:
                if name not in numbers:
                    numbers[name] = len(order)
                    order.append((group.asked, name))
            found = [numbers[name] for name in group.names]
            everything += found
            if group.asked.file is not None:
                by_file.setdefault(group.asked.file, []).extend(found)
        return Wants(_bits(everything), tuple((file, _bits(numbers)) for file, numbers in by_file.items()))

    def packed(self) -> List[Tuple[Tuple[Optional[str], Optional[str], bool], bytes, bytes]]:
        """Return the references for another process: names as one string, numbers as one array, a version."""
        return [
            (
                (asked.version, asked.file, asked.hidden),
                b"\0".join(numbers),
                array.array("I", numbers.values()).tobytes(),
            )
            for asked, numbers in self._numbers.items()
        ]

    @classmethod
    def unpacked(
        cls, packed: List[Tuple[Tuple[Optional[str], Optional[str], bool], bytes, bytes]]
    ) -> Universe:
        """Return the references that :meth:`packed` returned there, to be asked and not added to."""
        universe = cls()
        order: Dict[int, Tuple[Asked, bytes]] = {}
        for fields, text, numbers in packed:
            asked, values = Asked(*fields), array.array("I")
            values.frombytes(numbers)
            names = text.split(b"\0")
            universe._numbers[asked] = dict(zip(names, values))
            order.update(zip(values, ((asked, name) for name in names)))
        universe._order = [order[number] for number in range(len(order))]
        return universe

    def number(self, asked: Asked, name: bytes) -> int:
        """Return the number of a reference that was added."""
        return self._numbers[asked][name]

    def satisfied(self, symbols: Symbols, definitions: Optional[Mapping[int, str]], since: int = 0) -> int:
        """Return the references numbered ``since`` and later that an object satisfies, as bits."""
        offered, known = symbols.offered, definitions or _NONE
        if since:
            recent = enumerate(self._order[since:], since)
            return _bits([n for n, (asked, name) in recent if offers(symbols, definitions, asked, name)])
        satisfied: List[int] = []
        for asked, numbers in self._numbers.items():
            common = numbers.keys() & offered.keys()
            if symbols.versioned:
                satisfied += [numbers[name] for name in common if accepts(asked, offered[name], known)]
            else:
                satisfied += [numbers[name] for name in common]
        return _bits(satisfied)


class Members:
    """A set of numbers held as bits, to be asked for one number at a time.

    ``bits >> number & 1`` copies the whole integer for each question: quadratic in the references of one
    object.
    """

    def __init__(self, bits: int) -> None:
        self._packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")

    def __contains__(self, number: int) -> bool:
        """Say whether the number is in the set."""
        place = number >> 3
        return place < len(self._packed) and self._packed[place] >> (number & 7) & 1 == 1


def _bits(numbers: List[int]) -> int:
    if not numbers:
        return 0
    field = bytearray(max(numbers) // 8 + 1)
    for number in numbers:
        field[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(field, "little")
