"""Hosts that reach no network."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.remotes import RemoteHost


@contextlib.contextmanager
def without_network(host: RemoteHost) -> Iterator[None]:
    """Keep what runs on a host from any connection but that of its own ssh."""
    broken = host.home / "bin/python3"
    whole = broken.read_text()
    cut_off = "import socket\ndef _none(*_, **__):\n    raise OSError(101, 'Network is unreachable')\n"
    broken.write_text(whole.replace("code =", f"{cut_off}socket.create_connection = _none\ncode =", 1))
    try:
        yield
    finally:
        broken.write_text(whole)
