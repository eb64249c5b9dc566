"""Reading the ``pylock.toml`` (PEP 751) that uv writes: packages, and where each of their wheels lies."""

from __future__ import annotations

import pathlib
import tomllib
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.markers import Marker
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from hostenv.errors import SupplyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostenv.spec.lockplatform import LockPlatform


@dataclass(frozen=True, kw_only=True, slots=True)
class PylockWheel:
    """A wheel of a package. ``url`` may hold credentials and is never shown; ``size`` is in bytes."""

    filename: str
    url: str = field(repr=False)
    sha256: str | None
    size: int | None

    @property
    def local(self) -> pathlib.Path | None:
        """The wheel's path where it lies on this machine."""
        parts = urllib.parse.urlsplit(self.url)
        return pathlib.Path(urllib.parse.unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PylockPackage:
    """A package with those of its wheels that uv thinks fit; ``name`` is normalised."""

    name: str
    version: str
    wheels: tuple[PylockWheel, ...]

    def best(self, platform: LockPlatform) -> PylockWheel | None:
        """Return the wheel that a host of ``platform`` would choose, or ``None`` if none fits.

        By the rank of the best of a wheel's tags, then the greater build number: the order of pip
        (``CandidateEvaluator._sort_key``) and uv.
        """
        ranks = platform.tag_ranks
        fitting = []
        for wheel in self.wheels:
            _, _, build, tags = parse_wheel_filename(wheel.filename)
            if not ranks.keys().isdisjoint(tags):
                rank = min(ranks[tag] for tag in tags if tag in ranks)
                fitting.append(((-rank, build), wheel))
        return max(fitting, key=lambda item: item[0])[1] if fitting else None


def read(text: str, *, folder: pathlib.Path, platform: LockPlatform) -> tuple[PylockPackage, ...]:
    """Return the packages whose marker holds on ``platform``.

    ``folder`` is where the file lay: its relative paths start there. Raises :class:`SupplyError` for what
    is not a ``pylock.toml`` of version 1.
    """
    try:
        document = tomllib.loads(text)
        if document["lock-version"].split(".")[0] != "1":
            raise SupplyError(f"uv wrote a pylock.toml of version {document['lock-version']}, 1 is known")
        return tuple(
            _package(table, folder)
            for table in document.get("packages", [])
            if "marker" not in table or Marker(table["marker"]).evaluate(dict(platform.markers))
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise SupplyError(f"uv wrote a pylock.toml that is not understood: {error!r}") from error


def _package(table: Mapping[str, Any], folder: pathlib.Path) -> PylockPackage:
    return PylockPackage(
        name=canonicalize_name(table["name"]),
        version=str(table.get("version", "")),
        wheels=tuple(_wheels(table.get("wheels", []), folder)),
    )


def _wheels(tables: list[Mapping[str, Any]], folder: pathlib.Path) -> Iterator[PylockWheel]:
    for table in tables:
        url = table["url"] if "url" in table else (folder / table["path"]).absolute().as_uri()
        name = table.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
        try:
            parse_wheel_filename(name)
        except (InvalidWheelFilename, InvalidVersion):
            continue  # an index may hold files of any name; uv takes some that the standard does not allow
        yield PylockWheel(
            filename=name, url=url, sha256=table.get("hashes", {}).get("sha256"), size=table.get("size")
        )
