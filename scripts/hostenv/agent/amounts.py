"""Numbers of bytes as people read them: one unit everywhere, on the controller and on hosts."""

from __future__ import annotations

_KB, _MB, _GB = 10**3, 10**6, 10**9


def megabytes(count: float) -> str:
    """Return a number of bytes as indexes and disks say it, decimal: ``4.05 GB``, ``12.3 MB``, ``870 bytes``.

    GPU memory is another matter: its makers and nvidia-smi count in MiB.
    """
    if count >= _GB:
        return f"{count / _GB:.2f} GB"
    return f"{count / _MB:.1f} MB" if count >= 100 * _KB else f"{count:.0f} bytes"
