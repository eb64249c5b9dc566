"""Build fat binaries and the ELF files around them, for cases that no compiler makes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BASE = 0x10000
"""Address of the first section; offsets and addresses differ by this much."""


def entry(
    kind: int, arch: int, payload: bytes = b"", *, flags: int = 0, version: tuple[int, int] = (9, 0)
) -> bytes:
    """Return one entry: kind 1 is PTX, 2 a cubin, 8 LTO-IR."""
    major, minor = version
    header = struct.pack("<HHIQ8xHHI8xQ16x", kind, 0x101, 64, len(payload), minor, major, arch, flags)
    return header + payload


def container(*entries: bytes) -> bytes:
    """Return a container of entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def wrapper(address: int, version: int = 1) -> bytes:
    """Return a wrapper that registers the container at an address."""
    return struct.pack("<IIQQ", 0x466243B1, version, address, 0)


def elf(sections: Sequence[tuple[bytes, bytes]], *, kinds: Sequence[int] = (), machine: int = 62) -> bytes:
    """Return a file with these sections (name, content), the i-th at ``BASE`` plus its offset."""
    names, contents = b"\0", b""
    headers = [bytes(64)]
    for index, (name, given) in enumerate([*sections, (b".shstrtab", b"")]):
        start = len(names)
        names += name + b"\0"
        content = given or names
        offset = 64 + len(contents)
        kind = kinds[index] if index < len(kinds) else 1
        headers.append(
            struct.pack("<IIQQQQIIQQ", start, kind, 0, BASE + offset, offset, len(content), 0, 0, 8, 0)
        )
        contents += content + bytes(-len(content) % 8)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, machine, 1, 0, 0, 64 + len(contents), 0),
        *(64, 56, 0, 64, len(headers), len(headers) - 1),
    )
    return head + contents + b"".join(headers)


def registered(*containers: bytes) -> bytes:
    """Return a shared object whose containers are all registered, as nvcc does."""
    at, wrappers = BASE + 64, b""
    for one in containers:
        wrappers += wrapper(at)
        at += len(one)
    return elf([(b".nv_fatbin", b"".join(containers)), (b".nvFatBinSegment", wrappers)])
