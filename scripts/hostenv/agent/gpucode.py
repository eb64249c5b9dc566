"""What GPU code a shared object holds, and which of it the object itself hands to the CUDA runtime.

nvcc gives each registered container a *wrapper* in ``.nvFatBinSegment`` (``fatbinary_section.h`` of the
toolkit): u32 magic 0x466243B1, u32 version, u64 address of the container, u64 more. So a container is

* ``module``: version 1, in ``.nv_fatbin``: its kernels are launched from it;
* ``linked``: version 2: what the device link made of the ``relocatable`` containers (``__nv_relfatbin``) of
  ``-rdc=true``; where it has no image for a GPU, the driver links those itself. nvcc links every object:
  where there are none, this one holds no kernel. It may have no images, and is listed nevertheless;
* ``loose``: no wrapper: the same for nothing, in objects that nvcc compiles and links in one step. A library
  that loads images by hand (cuModuleLoadData) has loose ones too.

Other containers without images are left out.
"""

from __future__ import annotations

import os
import stat
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from hostenv.agent.fatbin import Container, FatbinError, containers

if TYPE_CHECKING:
    from hostenv.agent.wire import Wire

EXECUTABLE, RELOCATABLE, WRAPPERS = b".nv_fatbin", b"__nv_relfatbin", b".nvFatBinSegment"
WRAPPER_MAGIC = 0x466243B1
_LINKED = 2

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_WRAPPER = struct.Struct("<IIQQ")
_RELA = struct.Struct("<QQq")
_SHT_NULL, _SHT_RELA, _SHT_NOBITS = 0, 4, 8
_RELATIVE = {62: 8, 183: 1027}
"""The relocation that adds the load address, by e_machine (psABI of x86-64, ELF for the Arm 64-bit)."""
_MOST_SECTIONS = 1 << 16
_LARGEST_NAMES = 1 << 20
_LARGEST_WRAPPERS = 8 << 20
_LARGEST_RELOCATIONS = 64 << 20

Described = Dict[str, Any]


class _Section(NamedTuple):
    name: bytes
    kind: int
    address: int
    offset: int
    size: int


def read(path: str) -> Optional[Described]:
    """Describe one file's GPU code; ``None`` where it has none or is no 64-bit little-endian ELF file.

    Returns ``{"containers": [{"role", "images", "count"}], "problem": str or None}``: equal containers are
    counted, images within one are sorted. With a problem, ``containers`` holds what stood before it.
    Nothing is decompressed, run or mapped (a file that shrinks meanwhile gives a problem, not SIGBUS).
    Raises ``OSError`` where the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return read_descriptor(descriptor)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int) -> Optional[Described]:
    """Do what :func:`read` does with a regular file that is open."""
    machine, sections = _sections(descriptor)
    code = [section for section in sections if section.name in (EXECUTABLE, RELOCATABLE)]
    if not code:
        return None
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    found: List[Tuple[_Section, Container]] = []
    problem = None
    for section in code:
        try:
            found.extend((section, one) for one in containers(descriptor, section.offset, section.size))
        except FatbinError as error:
            problem = f"{section.name.decode()}: {error}"
    wrappers = _wrappers(descriptor, machine, sections, _addresses(found))
    kinds: Counter[Tuple[str, Tuple[str, ...]]] = Counter(
        (_role(section, wrappers.get(_address(section, one))), tuple(sorted(one.images)))
        for section, one in found
    )
    described = [
        {"role": role, "images": list(images), "count": count}
        for (role, images), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        if images or role == "linked"
    ]
    return {"containers": described, "problem": problem}


def gpu_code(wire: Wire, *, root: str, paths: Optional[Sequence[str]] = None) -> Dict[str, Any]:
    """Describe the GPU code of every shared object below ``root``, or of ``paths`` relative to it.

    Returns ``{"objects": {path: described}, "unreadable": {path: why}}``; objects without GPU code are left
    out. Symlinks are not followed while walking.
    """
    del wire
    objects: Dict[str, Described] = {}
    unreadable: Dict[str, str] = {}
    for path in shared_objects(root) if paths is None else paths:
        try:
            described = read(os.path.join(root, path))
        except OSError as error:
            unreadable[path] = error.strerror or str(error)
            continue
        if described is not None:
            objects[path] = described
    return {"objects": objects, "unreadable": unreadable}


def shared_objects(root: str) -> Iterator[str]:
    """Yield the regular files below ``root`` whose name says shared object, relative to it."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError:
            continue
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif ".so" in entry.name and entry.is_file(follow_symlinks=False):
                yield path


