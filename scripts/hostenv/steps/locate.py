"""Where the wheels of a lock lie at this moment: asked of uv, so that its index settings and mirrors hold."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

from hostenv.errors import SupplyError
from hostenv.index.logins import read_logins
from hostenv.index.source import Login, Source, origin, split_login
from hostenv.machine import uv
from hostenv.steps.compile import compile_pylock, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostenv.spec.lock import Lock, LockEntry
    from hostenv.steps.pylock import PylockPackage


def locate(lock: Lock, entries: Sequence[LockEntry]) -> tuple[tuple[Source, ...], dict[str, Login]]:
    """Return where each of these entries of ``lock`` lies, and the logins for those places.

    A wheel is found by its sha256 alone, on any index that uv is told of. Raises :class:`SupplyError`
    naming every wheel that none of them has any more.
    """
    if not entries:
        return (), {}
    with uv.scratch() as scratch:
        folder = pathlib.Path(scratch)
        pins = "".join(f"{entry.name}==={entry.version}\n" for entry in entries)
        (folder / "requires.in").write_text(pins, encoding="utf-8")
        asked = reach(lock.indexes, lock.torch_backend)
        arguments = ["requires.in", "--no-deps", "--prerelease", "allow", *asked]
        packages = compile_pylock(arguments, lock.platform, folder)
    found = {wheel.sha256: wheel.url for package in packages for wheel in package.wheels if wheel.sha256}
    missing = [entry for entry in entries if entry.sha256 not in found]
    if missing:
        raise _not_there(missing, packages)
    return _sources(entries, found)


def _sources(
    entries: Iterable[LockEntry], found: dict[str, str]
) -> tuple[tuple[Source, ...], dict[str, Login]]:
    logins = read_logins(os.environ)
    sources = []
    for entry in entries:
        url, login = split_login(found[entry.sha256])
        if login:
            logins[origin(url)] = login
        sources.append(Source(sha256=entry.sha256, filename=entry.filename, size=entry.size, url=url))
    return tuple(sources), logins


def _not_there(missing: Iterable[LockEntry], packages: Iterable[PylockPackage]) -> SupplyError:
    there = {package.name: package.wheels for package in packages}
    lines = []
    for entry in missing:
        same = [wheel for wheel in there.get(entry.name, ()) if wheel.filename == entry.filename]
        hashes = ", ".join(wheel.sha256 or "a hash it does not state" for wheel in same)
        what = f"has it with sha256 {hashes}" if same else "does not have it"
        lines.append(f"{entry.filename} (sha256 {entry.sha256}): the index {what}")
    return SupplyError(
        "\n".join(lines),
        hint="put the wheel where UV_FIND_LINKS points, or resolve again: nox -s lock -- HOST",
    )
