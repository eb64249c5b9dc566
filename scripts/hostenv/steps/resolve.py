"""Resolving a spec for a platform: uv chooses the versions, the platform's tags the wheel of each."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from hostenv.document import did_you_mean
from hostenv.errors import InputError, SupplyError
from hostenv.machine import uv
from hostenv.spec.inputs import input_lines, utc
from hostenv.spec.lock import Lock, LockEntry
from hostenv.steps.compile import compile_pylock, no_wheel, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostenv.spec.environment import Env
    from hostenv.spec.lockplatform import LockPlatform
    from hostenv.steps.pylock import PylockPackage, PylockWheel

ALL = "*"
"""As a name in ``upgrade``: every package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvePlan:
    """A resolution that is about to be asked for, and why.

    ``current`` is the lock whose versions are kept where they still fit; ``upgrade`` holds the names whose
    versions are not, or :data:`ALL`.
    """

    name: str
    env: Env
    platform: LockPlatform
    current: Lock | None
    upgrade: tuple[str, ...]
    reasons: tuple[str, ...]


def plan(
    name: str,
    env: Env,
    platform: LockPlatform,
    *,
    current: Lock | None,
    upgrade: Sequence[str] = (),
) -> ResolvePlan | None:
    """Return what is to be resolved, or ``None`` where ``current`` still answers the spec.

    Raises :class:`InputError` when ``upgrade`` names a package that the lock does not hold.
    """
    names = tuple(each if each == ALL else canonicalize_name(each) for each in upgrade)
    known = current.by_name if current else {}
    for each in names:
        if current and each != ALL and each not in known:
            raise InputError(f"the lock of {name} holds no {each}{did_you_mean(each, known)}")
    if current is None:
        reasons: tuple[str, ...] = ("there is no lock yet",)
    else:
        reasons = current.stale(input_lines(env, platform))
        reasons += tuple("upgrade: every package" if each == ALL else f"upgrade: {each}" for each in names)
    if not reasons:
        return None
    return ResolvePlan(name=name, env=env, platform=platform, current=current, upgrade=names, reasons=reasons)


def apply(asked: ResolvePlan) -> Lock:
    """Resolve and return the lock; nothing is written.

    Raises :class:`SupplyError` with uv's cause when there is no solution, and by name for every package
    that has no wheel for the platform.
    """
    with uv.scratch() as scratch:
        folder = pathlib.Path(scratch)
        arguments = [*_inputs(asked.env, folder), *reach(asked.env.indexes, asked.env.torch_backend)]
        arguments += [f"--prerelease={asked.env.prereleases}", *_preferences(asked, folder)]
        if asked.env.exclude_newer:
            arguments += ["--exclude-newer", utc(asked.env.exclude_newer)]
        packages = compile_pylock(arguments, asked.platform, folder)
    entries = [_entry(package, asked.platform) for package in packages]
    return Lock(
        name=asked.name,
        platform=asked.platform,
        inputs=input_lines(asked.env, asked.platform),
        entries=tuple(sorted(_all_have_wheels(entries, asked.platform), key=lambda entry: entry.name)),
    )


def differences(old: Lock | None, new: Lock) -> tuple[str, ...]:
    """Say how the packages of two locks differ, a line each: ``+ a 1``, ``- b 2``, ``c 1 → 2``."""
    before, after = old.by_name if old else {}, new.by_name
    said = []
    for name in sorted(before.keys() | after.keys()):
        one, two = before.get(name), after.get(name)
        if one is None and two:
            said.append(f"+ {name} {two.version}")
        elif two is None and one:
            said.append(f"- {name} {one.version}")
        elif one and two and one.version != two.version:
            said.append(f"{name} {one.version} → {two.version}")
        elif one and two and one.sha256 != two.sha256:
            said.append(f"{name} {two.version}: {one.filename} → {two.filename}, other bytes")
    return tuple(said)


def _inputs(env: Env, folder: pathlib.Path) -> Iterator[str]:
    files = (
        ("requires.in", "", env.requires),
        ("constraints.in", "--constraints", env.constraints),
        ("overrides.in", "--overrides", env.overrides),
        ("excludes.in", "--excludes", env.excludes),
    )
    for file, option, lines in files:
        if lines or not option:
            (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            yield from (option, file) if option else (file,)


def _preferences(asked: ResolvePlan, folder: pathlib.Path) -> list[str]:
    """Give uv the versions to keep, as the output file that it finds; it takes them where they fit."""
    if ALL in asked.upgrade:
        return ["--upgrade"]
    kept = asked.current.entries if asked.current else ()
    tables = [
        f'[[packages]]\nname = "{entry.name}"\nversion = "{entry.version}"\n'
        for entry in kept
        if entry.name not in asked.upgrade
    ]
    if tables:
        head = 'lock-version = "1.0"\ncreated-by = "hostenv"\n'
        (folder / "pylock.toml").write_text(head + "".join(tables), encoding="utf-8")
    return [part for name in asked.upgrade for part in ("--upgrade-package", name)]


def _entry(package: PylockPackage, platform: LockPlatform) -> LockEntry | str:
    """Return the wheel of a package as an entry, or the package's name where there is none."""
    wheel = package.best(platform)
    if wheel is None:
        return f"{package.name} {package.version}".strip()
    if wheel.sha256 is None:
        raise SupplyError(
            f"{wheel.filename}: the index gives no sha256 for it, and a lock needs one",
            hint="serve it from an index that states hashes, or by UV_FIND_LINKS",
        )
    entry = LockEntry(
        name=package.name,
        version=str(Version(package.version)),
        sha256=wheel.sha256,
        filename=wheel.filename,
        size=wheel.size or _size(wheel),
    )
    wrong = entry.problems()
    if wrong:
        raise SupplyError(
            f"{package.name} {package.version}: what the index says is wrong: {'; '.join(wrong)}"
        )
    return entry


def _size(wheel: PylockWheel) -> int:
    """Ask where the wheel lies for its size: an index of plain pages (PEP 503) does not say it."""
    # requests takes 0.1 s to import, and few indexes need it here
    from hostenv.index.fetch import size_of  # noqa: PLC0415
    from hostenv.index.logins import read_logins  # noqa: PLC0415
    from hostenv.index.source import origin, split_login  # noqa: PLC0415

    url, login = split_login(wheel.url)
    logins = {**read_logins(os.environ), **({origin(url): login} if login else {})}
    return size_of(url, logins)


def _all_have_wheels(entries: Iterable[LockEntry | str], platform: LockPlatform) -> list[LockEntry]:
    found = list(entries)
    missing = [each for each in found if isinstance(each, str)]
    if missing:
        raise no_wheel(missing, platform)
    return [each for each in found if isinstance(each, LockEntry)]
