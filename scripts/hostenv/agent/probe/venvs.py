"""The virtual environments of the host, found within bounds, and what of the serving stack each holds."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from hostenv.agent.probe.distributions import Budget, stack
from hostenv.agent.probe.fact import Json, UnknownError, fact, known, unknown
from hostenv.agent.probe.intime import SECONDS, Question, ask

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_PLACES = ("/root", "/home", "/opt", "/srv", "/workspace", "/data", "/usr/local", "/app")
DEPTH = 4
"""Levels below a place that are searched: /opt/PROJECT/SUB/.venv."""
MOST = 40
_NAMED = "named in the spec"
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "lustre", "beegfs", "glusterfs"})
_SKIP = frozenset({"node_modules", "__pycache__", ".git", ".cache", "site-packages", "dist-packages", "hub"})


def read(tree: Tree, wanted: List[str], remote: List[str], seconds: float, budget: Budget) -> Json:
    """Return one fact an environment: those wanted first, then what a bounded search finds.

    ``remote`` holds mount points that are never entered; ``seconds`` bounds the search for all places.
    """
    searched = ask({"places": search_questions(tree, remote, seconds)})["places"]
    described = ask({"venvs": questions(tree, wanted, searched, budget)})["venvs"]
    return answer(searched, described, budget)


def search_questions(tree: Tree, remote: List[str], seconds: float) -> List[Question]:
    """Return a question a place: which environments lie there? ``seconds`` bound the search."""

    def question(place: str) -> Question:
        how = f"{place}: search for pyvenv.cfg"
        return Question(
            lambda: Search(tree, remote, time.monotonic() + seconds).run(place),
            lambda reason: {"found": [], "complete": False, "problem": unknown(reason, how)},
            seconds + SECONDS,
        )

    return [question(place) for place in _PLACES]


def questions(tree: Tree, wanted: List[str], searched: List[Json], budget: Budget) -> List[Question]:
    """Return a question an environment: those wanted first, then those found, the shallow ones first."""
    found = dict.fromkeys(wanted, _NAMED)
    for path in sorted(
        (path for each in searched for path in each["found"]), key=lambda path: path.count("/")
    ):
        found.setdefault(path, "search for pyvenv.cfg")
    return [_question(tree, path, how, budget) for path, how in list(found.items())[:MOST]]


def answer(searched: List[Json], described: List[Json], budget: Budget) -> Json:
    """Return the facts about environments; the budget is told what was used of it in the child.

    One environment under two names is told once, unless the spec names it.
    """
    budget.lower([each["left"] for each in described])
    real = set()
    facts = []
    for each in described:
        if each["real"] not in real or each["fact"]["how"] == _NAMED:
            facts.append(each["fact"])
        real.add(each["real"])
    problems = [each["problem"] for each in searched if each["problem"]]
    within = sum(len(each["found"]) for each in searched) <= MOST
    return {
        "found": facts + problems,
        "complete": within and all(each["complete"] for each in searched),
        "places": list(_PLACES),
    }


def _question(tree: Tree, path: str, how: str, budget: Budget) -> Question:
    def described() -> Json:
        told = fact(how, describe, tree, path, budget)
        try:
            real = os.path.realpath(tree.path(path))
        except OSError:
            real = path
        return {"fact": told, "left": budget.left, "real": real}

    def otherwise(reason: str) -> Json:
        return {"fact": unknown(f"{path}: {reason}", how), "left": budget.left, "real": path}

    return Question(described, otherwise, budget.seconds + SECONDS)


def remote_mounts(table: List[Tuple[str, str]]) -> List[str]:
    """Return the mount points, of (point, filesystem), that lie on another machine."""
    return [point for point, kind in table if kind in _REMOTE]


class Search:
    """A walk for ``pyvenv.cfg`` that ends in time; ``complete`` says whether it saw everything."""

    def __init__(self, tree: Tree, remote: List[str], deadline: float) -> None:
        self._tree = tree
        self._remote = frozenset(remote)
        self._deadline = deadline
        self.complete = True

    def run(self, place: str) -> Json:
        """Return the folders of virtual environments below a place, the shallow ones first."""
        found: List[str] = []
        level = [place] if self._may_enter(place) else []
        for _ in range(DEPTH + 1):
            deeper: List[str] = []
            for folder in level:
                if time.monotonic() > self._deadline:
                    self.complete = False
                    return self._answer(found)
                names = self._folders(folder)
                if names is None:
                    found.append(folder)
                else:
                    deeper += names
            level = deeper
        return self._answer(found)

    def _may_enter(self, place: str) -> bool:
        try:
            return not os.path.islink(self._tree.path(place))
        except OSError:
            self.complete = False
            return False

    def _answer(self, found: List[str]) -> Json:
        return {"found": found, "complete": self.complete, "problem": None}

    def _folders(self, folder: str) -> Optional[List[str]]:
        """Return the folders in a folder, or ``None`` where it is an environment itself."""
        found = []
        try:
            with os.scandir(self._tree.path(folder)) as entries:
                for entry in entries:
                    if entry.name == "pyvenv.cfg":
                        return None
                    path = os.path.join(folder, entry.name)
                    if path in self._tree.silent:
                        self.complete = False
                        continue
                    if entry.name in _SKIP or path in self._remote:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        found.append(path)
        except OSError:
            return []
        return sorted(found)


def describe(tree: Tree, path: str, budget: Budget) -> Json:
    """Return what an environment is: its interpreter and its serving stack, read without importing it."""
    if not tree.exists(f"{path}/pyvenv.cfg"):
        reason = "is no virtual environment" if tree.exists(path) else "does not exist"
        raise UnknownError(reason, path)
    settings = _settings(tree.text(f"{path}/pyvenv.cfg", 1 << 16))
    site = site_packages(tree, path)
    return {
        "path": path,
        "kind": "venv",
        "python": settings.get("version_info") or settings.get("version"),
        "home": settings.get("home"),
        "interpreter_works": tree.is_executable(f"{path}/bin/python"),
        "system_site_packages": settings.get("include-system-site-packages", "").lower() == "true",
        "made_by_uv": settings.get("uv"),
        "site_packages": site,
        "stack": stack(tree, site, budget) if site else [],
    }


def bases(tree: Tree, interpreters: List[Json], budget: Budget) -> List[Json]:
    """Return the environments without a venv (an image's system Python) that hold some of the stack."""
    found = []
    for interpreter in interpreters:
        value: Json = interpreter.get("value") or {"sites": []}
        for site in value["sites"]:
            held = stack(tree, site, budget)
            if held:
                found.append(known(_base(value, site, held), f"{site}/*.dist-info"))
    return found


def _base(interpreter: Json, site: str, held: List[Json]) -> Json:
    return {
        "path": interpreter["prefix"],
        "kind": "base",
        "python": interpreter["version"],
        "home": os.path.dirname(interpreter["path"]),
        "interpreter_works": True,
        "system_site_packages": False,
        "made_by_uv": None,
        "site_packages": site,
        "stack": held,
    }


def site_packages(tree: Tree, path: str) -> Optional[str]:
    """Return an environment's ``site-packages``, ``None`` where it has none."""
    for name in tree.names(f"{path}/lib"):
        if re.match(r"python3\.\d+t?\Z", name) and tree.is_folder(f"{path}/lib/{name}/site-packages"):
            return f"{path}/lib/{name}/site-packages"
    return None


def _settings(text: str) -> Dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs if name.strip()}
