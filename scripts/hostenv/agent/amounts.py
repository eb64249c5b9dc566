"""Amounts as people read them, on the controller and on hosts: bytes in one unit everywhere, and counts."""

from __future__ import annotations

_KB, _MB, _GB = 10**3, 10**6, 10**9


def megabytes(count: float) -> str:
    """Return a number of bytes as indexes and disks say it, decimal: ``4.05 GB``, ``12.3 MB``, ``870 bytes``.

    GPU memory is another matter: its makers and nvidia-smi count in MiB.
    """
    if count >= _GB:
        return f"{count / _GB:.2f} GB"
    return f"{count / _MB:.1f} MB" if count >= 100 * _KB else f"{count:.0f} bytes"


def processes(count: int) -> str:
    """Return a number of processes in words."""
    return counted(count, "process", "processes")


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun; ``many`` is the plural where it is not ``one`` and an s.

    >>> counted(1, "process", "processes"), counted(2, "file")
    ('1 process', '2 files')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"
