"""The manifest of a captured environment as a file: what it was, to the byte, when its machine is gone.

``envspecs/manifests/HOST.json``: what was read where and when, then a file or link a line, so that two
captures compare in a review.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from hostenv.document import (
    InvalidValueError,
    day,
    integer,
    list_of,
    mapping_of,
    optional,
    read,
    read_text,
    table_of,
    text,
)
from hostenv.errors import InputError
from hostenv.facts.manifest import Entry, Manifest, TreeFacts

if TYPE_CHECKING:
    import datetime as dt
    import pathlib
    from collections.abc import Iterable, Mapping

    from hostenv.document import Node, Table

VERSION = 1
_MODE, _SHA256 = re.compile(r"0[0-7]{3}"), re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedManifest:
    """A manifest, and what it is of.

    ``venv`` is the environment's path on ``host``, ``build`` its id where hostenv built it. ``stale`` is
    bytecode that matches no source and that Python does not run, ``script_forms`` what its Python scripts
    are, by path; a file that was written before there were such has none.
    """

    host: str
    venv: str
    build: str | None
    taken: dt.date
    tree: TreeFacts
    manifest: Manifest
    stale: frozenset[str] = frozenset()
    script_forms: Mapping[str, str] = field(default_factory=dict)

    def run_regardless(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the bytecode among ``paths`` that Python runs whatever its source says."""
        there = (path for path in paths if path.endswith(".pyc") and path in self.manifest.entries)
        return frozenset(there) - self.stale

    def scripts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """Return what the Python scripts among ``paths`` are."""
        return {path: self.script_forms[path] for path in paths if path in self.script_forms}

    @classmethod
    def load(cls, path: pathlib.Path) -> SavedManifest:
        """Read a file; raises :class:`InputError` where it is none, or was changed by hand."""
        try:
            document = json.loads(read_text(path))
        except OSError as error:
            hint = "nox -s capture -- HOST writes envspecs/manifests/HOST.json"
            raise InputError(f"{path}: {error.strerror}", hint=hint) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is no manifest: {error}") from error
        saved = read(document, table_of(cls._from_table), document=str(path))
        if saved.tree.fingerprint not in {None, saved.manifest.fingerprint}:
            raise InputError(
                f"{path}: its lines have the fingerprint {saved.manifest.fingerprint}, its head says "
                f"{saved.tree.fingerprint}: it was changed",
                hint="take it from the repository's history, or capture again",
            )
        return saved

    @classmethod
    def _from_table(cls, table: Table) -> SavedManifest:
        if table.get("version", integer) != VERSION:
            table.problem("version", f"must be {VERSION}")
        files, stale = table.get("files", list_of(_line)), table.get("stale", list_of(text))
        counts = Counter(path for path, _ in files) if table.sound else Counter[str]()
        twice = [path for path, count in counts.items() if count > 1]
        if twice:
            table.problem("files", f"{twice[0]!r} is there more than once")
        return cls(
            host=table.get("host", text),
            venv=table.get("venv", text),
            build=table.get("build", optional(text)),
            taken=table.get("taken", day),
            tree=table.get("tree", table_of(TreeFacts.from_table)),
            stale=frozenset(stale if table.sound else ()),
            script_forms=table.get("scripts", mapping_of(text), {}),
            manifest=Manifest.from_entries(dict(files) if table.sound else {}),
        )

    def render(self) -> str:
        """Return the file's text: the same for the same environment."""
        head = {
            "version": VERSION,
            "host": self.host,
            "venv": self.venv,
            "build": self.build,
            "taken": self.taken.isoformat(),
            "tree": {**asdict(self.tree), "read": 0},
            "stale": sorted(self.stale),
            "scripts": dict(sorted(self.script_forms.items())),
        }
        lines = [json.dumps(_parts(path, entry)) for path, entry in self.manifest.entries.items()]
        return f'{json.dumps(head, indent=1)[:-2]},\n "files": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def _parts(path: str, entry: Entry) -> list[object]:
    if entry.target is not None:
        return [path, entry.target]
    return [path, f"{entry.mode:04o}", entry.size, entry.sha256]


def _line(node: Node) -> tuple[str, Entry]:
    """Read one line of ``files``."""
    match node.value:
        case [str(path), str(target)]:
            return _path(path), Entry(0, 0, "", _name(target))
        case [str(path), str(mode), int(size), str(sha256)] if (
            _MODE.fullmatch(mode) and _SHA256.fullmatch(sha256) and size is not True and size is not False
        ):
            if size < 0:
                raise InvalidValueError(f"the size must not be negative, is {size}")
            return _path(path), Entry(int(mode, 8), size, sha256)
    raise InvalidValueError('must be ["PATH", "MODE", SIZE, "SHA256"] or ["PATH", "TARGET"]')


def _path(path: str) -> str:
    """Check a path: relative, in its shortest form, inside the environment."""
    if path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/")):
        raise InvalidValueError(f"{path!r} is no path below the environment")
    return _name(path)


def _name(name: str) -> str:
    """Check that a file system can hold a name; undecodable bytes are surrogate escapes (PEP 383)."""
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidValueError(f"{name!r} holds a surrogate that no file name decodes to") from None
    if not raw or b"\0" in raw:
        raise InvalidValueError(f"{name!r} is no file name")
    return name
