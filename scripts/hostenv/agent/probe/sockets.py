"""Listening TCP sockets by inode, one network namespace at a time."""

from __future__ import annotations

import ipaddress
import struct
from typing import Dict, List, Tuple

_LISTEN = "0A"
Listening = Dict[int, Tuple[str, int]]


def listening(process: str) -> Listening:
    """Return socket inode → (address, port) of the network namespace that ``process`` is in."""
    found: Listening = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{process}/net/{name}", encoding="ascii", errors="replace") as file:
                found.update(parse(file.read()))
        except OSError:
            continue
    return found


def parse(text: str) -> Listening:
    """Return what a table of ``/proc/net/tcp`` or ``tcp6`` lists as listening (Linux: proc_net_tcp.rst)."""
    found: Listening = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:  # noqa: PLR2004  the inode is field 9
            continue
        address, _, port = fields[1].partition(":")
        try:
            found[int(fields[9])] = (_address(address), int(port, 16))
        except ValueError:
            continue
    return found


def _address(digits: str) -> str:
    """Return the address of its hexadecimal form: words of four bytes in the machine's own order."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


def ports_of(inodes: List[int], table: Listening) -> List[Dict[str, object]]:
    """Return where the sockets of a process listen, each place once."""
    places = sorted({table[inode] for inode in inodes if inode in table}, key=lambda place: place[1])
    return [{"address": address, "port": port} for address, port in places]
