"""Whether the loader dies of a file that was cut short: it maps all segments and then touches pages.

A page that lies wholly beyond the end of the file gives SIGBUS. The loader reads the tables, clears the rest
of the last page of a segment with zeroed memory behind it, writes where relocations point, and calls the
initialisation functions; what nobody touches then, nobody misses until later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

from hostenv.agent import elfsymbols
from hostenv.agent.elfmodel import (
    DT_INIT,
    ElfError,
    file_offset,
)

if TYPE_CHECKING:
    from hostenv.agent.elf import ElfFile


def dies(file: ElfFile, page: int) -> bool:
    """Say whether mapping and relocating ``file``, which is shorter than its segments, kills the process."""
    end = -(-file.size // page) * page
    try:
        elfsymbols.read_symbols(file)
        return any(offset >= end for offset in _touched(file, page))
    except ElfError:
        return True


def _touched(file: ElfFile, page: int) -> Iterator[int]:
    """Yield file offsets that the loader reads or writes, tables apart."""
    segments = file.elf.segments
    for segment in segments:
        if segment.memory > segment.size and (segment.address + segment.size) % page:
            yield segment.offset + segment.size
    start = file.tables.entries.get(DT_INIT)
    if start:
        yield file_offset(segments, start)
    for address in elfsymbols.relocation_places(file):
        for segment in segments:
            if segment.address <= address < segment.address + segment.size:
                yield address - segment.address + segment.offset
