"""Whether a build and its host have the libraries that an overlay's objects need: before a byte is copied.

Names are held against names: a library counts as there where any wheel, any overlay or the host's loader has
a file of its name, whatever leads the loader to it. What loads, and in which order, is judged of the finished
build, before anything switches.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.checks import waivers as waiving
from hostenv.checks.finding import Severity
from hostenv.checks.object_tables import object_tables, provider_of
from hostenv.checks.objects import rule_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostenv.checks.finding import Finding
    from hostenv.checks.waivers import Waiver
    from hostenv.facts.host_libraries import HostLibraries, HostLibrary
    from hostenv.spec.overlay import Binary, Overlay

_LIBRARY = re.compile(r".+\.so(\.[^/]+)?")
_INTERPRETERS = re.compile(r"libpython3.*\.so.*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Provided:
    """What there will be beside an overlay's objects.

    ``laid`` are the names of the libraries in the build's wheels; ``unread`` the wheels that could not be
    looked into, as they are not there yet; ``host`` is what the host's loader finds, ``folders`` what lies in
    the folders on the host to which objects lead it by themselves (absolute RPATH, RUNPATH).
    """

    laid: frozenset[str]
    unread: tuple[str, ...]
    host: HostLibraries
    folders: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Closure:
    """What is missing, and what cannot be told: a line each."""

    missing: tuple[str, ...]
    unknown: tuple[str, ...]


def brought(overlays: Iterable[Overlay]) -> frozenset[str]:
    """Return the names under which overlays' own files answer a loader: those of libraries, and SONAMEs."""
    names = set()
    for overlay in overlays:
        names |= {posixpath.basename(file.path) for file in overlay.files}
        names |= {binary.soname for binary in overlay.binaries if binary.soname}
    return frozenset(name for name in names if _LIBRARY.fullmatch(name))


def wanted(overlays: Sequence[Overlay]) -> tuple[str, ...]:
    """Return the names that the overlays' objects need and no overlay brings: what to ask the host for."""
    needed = {name for overlay in overlays for binary in overlay.binaries for name in _needed(binary)}
    return tuple(sorted(needed - brought(overlays)))


def closure(
    overlays: Sequence[Overlay], provided: Provided, waivers: Sequence[Waiver], *, today: dt.date
) -> Closure:
    """Judge every object of every overlay. Waivers count as they do of verify_abi's findings.

    Left to the judgement of the finished build are alternatives of which one is picked, and plugins that
    nobody asks for (``data/objects.toml``).
    """
    laid = provided.laid | brought(overlays)
    lines: dict[Severity, list[str]] = {Severity.ERROR: [], Severity.UNKNOWN: []}
    for overlay in overlays:
        findings = [
            finding
            for binary in overlay.binaries
            if object_tables().group_of(binary.path) is None
            for name in _needed(binary)
            if name not in laid
            for finding in _judge(binary, name, provided)
        ]
        for finding in waiving.apply(findings, waivers, (), today).findings:
            if finding.severity in lines:
                kind = f" ({finding.kind})" if finding.kind else ""
                line = f"overlays/{overlay.name}: {finding.object} {finding.message}{kind}"
                lines[finding.severity].append(line)
    return Closure(missing=tuple(lines[Severity.ERROR]), unknown=tuple(lines[Severity.UNKNOWN]))


def _needed(binary: Binary) -> tuple[str, ...]:
    """Return the names in DT_NEEDED; one with a path in it is its own affair."""
    return tuple(name for name in binary.needed if "/" not in name)


def _judge(binary: Binary, name: str, provided: Provided) -> Iterator[Finding]:
    found = provided.host.find(name)
    if found and found.path:
        yield from _versions(binary, found)
        return
    if any(name in provided.folders.get(folder, ()) for folder in binary.search):
        return
    if any(optional.excuses(binary.path, name) for optional in object_tables().optional):
        return
    known = provider_of(name)
    kind, hint = (known[0], f": {known[1]} should bring it") if known else ("K18", "")
    unseen = [folder for folder in binary.search if folder not in provided.folders]
    doubt = _doubt(name, provided, asked=found is not None)
    if unseen and not doubt:
        doubt = f"its own search path leads to {unseen[0]}, which was not looked into"
    if doubt:
        message = f"needs {name}, and it is not known whether it is there: {doubt}"
    else:
        message = f"needs {name}, which no wheel or overlay of the build and nothing on the host has{hint}"
    severity = Severity.UNKNOWN if doubt else Severity.ERROR
    yield rule_of(kind).finding(object=binary.path, severity=severity, message=message)


def _doubt(name: str, provided: Provided, *, asked: bool) -> str | None:
    """Say why it is not known whether a library is there; None where it is known that it is not."""
    if _INTERPRETERS.fullmatch(name):
        return "an interpreter may bring it itself"
    if provided.unread:
        more = f" and {len(provided.unread) - 1} more" if len(provided.unread) > 1 else ""
        return f"{provided.unread[0]}{more} could not be looked into yet"
    if asked:
        return None
    if any(name == present for present, _ in provided.host.present or ()):
        return "the loader's cache names it, and it was not read"
    reasons = [fact.unknown for fact in provided.host.read if fact.unknown]
    return reasons[0] if reasons else "the host was not asked for it"


def _versions(binary: Binary, library: HostLibrary) -> Iterator[Finding]:
    """Yield what the host's copy of a library is too old for. glibc's own is judged by its number."""
    for words in binary.versions:
        name, _, version = words.partition(" ")
        if name == library.name and library.versions and version not in library.versions:
            kind = "K15" if version.startswith(("GLIBCXX_", "CXXABI_")) else "K12"
            message = f"needs {version}, which {library.path} on the host has not"
            yield rule_of(kind).finding(object=binary.path, message=message)
