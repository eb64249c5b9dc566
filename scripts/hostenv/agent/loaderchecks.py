"""What the loader says of a file that it has opened and will not map (``_dl_map_object_from_fd``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from hostenv.agent.elfmodel import DF_1_NOOPEN, DF_1_PIE, ET_EXEC, PF_X

if TYPE_CHECKING:
    from hostenv.agent.elfmodel import Elf
    from hostenv.agent.loadermodel import System

_STRICT_STACK = (2, 41)
_PAGE_ONLY = (2, 35)


def objection(system: System, main: Optional[Elf], elf: Elf) -> Optional[str]:
    """Return the loader's message about an object, ``None`` where it maps it. ``main`` is the program."""
    message = _misaligned(system, elf)
    if message is None and not elf.segments:
        message = "object file has no loadable segments"
    for wrong, said in (
        (elf.type == ET_EXEC, "cannot dynamically load executable"),
        (elf.dies, f"the file is cut short by {elf.short} bytes: the process dies of SIGBUS"),
        (not elf.dynamic, "object file has no dynamic section"),
        (elf.flags_1 & DF_1_PIE, "cannot dynamically load position-independent executable"),
        (elf.flags_1 & DF_1_NOOPEN, "shared object cannot be dlopen()ed"),
    ):
        if message is None and wrong:
            message = said
    if message is None and system.glibc >= _STRICT_STACK and _wants_stack(main, elf):
        message = "cannot enable executable stack as shared object requires: Invalid argument"
    return message


def _misaligned(system: System, elf: Elf) -> Optional[str]:
    """Return glibc's complaint about a segment's alignment: another one since 2.35 (BZ #28676)."""
    page = system.page_size
    if system.glibc >= _PAGE_ONLY:
        if any((segment.address - segment.offset) & (page - 1) for segment in elf.segments):
            return "ELF load command address/offset not page-aligned"
        return None
    if any(segment.alignment & (page - 1) for segment in elf.segments):
        return "ELF load command alignment not page-aligned"
    if any((s.address - s.offset) & ((s.alignment or 1) - 1) for s in elf.segments):
        return "ELF load command address/offset not properly aligned"
    return None


def _wants_stack(main: Optional[Elf], elf: Elf) -> bool:
    """Say whether an object needs an executable stack that the program has not (a missing note counts)."""
    mine = main.stack if main else None
    return (elf.stack is None or bool(elf.stack & PF_X)) and mine is not None and not mine & PF_X
