"""Folders that look like a virtual environment, made from a dict, without uv or an interpreter."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from hostenv.agent import tree
from hostenv.agent.wire import Wire

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

SITE = "lib/python3.12/site-packages"
CONFIGURATION = "home = /usr/bin\nversion_info = 3.12.1\nimplementation = CPython\n"


class SilentWire(Wire):
    """A wire for operations called in this process: it keeps what they send."""

    def __init__(self) -> None:
        super().__init__(-1, -1)
        self.sent = b""
        self.events: list[dict[str, object]] = []

    def send_data(self, piece: bytes | bytearray | memoryview) -> None:
        """Keep a piece."""
        self.sent += bytes(piece)

    def end_data(self) -> None:
        """Nothing waits for the end."""

    def event(self, **fields: object) -> None:
        """Keep an event."""
        self.events.append(fields)


def summary_of(
    root: pathlib.Path, *, cache: pathlib.Path | None = None, rehash: bool = False
) -> dict[str, Any]:
    """Return what the agent says of an environment without its manifest."""
    looked = tree.scan(str(root), cache=str(cache) if cache else None, rehash=rehash)
    return looked.summary(looked.canonical())


def make_environment(folder: pathlib.Path, site: Mapping[str, str | bytes] | None = None) -> pathlib.Path:
    """Make a venv-like folder with these files below ``site-packages`` and return its path."""
    (folder / SITE).mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to("/bin/sh")
    (folder / "bin/python3").symlink_to("python")
    (folder / "pyvenv.cfg").write_text(CONFIGURATION, encoding="utf-8")
    for path, content in (site or {}).items():
        put(folder / SITE / path, content)
    return folder


def put(path: pathlib.Path, content: str | bytes) -> pathlib.Path:
    """Write a file, its folders made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o644)
    return path


def distribution(  # noqa: PLR0913  each is one file of a dist-info
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: Sequence[str] = (),
    tags: Sequence[str] = ("py3-none-any",),
    requires_python: str | None = None,
) -> dict[str, str | bytes]:
    """Return the files of an installed distribution, dist-info and a true RECORD included."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    head += [f"Requires-Python: {requires_python}"] if requires_python else []
    whole: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": "\n".join([*head, *(f"Requires-Dist: {line}" for line in requires)]) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags),
        f"{info}/INSTALLER": "kit",
    }
    rows = [f"{path},{_hash(content)},{len(content)}" for path, content in whole.items()]
    return whole | {f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"}


def _hash(content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
