"""systemd units and model folders: what serves here, and with which weights."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from hostenv.agent.probe.fact import Json, UnknownError
from hostenv.agent.probe.intime import Question, fact_question
from hostenv.agent.probe.masking import masked, masked_text

if TYPE_CHECKING:
    from hostenv.agent.probe.tree import Tree

_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
"""Where an operator's own units lie; a distribution's (/usr/lib) start no inference server."""
_SERVERS = re.compile(
    r"sglang|vllm|text-generation|tritonserver|lmdeploy|ollama|llama[-_]server|dflash", re.IGNORECASE
)
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
MOST_UNITS = 50


def units(tree: Tree, wanted: List[str]) -> Question:
    """Ask for the units whose name is wanted (shell patterns) or whose text names an inference server."""
    return fact_question(", ".join(_FOLDERS), _units, tree, wanted)


def _units(tree: Tree, wanted: List[str]) -> List[Json]:
    if not any(tree.is_folder(folder) for folder in _FOLDERS):
        raise UnknownError("no folder of systemd units is there")
    found: Dict[str, Json] = {}
    for folder in _FOLDERS:
        for name in tree.names(folder):
            if not name.endswith((".service", ".socket")) or name in found or len(found) >= MOST_UNITS:
                continue
            try:
                text = tree.text(f"{folder}/{name}", 1 << 18)
            except OSError:
                continue  # a link to nowhere is a masked or removed unit
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted) or _SERVERS.search(name + text):
                found[name] = _unit(tree, name, f"{folder}/{name}", text)
    return list(found.values())


def _unit(tree: Tree, name: str, path: str, text: str) -> Json:
    values = _settings(text)
    drop_ins = [f"{path}.d/{each}" for each in tree.names(f"{path}.d") if each.endswith(".conf")]
    enabled = any(
        name in tree.names(f"/etc/systemd/system/{target}.wants")
        for target in ("multi-user.target", "default.target", "graphical.target")
    )
    return {
        "name": name,
        "path": path,
        "enabled": enabled,
        "description": masked_text(values.get("Description", [""])[-1])[:200],
        "command": masked(_words(values.get("ExecStart", [""])[-1])),
        "user": values.get("User", [None])[-1],
        "environment_names": sorted(_environment_names(values.get("Environment", []))),
        "environment_files": values.get("EnvironmentFile", []),
        "drop_ins": drop_ins,
    }


def _settings(text: str) -> Dict[str, List[Any]]:
    joined = re.sub(r"\\\n\s*", " ", text)
    values: Dict[str, List[Any]] = {}
    for line in joined.splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.lstrip().startswith(("#", ";")):
            values.setdefault(name.strip(), []).append(value.strip())
    return values


def _words(command: str) -> List[str]:
    return [word.strip("\"'") for word in command.split()]


def _environment_names(lines: List[str]) -> List[str]:
    """Return the names that a unit sets; their values may be secrets and are never told."""
    return [name for line in lines for name in re.findall(r"""(?:^|[\s"'])([A-Za-z_]\w*)=""", line)]


def models(tree: Tree, paths: List[str]) -> List[Question]:
    """Return the question after each model folder that the spec names."""
    return [fact_question(path, _model, tree, path) for path in paths]


def _model(tree: Tree, path: str) -> Json:
    if not tree.is_folder(path):
        return {"path": path, "exists": False, "kind": None, "files": 0, "bytes": 0, "missing": []}
    names = tree.names(path)
    weights = [name for name in names if name.endswith(_WEIGHTS)]
    kind, shards = _config(tree, path, names)
    return {
        "path": path,
        "exists": True,
        "kind": kind,
        "files": len(weights),
        "bytes": sum(_size(tree, f"{path}/{name}") for name in weights),
        "missing": sorted(set(shards) - set(names))[:20],
    }


def _size(tree: Tree, path: str) -> int:
    try:
        return os.stat(tree.path(path)).st_size
    except OSError:
        return 0


def _config(tree: Tree, path: str, names: List[str]) -> Tuple[Any, List[str]]:
    """Return the architecture that ``config.json`` names and the shards that the index of weights lists."""
    kind, shards = None, []
    try:
        if "config.json" in names:
            architectures = json.loads(tree.text(f"{path}/config.json")).get("architectures")
            kind = ", ".join(map(str, architectures)) if isinstance(architectures, list) else None
        if "model.safetensors.index.json" in names:
            index = json.loads(tree.text(f"{path}/model.safetensors.index.json", 64 << 20))
            shards = list(index.get("weight_map", {}).values())
    except (ValueError, AttributeError) as error:
        raise UnknownError(f"not understood: {error}", path) from None
    return kind, shards
