"""The operator schemas that a shared object registers: literals among its read-only strings.

``TORCH_LIBRARY`` takes schemas as C strings (``name(Tensor x, int n=1) -> Tensor``); they lie in ``.rodata``
whole, also in stripped objects. The namespace is no part of them.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Iterable, Iterator, List, NamedTuple, Tuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_LARGEST = 128 << 20
_MOST_SECTIONS = 1 << 16
_SCHEMA = re.compile(
    rb"(?:[A-Za-z_]\w*::)?[A-Za-z_]\w*(?:\.\w+)?\s*\(.*\)\s*->\s*(?:\(\)|[A-Z(].*)\Z", re.DOTALL
)
_LONGEST = 16_384


class Registered(NamedTuple):
    """What an object may register: whole ``schemas``, and those of the names asked for that it holds bare.

    A bare name belongs to ``m.def("name", &function)``, whose schema is made at run time.
    """

    schemas: List[str]
    bare: List[str]


def read(path: str, names: Iterable[str]) -> Registered:
    """Return what one object registers, sorted; nothing where it is no 64-bit little-endian ELF file.

    Raises :class:`OSError` where it cannot be read.
    """
    wanted = {name.encode() for name in names}
    found, bare = set(), set()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for start, size in _read_only(descriptor):
            for text in os.pread(descriptor, min(size, _LARGEST), start).split(b"\0"):
                if text in wanted:
                    bare.add(text.decode())
                elif b"->" in text and len(text) < _LONGEST and _SCHEMA.match(text):
                    found.add(text.decode("ascii", "replace"))
    finally:
        os.close(descriptor)
    return Registered(sorted(found), sorted(bare))


def _read_only(descriptor: int) -> Iterator[Tuple[int, int]]:
    """Yield offset and size of the sections named ``.rodata…``."""
    head = os.pread(descriptor, _HEADER.size, 0)
    if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
        return
    fields = _HEADER.unpack(head)
    start, width, count, names = fields[6], fields[11], fields[12], fields[13]
    if width != _SECTION.size or count > _MOST_SECTIONS or names >= count:
        return
    table = os.pread(descriptor, width * count, start)
    if len(table) < width * count:
        return
    sections = list(_SECTION.iter_unpack(table))
    text = os.pread(descriptor, min(sections[names][5], 1 << 20), sections[names][4])
    for section in sections:
        if text[section[0] : section[0] + 7] == b".rodata":
            yield section[4], section[5]
