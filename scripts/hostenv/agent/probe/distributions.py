"""What of the serving stack a site-packages folder holds: version, editable or not, changed or not."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence

from hostenv.agent import recordfile
from hostenv.agent.probe.fact import Json, UnknownError, fact, unknown

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

STACK = (
    "torch",
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "triton",
    "vllm",
    "transformers",
    "xgrammar",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "apache-tvm-ffi",
)
"""Distributions that are told, in this order."""

_HASHED = ("sglang", "sglang-kernel", "sgl-kernel", "flashinfer-python", "vllm", "triton", "flash-attn")
"""Those whose sources are commonly patched: their Python files are held against RECORD."""
MOST_CHANGED = 20
_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


class Budget:
    """Seconds for hashing, shared by all environments of a probe. ``turn``: they are hashed one by one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.turn = threading.Lock()
        self._left = seconds

    def lower(self, left: Sequence[float]) -> None:
        """Take over what a child has left over."""
        self._left = min((self._left, *left))

    def spend(self, seconds: float) -> None:
        """Take what was used."""
        self._left -= seconds

    @property
    def left(self) -> float:
        """Seconds that are left; not positive when all is used."""
        return self._left


class _Entry(NamedTuple):
    path: str
    digest: str
    size: Optional[int]


def stack(tree: Tree, site: str, budget: Budget) -> List[Json]:
    """Return the distributions of the stack in ``site``, found by their dist-info folder."""
    folders: Dict[str, str] = {}
    for name in tree.names(site):
        stem, extension = os.path.splitext(name)
        if extension == ".dist-info" and "-" in stem:
            folders.setdefault(_normalised(stem.rpartition("-")[0]), name)
    return [_distribution(tree, site, name, folders[name], budget) for name in STACK if name in folders]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(tree: Tree, site: str, name: str, folder: str, budget: Budget) -> Json:
    direct = _direct_url(tree, f"{site}/{folder}/direct_url.json")
    editable = bool(direct and direct.get("dir_info", {}).get("editable"))
    return {
        "name": name,
        "version": os.path.splitext(folder)[0].rpartition("-")[2],
        "editable": editable,
        "source": _source(direct),
        "cuda": fact("torch/version.py", _cuda, tree, site) if name == "torch" else None,
        "changed": _changed(tree, site, name, folder, editable, budget),
    }


def _direct_url(tree: Tree, path: str) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(tree.text(path, 1 << 16))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _source(direct: Optional[Dict[str, Any]]) -> Optional[str]:
    """Return where a direct install came from, without the credentials that its URL may hold."""
    if not direct:
        return None
    url = re.sub(r"(?<=://)[^/@]*@", "", str(direct.get("url", "")))
    commit = direct.get("vcs_info", {}).get("commit_id") if isinstance(direct.get("vcs_info"), dict) else None
    return f"{url}@{commit}" if commit else url


def _cuda(tree: Tree, site: str) -> Optional[str]:
    """Return the CUDA version that torch was built for; ``None``: built without CUDA."""
    text = tree.text(f"{site}/torch/version.py", 1 << 16)
    match = _CUDA.search(text)
    if not match and not re.search(r"^cuda\b.*=\s*None", text, re.MULTILINE):
        raise UnknownError("names no CUDA version")
    return match.group(1) if match else None


def _changed(tree: Tree, site: str, name: str, folder: str, editable: bool, budget: Budget) -> Json:  # noqa: FBT001, PLR0913, PLR0917  all of it describes one distribution
    how = f"{folder}/RECORD: sha256 of its Python files"
    if name not in _HASHED:
        return unknown("not looked at: use match or verify_abi", how)
    if editable:
        return unknown("editable: RECORD does not hold its sources", how)
    with budget.turn:
        if budget.left <= 0:
            return unknown(f"the probe's {budget.seconds:g} s for hashing were used up", how)
        started = time.monotonic()
        try:
            return fact(how, _compare, tree, site, folder, started + budget.left)
        finally:
            budget.spend(time.monotonic() - started)


def _compare(tree: Tree, site: str, folder: str, deadline: float) -> Json:
    changed: List[str] = []
    count = 0
    for entry in _entries(tree.text(f"{site}/{folder}/RECORD")):
        if time.monotonic() > deadline:
            raise UnknownError(
                f"the time for hashing ended after {count} files, {len(changed)} of them changed"
            )
        count += 1
        if not _is_same(tree, site, entry):
            changed.append(entry.path)
    if not count:
        raise UnknownError("RECORD lists no Python file with its sha256")
    return {"files": count, "changed": len(changed), "first": changed[:MOST_CHANGED]}


def _entries(text: str) -> List[_Entry]:
    found = []
    rows, problems = recordfile.fields(text)
    if problems:
        raise UnknownError(f"RECORD {problems[0]}")
    for row in rows:
        if len(row) != 3 or not row[0].endswith(".py"):  # noqa: PLR2004  path, hash, size
            continue
        if not row[1].startswith("sha256="):
            continue
        if row[0].startswith("/") or ".." in row[0].split("/"):
            continue  # scripts outside site-packages; nothing leaves the folder
        found.append(_Entry(row[0], row[1][len("sha256=") :], int(row[2]) if row[2].isdigit() else None))
    return found


def _is_same(tree: Tree, site: str, entry: _Entry) -> bool:
    try:
        content = tree.bytes(f"{site}/{entry.path}")
    except OSError:
        return False
    if entry.size is not None and len(content) != entry.size:
        return False
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == entry.digest.rstrip("=")
