"""NVIDIA's promises and the use of known objects: reviewed data, read once.

Every entry stands in ``data/gpu.toml`` or ``data/gpu_objects.toml`` with its source and date.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from hostenv.document import flag, list_of, mapping_of, parsed, read, table_of, text
from hostenv.facts.gpu_code import DottedPair

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.document import Table

_pair = parsed(DottedPair.parse, "version")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTables:
    """What holds for all code: see ``data/gpu.toml`` for each table's meaning and source."""

    ptx: Mapping[DottedPair, DottedPair]
    driver: Mapping[int, DottedPair]
    minimum_driver: Mapping[int, str]
    lowest_capability: Mapping[int, DottedPair]
    integrated: frozenset[DottedPair]
    renamed: Mapping[DottedPair, DottedPair]

    @classmethod
    def from_table(cls, table: Table) -> GpuTables:
        """Read ``gpu.toml``."""
        capabilities = table.get("capabilities", table_of(_capabilities))
        return cls(
            ptx={DottedPair.parse(isa): cuda for isa, cuda in table.get("ptx", mapping_of(_pair)).items()},
            driver={int(branch): cuda for branch, cuda in table.get("driver", mapping_of(_pair)).items()},
            minimum_driver={
                int(major): driver for major, driver in table.get("minimum-driver", mapping_of(text)).items()
            },
            lowest_capability={
                int(major): lowest
                for major, lowest in table.get("lowest-capability", mapping_of(_pair)).items()
            },
            integrated=capabilities[0],
            renamed=capabilities[1],
        )


def _capabilities(table: Table) -> tuple[frozenset[DottedPair], Mapping[DottedPair, DottedPair]]:
    renamed = table.get("renamed", mapping_of(_pair))
    return (
        frozenset(table.get("integrated", list_of(_pair))),
        {DottedPair.parse(old): new for old, new in renamed.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityPattern:
    """A compute capability, or every one of a major number (``10``), or any."""

    written: str

    @classmethod
    def parse(cls, written: str) -> CapabilityPattern:
        """Read ``9.0``, ``10`` or ``any``; raise ``ValueError`` for anything else."""
        if written != "any" and not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", written):
            raise ValueError('"9.0", "10" or "any" is expected')
        return cls(written=written)

    def matches(self, capability: DottedPair) -> bool:
        """Whether a GPU of that compute capability is meant."""
        return self.written in ("any", str(capability.major), str(capability))


_pattern = parsed(CapabilityPattern.parse, "compute capability")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectUse:
    """On which GPUs the objects at a path are used, and how; see ``data/gpu_objects.toml``."""

    distribution: str
    path: str
    source: str
    used_on: tuple[CapabilityPattern, ...] = ()
    not_used_on: tuple[CapabilityPattern, ...] = ()
    dispatches: bool = False
    optional: bool = False
    instead: str | None = None

    @classmethod
    def from_table(cls, table: Table) -> ObjectUse:
        """Read one ``[[object]]``."""
        return cls(
            distribution=table.get("distribution", text),
            path=table.get("path", text),
            source=table.get("source", text),
            used_on=table.get("used-on", list_of(_pattern), ()),
            not_used_on=table.get("not-used-on", list_of(_pattern), ()),
            dispatches=table.get("dispatches", flag, default=False),
            optional=table.get("optional", flag, default=False),
            instead=table.get("instead", text, None),
        )

    def used(self, capability: DottedPair) -> bool:
        """Whether a GPU of that compute capability would be given this object's code."""
        if any(pattern.matches(capability) for pattern in self.not_used_on):
            return False
        return not self.used_on or any(pattern.matches(capability) for pattern in self.used_on)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What a loader picks on GPUs of a capability."""

    capability: CapabilityPattern
    path: str

    @classmethod
    def from_table(cls, table: Table) -> Variant:
        """Read one entry of ``when``."""
        return cls(capability=table.get("capability", _pattern), path=table.get("path", text))


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantLoader:
    """A loader that picks one of several objects by GPU; ``present`` says that its package is installed."""

    distribution: str
    present: str
    when: tuple[Variant, ...]
    fallback: str
    source: str

    @classmethod
    def from_table(cls, table: Table) -> VariantLoader:
        """Read one ``[[picks]]``."""
        return cls(
            distribution=table.get("distribution", text),
            present=table.get("present", text),
            when=table.get("when", list_of(table_of(Variant.from_table))),
            fallback=table.get("fallback", text),
            source=table.get("source", text),
        )

    def picked(self, capability: DottedPair) -> str | None:
        """Return the pattern of the file that is loaded on such a GPU."""
        return next((one.path for one in self.when if one.capability.matches(capability)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuObjects:
    """What is known about objects of known distributions."""

    objects: tuple[ObjectUse, ...]
    picks: tuple[VariantLoader, ...]

    @classmethod
    def from_table(cls, table: Table) -> GpuObjects:
        """Read ``gpu_objects.toml``."""
        return cls(
            objects=table.get("object", list_of(table_of(ObjectUse.from_table))),
            picks=table.get("picks", list_of(table_of(VariantLoader.from_table))),
        )

    def use(self, path: str) -> ObjectUse | None:
        """Return what is known about the object at a path relative to site-packages."""
        return next((one for one in self.objects if matches(one.path, path)), None)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(
        "".join("[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", pattern))
    )


def matches(pattern: str, path: str) -> bool:
    """Whether a path fits a pattern whose ``*`` stands for anything but ``/``."""
    return _compiled(pattern).fullmatch(path) is not None


@functools.cache
def gpu_tables() -> GpuTables:
    """Return the tables of ``data/gpu.toml``."""
    return read(_data("gpu.toml"), table_of(GpuTables.from_table), document="gpu.toml")


@functools.cache
def gpu_objects() -> GpuObjects:
    """Return the content of ``data/gpu_objects.toml``."""
    return read(_data("gpu_objects.toml"), table_of(GpuObjects.from_table), document="gpu_objects.toml")


def _data(name: str) -> dict[str, object]:
    return tomllib.loads(resources.files("hostenv.checks").joinpath("data", name).read_text(encoding="utf-8"))
