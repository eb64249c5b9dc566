"""One look at an environment for the rules on distributions and Python: read-only, and nothing of it is run.

A walk comes first; while its stats are those of an earlier answer, nothing else is read. By default bytes are
read only where it matters most: paths that several distributions claim, and files whose size is not
RECORD's. Every other file of the right size is taken for what RECORD says; ``full`` reads all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

from hostenv.agent import (
    bytecode,
    distinfo,
    environment,
    hashing,
    mapped,
    pyvenv,
    record,
    siteoutside,
    siteparts,
    statcache,
    tree,
    walk,
)
from hostenv.agent.layout import OWN, read_json
from hostenv.agent.siteoperators import Operators
from hostenv.agent.tree import Entry, Tree, text
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.distinfo import Distribution
    from hostenv.agent.wire import Wire


def look(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire,
    *,
    venv: str,
    seen: Optional[str] = None,
    full: bool = False,
    namespaces: Optional[Mapping[str, Sequence[str]]] = None,
    kernels: Sequence[str] = (),
) -> Dict[str, Any]:
    """Return what an environment's files and distributions say.

    ``seen`` is the ``stat`` of an earlier answer: where it holds, ``facts`` is ``None``. ``full``: every byte
    is held against RECORD, but for what the stat cache of a build knows. ``namespaces``: a namespace of
    operators → regular expressions of the objects that register in it (paths below site-packages);
    ``kernels``: packages whose names other sources import.

    ``live`` holds what no stat tells: interpreter, mount, the user's own site, processes. What else the
    facts rest on outside of the environment belongs to ``stat``, see :func:`siteoutside.outside`.
    """
    real = os.path.realpath(venv)
    if not pyvenv.site_packages(real):
        why = pyvenv.absence(real) or "has no site-packages"
        raise AgentError(f"{venv} {why}", hint="name the folder that holds bin/ and lib/")
    moment = time.time_ns()
    live = {
        "interpreter": siteparts.interpreter(real),
        "noexec": siteparts.may_not_run(real),
        "user_site": siteparts.user_site(pyvenv.describe(real)["python"]),
        "mapped": mapped.stale(real),
    }
    with tree.without_collector():
        walked = walk.walk(os.fsencode(real))
        stat = _state(real, walked, moment)
        if seen and seen == stat:
            return {"path": real, "stat": stat, "live": live, "facts": None}
        facts = _facts(wire, real, walked, moment, full=full, namespaces=namespaces or {}, kernels=kernels)
    return {"path": real, "stat": stat, "live": live, "facts": facts}


def _state(real: str, walked: walk.Walked, moment: int) -> Optional[str]:
    """Return a digest of all that the facts rest on; ``None`` where they must not be trusted later."""
    stats = environment.stat_digest(real, walked, moment)
    if stats is None:
        return None
    beside = json.dumps(siteoutside.outside(real, walked), sort_keys=True)
    return hashlib.sha256(f"{stats} {beside}".encode()).hexdigest()


def _facts(  # noqa: PLR0913  what was walked and asked for
    wire: Wire,
    real: str,
    walked: walk.Walked,
    moment: int,
    *,
    full: bool,
    namespaces: Mapping[str, Sequence[str]],
    kernels: Sequence[str],
) -> Dict[str, Any]:
    installed = record.installed(real)
    site = os.fsencode(pyvenv.site_packages(real)[0])
    operators = Operators(
        os.fsencode(real),
        site,
        files=walked.files,
        installed=installed,
        namespaces=namespaces,
        kernels=kernels,
    )
    with contextlib.closing(operators):
        if full:
            known = statcache.StatCache.load(os.path.join(real, OWN, "stat"))
            looked, _ = tree.examine(
                real, walked, known, moment, lambda done: wire.event(phase="hash", bytes=done)
            )
        else:
            looked = _quick(real, walked, installed)
        survey = _survey(looked, full=full, installed=installed)
        changed = [each["path"] for found in survey["distributions"] for each in found["mismatched"]]
        return {
            "full": full,
            "survey": survey,
            "site": {**_site(real, site, walked, installed, changed), "operators": operators.facts()},
            "applied": (read_json(os.path.join(real, OWN, "facts.json")) or {}).get("applied"),
        }


def _survey(looked: Tree, *, full: bool, installed: List[Distribution]) -> Dict[str, Any]:
    summary = looked.summary(looked.canonical() if full else b"")
    if not full:
        summary["fingerprint"] = None
    return {"tree": summary, **record.describe(looked, installed)}


def _quick(real: str, walked: walk.Walked, installed: List[Distribution]) -> Tree:
    """Return the tree of a walk in which only contested and wrongly sized files were read."""
    root = os.fsencode(real)
    rows: Dict[bytes, distinfo.Row] = {}
    for each in installed:
        rows.update(each.rows)
    disputed = record.contested(installed)
    wanted = [
        path
        for path, file in walked.files.items()
        if path in disputed
        or (path in rows and rows[path].size not in {None, file.size} and not _is_rewritten(path))
    ]
    found = Tree(root=real, links=walked.links, problems=walked.problems, left_out=walked.left_out)
    digests = _digests(root, walked, wanted, found)
    for path, file in walked.files.items():
        if path.endswith(b".pyc") and bytecode.source_of(path) in walked.files and path not in rows:
            found.left_out += 1  # judged by its header, see siteparts.compiled
            continue
        digest = digests.get(path)
        if digest is None:
            row = rows.get(path)
            digest = (row.sha256 if row else None) or b""
        found.entries[path] = Entry(file.mode, file.size, digest, digest)
    return found


def _digests(root: bytes, walked: walk.Walked, wanted: List[bytes], found: Tree) -> Dict[bytes, bytes]:
    jobs = [
        hashing.Job(
            path=os.fsdecode(root + b"/" + path), size=walked.files[path].size, key=walked.files[path].key
        )
        for path in wanted
    ]
    digests = {}
    for path, job, result in zip(wanted, jobs, hashing.examine(jobs)):
        if result.state == hashing.HASHED:
            digests[path] = result.digest
            found.read += job.size
        else:
            found.problems.append((path, result.reason or "changed while it was read"))
    return digests


def _is_rewritten(path: bytes) -> bool:
    """Tell whether an installer writes such a file anew: scripts get their interpreter's path."""
    return path.startswith(b"bin/") or path.endswith(b".dist-info/RECORD")


def _site(
    real: str,
    site: bytes,
    walked: walk.Walked,
    installed: List[Distribution],
    changed: List[str],
) -> Dict[str, Any]:
    root = os.fsencode(real)
    owners = siteparts.owners_of(installed)
    bytecodes = siteparts.compiled(root, walked.files)
    bytecodes["repeating"] = len(bytecodes["repeating"])
    return {
        "path": text(site),
        "objects": siteparts.objects(walked, owners),
        "lost_bits": siteparts.lost_bits(walked),
        "pointers": siteparts.pointers(root, walked),
        "dangling": siteparts.dangling(root, walked),
        "hard_links": siteparts.hard_links(root, walked, changed),
        "scripts": siteoutside.scripts(root, walked),
        "path_files": siteoutside.path_files(root, walked, owners),
        "finders": siteparts.finders(root, walked),
        "top_levels": siteparts.top_levels(site, walked),
        "shadows": siteparts.shadows(walked),
        "orphans": siteparts.orphans(site, walked, owners),
        "bytecode": bytecodes,
    }