def _sections(descriptor: int) -> Tuple[int, List[_Section]]:
    """Return e_machine and the sections; none where the file is of another kind or its table is nonsense."""
    head = os.pread(descriptor, _HEADER.size, 0)
    if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
        return 0, []
    header = _HEADER.unpack(head)
    machine, table, entry_size, count, names = header[2], header[6], header[11], header[12], header[13]
    if entry_size != _SECTION.size or count > _MOST_SECTIONS or names >= count:
        return machine, []
    raw = _pread(descriptor, count * entry_size, table)
    raw = raw[: len(raw) // _SECTION.size * _SECTION.size]
    entries = list(_SECTION.iter_unpack(raw))
    if names >= len(entries):
        return machine, []
    strings = _pread(descriptor, min(entries[names][5], _LARGEST_NAMES), entries[names][4])
    return machine, [
        _Section(_name(strings, entry[0]), entry[1], entry[3], entry[4], entry[5])
        for entry in entries
        if entry[1] not in (_SHT_NULL, _SHT_NOBITS)
    ]


def _name(strings: bytes, start: int) -> bytes:
    end = strings.find(b"\0", start, start + 64)
    return strings[start:end] if end >= 0 else b""


def _wrappers(
    descriptor: int, machine: int, sections: Sequence[_Section], addresses: FrozenSet[int]
) -> Dict[int, int]:
    """Return container address → wrapper version."""
    versions: Dict[int, int] = {}
    pending: Dict[int, int] = {}
    for section in sections:
        if section.name != WRAPPERS:
            continue
        raw = _pread(descriptor, min(section.size, _LARGEST_WRAPPERS), section.offset)
        for at in range(0, len(raw) - _WRAPPER.size + 1, _WRAPPER.size):
            magic, version, address, _ = _WRAPPER.unpack_from(raw, at)
            if magic != WRAPPER_MAGIC:
                continue
            if address in addresses:
                versions[address] = version
            else:
                pending[section.address + at + 8] = version
    if pending:
        versions.update(_relocated(descriptor, machine, sections, pending))
    return versions


def _relocated(
    descriptor: int, machine: int, sections: Sequence[_Section], pending: Dict[int, int]
) -> Iterator[Tuple[int, int]]:
    """Yield the addresses of wrappers whose pointer a linker (lld) left to the relocation alone."""
    relative = _RELATIVE.get(machine)
    for section in sections:
        if section.kind != _SHT_RELA:
            continue
        raw = _pread(descriptor, min(section.size, _LARGEST_RELOCATIONS), section.offset)
        for place, info, addend in _RELA.iter_unpack(raw[: len(raw) // _RELA.size * _RELA.size]):
            if place in pending and info == relative:
                yield addend, pending[place]


def _role(section: _Section, wrapper: Optional[int]) -> str:
    if section.name == RELOCATABLE:
        return "relocatable"
    if wrapper is None:
        return "loose"
    return "linked" if wrapper == _LINKED else "module"


def _addresses(found: Sequence[Tuple[_Section, Container]]) -> FrozenSet[int]:
    return frozenset(_address(section, one) for section, one in found)


def _address(section: _Section, container: Container) -> int:
    return section.address + container.offset - section.offset


def _pread(descriptor: int, count: int, offset: int) -> bytes:
    """Read at most ``count`` bytes; fewer where the file ends, none at an offset no file has."""
    if not count or offset >= 1 << 62:
        return b""
    return os.pread(descriptor, count, offset)
