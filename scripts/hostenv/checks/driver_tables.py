"""What is known about GPUs and drivers by id and name: reviewed data (``data/driver.toml``), read once."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from hostenv.document import list_of, parsed, read, table_of, text

if TYPE_CHECKING:
    from hostenv.document import Table

_expression = parsed(re.compile, "regular expression")


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverTables:
    """See ``data/driver.toml`` for each table's meaning and source."""

    open_module_only: tuple[tuple[int, int], ...]
    forward_compatible: tuple[re.Pattern[str], ...]
    libraries: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> DriverTables:
        """Read ``driver.toml``."""
        ranges = table.get("open-module-only", list_of(list_of(text)))
        return cls(
            open_module_only=tuple((int(first, 16), int(last, 16)) for first, last in ranges),
            forward_compatible=table.get("forward-compatible", list_of(_expression)),
            libraries=table.get("libraries", list_of(text)),
        )

    def needs_open_module(self, device: str) -> bool:
        """Whether a GPU of that PCI device id (``0x2bb1``) works only with the open kernel modules."""
        try:
            number = int(device, 16)
        except ValueError:
            return False
        return any(first <= number <= last for first, last in self.open_module_only)

    def may_forward(self, model: str) -> bool:
        """Whether forward compatibility is supported on a GPU of that name."""
        return any(pattern.fullmatch(model) for pattern in self.forward_compatible)


@functools.cache
def driver_tables() -> DriverTables:
    """Return the content of ``data/driver.toml``."""
    text_ = resources.files("hostenv.checks").joinpath("data", "driver.toml").read_text(encoding="utf-8")
    return read(tomllib.loads(text_), table_of(DriverTables.from_table), document="driver.toml")
