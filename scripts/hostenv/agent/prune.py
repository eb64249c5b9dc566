"""Removing what nothing uses: old builds with their caches and receipts, leftovers, wheels nobody names.

A build is first renamed, so that nobody finds half of one; then every process is looked at once more, and
only then it is deleted. Killed in between, what is left bears no id, and the next session removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import Any, Dict, Iterable, List, Sequence

from hostenv.agent import inventory, store, users
from hostenv.agent.amounts import counted
from hostenv.agent.files import sync_folder
from hostenv.agent.layout import OWN, Layout, read_json
from hostenv.agent.wire import AgentError, Wire
from hostenv.agent.writer import sole_writer

DOOMED = ".tmp-prune-"
"""What a build is called between its renaming and its end; ``.tmp-`` is swept by every build, too."""

_NAMED = 3
"""Users that are named of a build."""

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def prune(  # noqa: PLR0913  one request of the protocol, by keyword
    wire: Wire,
    *,
    root: str,
    who: Dict[str, Any],
    builds: List[str],
    wheels: List[str],
    leftovers: bool = True,
    despite_unknown: bool = False,
) -> Dict[str, Any]:
    """Remove ``builds`` (ids) and ``wheels`` (sha256), as far as nothing uses them now.

    Returns what was ``removed``, what was ``kept`` after all and why, and how many bytes were ``freed``.
    Raises :class:`AgentError` where processes cannot be looked into, unless ``despite_unknown``.
    """
    layout = Layout(os.path.expanduser(root))
    with sole_writer(layout, who):
        removal = _Removal(wire, layout, despite_unknown=despite_unknown)
        if leftovers:
            removal.leftovers()
        removal.builds(builds)
        removal.orphans()
        removal.wheels(wheels)
    return {"removed": removal.removed, "kept": removal.kept, "freed": removal.freed}


def wheels(wire: Wire, *, root: str, builds: List[str], locked: List[str]) -> List[Dict[str, Any]]:
    """Return the wheels that none of ``builds`` was made of, and that are not among ``locked`` (sha256)."""
    del wire
    layout = Layout(os.path.expanduser(root))
    needed = {*locked, *_named(layout, builds)}
    found = []
    for sha256 in _names(layout.wheelhouse):
        folder = os.path.join(layout.wheelhouse, sha256)
        if _SHA256.match(sha256) and sha256 not in needed and os.path.isdir(folder):
            names = ", ".join(sorted(_names(folder)))
            found.append({"sha256": sha256, "name": names, "size": inventory.usage(folder).size})
    return found


def contents(wire: Wire, *, root: str, builds: List[str]) -> Dict[str, int]:
    """Return how many contents of overlays none of ``builds`` names: ``files``, and their ``size``."""
    del wire
    sizes = []
    for path in store.unnamed(Layout(os.path.expanduser(root)), builds):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(os.lstat(path).st_size)
    return {"files": len(sizes), "size": sum(sizes)}


class _Removal:
    """One run, under the lock."""

    def __init__(self, wire: Wire, layout: Layout, *, despite_unknown: bool) -> None:
        self.removed: List[str] = []
        self.kept: List[Dict[str, str]] = []
        self.freed = 0
        self._wire = wire
        self._layout = layout
        self._despite_unknown = despite_unknown
        self._since = 0.0

    def leftovers(self) -> None:
        """Remove what killed sessions left: under the lock nothing unfinished has an owner."""
        for path in inventory.unfinished(self._layout):
            self._delete(path)

    def builds(self, names: Sequence[str]) -> None:
        """Remove builds: those in use stay, whatever the plan was."""
        layout = self._layout
        there = set(layout.finished_builds())
        roles = inventory.roles_of(layout)
        wanted = []
        for name in names:
            if roles.get(name):
                self._keep(name, f"is {' and '.join(roles[name])}")
            elif name in there:
                wanted.append(name)
        self._since = inventory.oldest(layout, wanted)
        used = self._users({name: layout.build(name) for name in wanted})
        for name in wanted:
            if name in used:
                self._keep(name, used[name])
                continue
            doomed = os.path.join(layout.builds, DOOMED + name)
            os.rename(layout.build(name), doomed)
            sync_folder(layout.builds)
            late = self._users({name: doomed})
            if name in late:
                os.rename(doomed, layout.build(name))
                self._keep(name, late[name])
                continue
            self._delete(doomed, layout.build(name))

    def orphans(self) -> None:
        """Remove the JIT caches and the receipts of builds that are gone."""
        caches = inventory.orphaned_caches(self._layout)
        used = self._users(caches)
        for name, path in caches.items():
            if name not in used:
                self._delete(path)
        for path in inventory.stale_generations(self._layout):
            self._delete(path)
        contents = store.unnamed(self._layout, self._layout.finished_builds())
        if contents:
            self.freed += sum(os.lstat(path).st_size for path in contents)
            for path in contents:
                os.unlink(path)
            self.removed.append(f"{counted(len(contents), 'content')} of overlays in {self._layout.store}")

    def wheels(self, hashes: Iterable[str]) -> None:
        """Remove wheels by hash; one that a build was made of meanwhile stays."""
        needed = set(_named(self._layout, self._layout.finished_builds()))
        for sha256 in hashes:
            folder = os.path.join(self._layout.wheelhouse, sha256)
            if _SHA256.match(sha256) and sha256 not in needed and os.path.isdir(folder):
                self._delete(folder)

    def _users(self, folders: Dict[str, str]) -> Dict[str, str]:
        """Return in words who uses what lies in ``folders`` (by id); nothing of what nobody uses."""
        if not folders:
            return {}
        seen = users.look(self._layout, folders, self._since)
        if seen.unknown and not self._despite_unknown:
            raise AgentError(
                f"it is not known what uses the builds: {'; '.join(seen.unknown)}",
                hint='as root (host.become = "sudo") all can be seen; or pass --despite-unknown',
                outcome="refused",
            )
        told = {}
        for name, folder in folders.items():
            found = seen.users_of(name, inventory.usage(folder, seen.mapped).mapped)
            if found:
                named = (f"pid {each['pid']} {each['name']} ({each['how']})" for each in found[:_NAMED])
                told[name] = f"is used by {'; '.join(named)}"
        return told

    def _keep(self, name: str, why: str) -> None:
        self.kept.append({"build": name, "why": why})

    def _delete(self, path: str, told: str = "") -> None:
        size = inventory.usage(path).freed
        self._wire.event(phase="remove", path=told or path, bytes=size)
        remove_tree(path)
        self.removed.append(told or path)
        self.freed += size


def remove_tree(path: str) -> None:
    """Remove a folder and all below it, folders included that may not be written to."""
    try:
        shutil.rmtree(path)
    except PermissionError:
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path)


def _named(layout: Layout, builds: Iterable[str]) -> List[str]:
    """Return the hashes of the wheels that builds were made of."""
    found: List[str] = []
    for name in builds:
        inputs = read_json(os.path.join(layout.build(name), OWN, "inputs.json")) or {}
        found += [sha256 for _, _, sha256 in inputs.get("wheels", [])]
    return found


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
