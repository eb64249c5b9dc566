"""The distributions of an environment held against its files: what differs, is missing, is nobody's.

The digests come from the manifest's pass (:func:`hostenv.agent.tree.scan`): no file is read twice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

from hostenv.agent import bytecode, distinfo, pyvenv, tree
from hostenv.agent.tree import Tree, text

if TYPE_CHECKING:
    from hostenv.agent.distinfo import Distribution
    from hostenv.agent.wire import Wire

_UNCLAIMED = frozenset({b"pyvenv.cfg"})
_LEFT_OUT = frozenset({b"INSTALLER", b"REQUESTED", b"direct_url.json", b"uv_cache.json", b"uv_build.json"})

Claims = Mapping[str, Mapping[bytes, bytes]]
"""``name==version`` → path → sha256, as the distributions' RECORDs say."""


def survey(
    wire: Wire,
    *,
    root: str,
    cache: Optional[str] = None,
    rehash: bool = False,
    with_manifest: bool = False,
) -> Dict[str, Any]:
    """Return the summary of an environment and its distributions, checked against the disk.

    ``with_manifest``: the canonical manifest, compressed by zlib, is sent as bulk data before the result.
    """
    looked = tree.scan(
        root, cache=cache, rehash=rehash, progress=lambda n: wire.event(phase="manifest", bytes=n)
    )
    canonical = looked.canonical()
    if with_manifest:
        tree.send(wire, canonical)
    return {"tree": looked.summary(canonical), **describe(looked)}


def describe(looked: Tree, found: Optional[List[Distribution]] = None) -> Dict[str, Any]:
    """Return every distribution with what of it differs, the files nobody owns, and contested paths.

    ``found`` are the distributions where they were read already.
    """
    distributions = installed(looked.root) if found is None else found
    disputes = contested(distributions)
    owned = {path for distribution in distributions for path in distribution.rows}
    unowned = (looked.entries.keys() | looked.links.keys()) - owned - _UNCLAIMED
    return {
        "site": next(iter(pyvenv.site_packages(looked.root)), None),
        "distributions": [_facts(each, looked, disputes) for each in distributions],
        "unowned": {text(path): _found(looked, path) for path in sorted(unowned)},
        "conflicts": [_conflict(path, claims, looked) for path, claims in sorted(disputes.items())],
    }


def installed(root: str) -> List[Distribution]:
    """Read all distributions of an environment, in order of name and version."""
    found = [
        distinfo.read(root, os.fsencode(os.path.join(site, name)))
        for site in pyvenv.site_packages(root)
        for name in os.listdir(os.path.join(root, site))
        if name.endswith((".dist-info", ".egg-info")) and os.path.isdir(os.path.join(root, site, name))
    ]
    return sorted(found, key=lambda each: (distinfo.normalised(each.name), each.version))


def contested(distributions: Iterable[Distribution]) -> Dict[bytes, Dict[str, bytes]]:
    """Return the paths that several distributions own with different bytes: path → owner → sha256."""
    return conflicts(
        {
            each.key: {path: row.sha256 for path, row in each.rows.items() if row.sha256}
            for each in distributions
        }
    )


def conflicts(claims: Claims) -> Dict[bytes, Dict[str, bytes]]:
    """Return each path that is claimed with different digests, with its claims in order: the last one wins.

    Paths claimed by several with one digest are harmless and not returned. The order, and so the winner, is
    that of a lock, names and then versions, as if the wheels had been installed one after another; it
    depends on nothing that happened during an install. See :func:`winner`.
    """
    first: Dict[bytes, str] = {}
    several: Dict[bytes, List[str]] = {}
    for owner in sorted(claims, key=order):
        for path in claims[owner]:
            if path in first:
                several.setdefault(path, [first[path]]).append(owner)
            else:
                first[path] = owner
    found = {path: {owner: claims[owner][path] for owner in names} for path, names in several.items()}
    return {path: claimed for path, claimed in found.items() if len(set(claimed.values())) > 1}


def winner(claims: Iterable[str]) -> str:
    """Return whose bytes a contested path has, by rule: the last in order of normalised name and version.

    >>> winner(["torch-c-dlpack-ext==0.1", "flashinfer-python==0.6.12"])
    'torch-c-dlpack-ext==0.1'
    """
    return max(claims, key=order)


def order(owner: str) -> Tuple[str, str]:
    """Return the place of ``name==version`` among the claims of a path; the last one wins."""
    name, _, version = owner.partition("==")
    return distinfo.normalised(name), version


def _facts(each: Distribution, looked: Tree, disputes: Mapping[bytes, Mapping[str, bytes]]) -> Dict[str, Any]:
    mismatched, missing, unverified = _compare(each, looked, disputes)
    return {
        "name": each.name,
        "version": each.version,
        "info": text(each.info),
        "requires": each.metadata.get("Requires-Dist", []),
        "requires_python": each.metadata.get("Requires-Python", [None])[0],
        "extras": each.metadata.get("Provides-Extra", []),
        "tags": each.wheel.get("Tag", []),
        "installer": each.installer,
        "direct_url": each.direct_url,
        "editable": each.editable,
        "entry_points": each.entry_points,
        "files": len(each.rows),
        "mismatched": mismatched,
        "missing": missing,
        "unverified": unverified,
        "problems": each.problems,
    }


def _compare(
    each: Distribution, looked: Tree, disputes: Mapping[bytes, Mapping[str, bytes]]
) -> Tuple[List[Dict[str, Any]], List[str], List[str]]:
    """Hold RECORD against the disk: what differs, what is missing, and what has a hash of another kind.

    A contested path whose bytes are one of its owners' is left to the conflict.
    """
    unreadable = {path for path, _ in looked.problems}
    mismatched: List[Dict[str, Any]] = []
    missing: List[str] = []
    unverified: List[str] = []
    for path, row in each.rows.items():
        entry = looked.entries.get(path)
        if entry is None:
            if path in looked.links and row.sha256:
                mismatched.append({"path": text(path), "recorded": row.sha256.hex(), "found": None})
            elif path not in looked.links and path not in unreadable and not _is_left_out(path):
                missing.append(text(path))
        elif row.other:
            unverified.append(text(path))
        elif row.sha256 and row.sha256 != entry.found and entry.found not in disputes.get(path, {}).values():
            found = {"path": text(path), "recorded": row.sha256.hex(), "found": entry.found.hex()}
            mismatched.append(found)
    return mismatched, missing, unverified


def _conflict(path: bytes, claims: Mapping[str, bytes], looked: Tree) -> Dict[str, Any]:
    return {
        "path": text(path),
        "claims": {owner: digest.hex() for owner, digest in claims.items()},
        "found": _found(looked, path),
        "winner": winner(claims),
    }


def _found(looked: Tree, path: bytes) -> Optional[str]:
    """Return the sha256 of a file's bytes; ``None`` for a link and for what is not there."""
    entry = looked.entries.get(path)
    return entry.found.hex() if entry else None


def _is_left_out(path: bytes) -> bool:
    """Tell whether a manifest leaves such a file out, so that it cannot say that it is missing."""
    folder, _, name = path.rpartition(b"/")
    return bytecode.source_of(path) is not None or (name in _LEFT_OUT and folder.endswith(b".dist-info"))
