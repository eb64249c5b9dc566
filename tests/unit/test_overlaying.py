"""Laying one overlay, as the agent does it: what its own files, and what lies there already, do not allow."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

import pytest

from hostenv.agent.overlaying import lay_overlays
from hostenv.agent.store import Store
from hostenv.agent.wire import AgentError
from kit.environment import distribution, make_environment

INFO = "kernel-1.0.dist-info"


def overlay(store: pathlib.Path, files: dict[str, str | bytes], version: str = "1.0") -> dict[str, Any]:
    """Put contents into a store and return the overlay that names them."""
    listed = []
    for path, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        sha256 = hashlib.sha256(raw).hexdigest()
        place = pathlib.Path(Store(str(store)).path(sha256))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(raw)
        listed.append((path, "kernel", 0o644, len(raw), sha256))
    named = [{"name": "kernel", "version": version}]
    return {"name": "ours", "distributions": named, "files": listed, "links": []}


def lay(tmp_path: pathlib.Path, files: dict[str, str | bytes], version: str = "1.0") -> pathlib.Path:
    """Lay an overlay of ``files`` into an environment that has a folder ``kernel``."""
    env = make_environment(tmp_path / "env", {"kernel/folder/a.py": ""})
    described = overlay(tmp_path / "store", files, version)
    lay_overlays(str(env), [described], Store(str(tmp_path / "store")), clone=False)
    return env


def test_a_distribution_is_laid_as_its_record_says(tmp_path: pathlib.Path) -> None:
    env = lay(tmp_path, distribution("kernel", "1.0", {"kernel/a.py": "A = 1\n"}))
    (found,) = env.glob("lib/python3*/site-packages/kernel/a.py")
    assert found.read_text() == "A = 1\n"


@pytest.mark.parametrize(
    ("more", "version", "said"),
    [
        ({}, "2.0", rf"overlay ours: {INFO}/METADATA is of kernel 1\.0"),
        ({"kernel/folder": "no folder"}, "1.0", r"kernel/folder: an overlay would lay it"),
        (
            {f"{INFO}/entry_points.txt": "[console_scripts]\na\0b = m:f\n"},
            "1.0",
            rf"{INFO}/entry_points\.txt: .* is not 'name = module:function'",
        ),
        (
            {f"{INFO}/RECORD": '"' + "x" * 140_000 + '",,\n'},
            "1.0",
            rf"overlay ours: {INFO}/RECORD line 1 is not CSV",
        ),
    ],
)
def test_what_cannot_be_laid_is_told_with_its_path(
    tmp_path: pathlib.Path, more: dict[str, str | bytes], version: str, said: str
) -> None:
    with pytest.raises(AgentError, match=said):
        lay(tmp_path, distribution("kernel", "1.0", {"kernel/a.py": ""}) | more, version)


def test_what_the_system_refuses_is_told_with_the_whole_path(tmp_path: pathlib.Path) -> None:
    path = f"kernel/{'x' * 300}"
    with pytest.raises(OSError, match="too long") as caught:
        lay(tmp_path, distribution("kernel", "1.0", {}) | {path: ""})
    assert str(caught.value.filename).endswith(f"site-packages/{path}")
    assert str(caught.value.filename).startswith(str(tmp_path))
