"""What a capture writes beside series and overlays: the host's own spec and its manifest."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hostenv.agent.files import write_file
from hostenv.document import read, table_of
from hostenv.errors import InputError, RefusedError
from hostenv.facts.manifest_saved import SavedManifest
from hostenv.spec.spec import Spec
from hostenv.steps.capturedspec import Left, NewHost, completed

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from hostenv.facts.manifest import Manifest
    from hostenv.spec.fleet import Fleet
    from hostenv.workflows.environment import Environment
    from hostenv.workflows.session import Session
    from hostenv.workflows.taking import Reading

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def with_new_hosts(session: Session) -> Session:
    """Return the session with a spec for each word that names none: an SSH alias, whose host is only read.

    Only where ``--venv`` says what to read there; else the words are judged as everywhere.
    """
    fleet = session.fleet
    new = [word for word in session.request.hosts if word not in fleet.specs and _ALIAS.fullmatch(word)]
    if not (new and session.request.venv):
        return session
    specs = {word: _unwritten(fleet, word) for word in new}
    return replace(session, fleet=replace(fleet, specs={**fleet.specs, **specs}))


def _unwritten(fleet: Fleet, alias: str) -> Spec:
    path = fleet.folder / f"{alias}.toml"
    values = {"host": {"address": alias, "root": "~/hostenv", "mode": "observe"}}
    reader = table_of(lambda table: Spec.from_table(table, name=alias, path=path))
    return read(values, reader, document=f"envspecs/{path.name}")


class Description:
    """The spec and the manifest of one captured host; nothing is written before :meth:`write`."""

    def __init__(
        self, folder: pathlib.Path, reading: Reading, *, class_name: str, saved: SavedManifest
    ) -> None:
        self._saved = saved
        self._spec = folder / f"{saved.host}.toml"
        self._manifest = folder / "manifests" / f"{saved.host}.json"
        self._is_new = not self._spec.exists()
        self._text = self._completed(reading, class_name)

    def _completed(self, reading: Reading, class_name: str) -> str | Left:
        venv = None if self._saved.build else reading.venv
        if not self._is_new:
            return completed(self._spec.read_text(encoding="utf-8"), class_name, venv)
        seen = NewHost(
            address=reading.spec.host.address,
            machine_id=reading.state.machine_id,
            host_key=reading.reach.host_key,
        )
        return completed(seen.render(reading.venv), class_name, None)

    def plan(self) -> Iterator[str]:
        """Say what becomes of both."""
        if isinstance(self._text, Left):
            yield f"keep     envspecs/{self._spec.name}: {self._text.value}"
        elif self._is_changed():
            yield f"spec     envspecs/{self._spec.name}: {'new' if self._is_new else 'takes the class'}"
        if not self._is_same():
            files = len(self._saved.manifest.entries)
            yield f"manifest envspecs/manifests/{self._manifest.name}: {files} files"

    def write(self) -> None:
        """Write both; what is there and says the same stays as it is."""
        if not isinstance(self._text, Left):
            write_changed(self._spec, self._text)
        if not self._is_same():
            self._manifest.parent.mkdir(exist_ok=True)
            write_changed(self._manifest, self._saved.render())

    def notes(self, class_name: str) -> Iterator[str]:
        """Say what was written, and how it is used."""
        if isinstance(self._text, Left):
            yield (
                f"envspecs/{self._spec.name} was left as it is, since {self._text.value}; "
                f'to take what was captured, let it and its targets say: extends = "classes/{class_name}"'
            )
        else:
            yield f'envspecs/{self._spec.name} has it by extends = "classes/{class_name}"; so have targets'
        where = f"envspecs/manifests/{self._manifest.name}"
        yield f"manifest: {where}; nox -s match -- TARGET --manifest {where} holds a target against it"

    def _is_changed(self) -> bool:
        return self._is_new or self._spec.read_text(encoding="utf-8") != self._text

    def _is_same(self) -> bool:
        try:
            there = SavedManifest.load(self._manifest)
        except InputError:
            return False
        same = (there.venv, there.build, there.stale, there.script_forms) == (
            self._saved.venv,
            self._saved.build,
            self._saved.stale,
            self._saved.script_forms,
        )
        return same and there.manifest.canonical == self._saved.manifest.canonical


def saved_manifest(
    environment: Environment, manifest: Manifest, run_regardless: frozenset[str]
) -> SavedManifest:
    """Return an environment's manifest as a file keeps it."""
    compiled = {path for path in manifest.entries if path.endswith(".pyc")}
    return SavedManifest(
        host=environment.place.spec.name,
        venv=environment.look.path,
        build=environment.look.build,
        taken=dt.datetime.now(dt.UTC).date(),
        tree=environment.tree,
        stale=frozenset(compiled - run_regardless),
        script_forms=environment.scripts(path for path, each in manifest.entries.items() if not each.target),
        manifest=manifest,
    )


def write_changed(path: pathlib.Path, text: str) -> None:
    """Write a file, whole or not at all; one that says the same stays as it is."""
    content = text.encode()
    if not path.exists() or path.read_bytes() != content:
        write_file(str(path), content)


def require_new_machine(fleet: Fleet, reading: Reading) -> None:
    """Raise :class:`RefusedError` where a host that no file names is the machine of one that does."""
    for spec in fleet.specs.values():
        identity = spec.identity
        if spec.name == reading.spec.name or identity is None:
            continue
        if identity.machine_id == reading.state.machine_id or (
            identity.host_key and identity.host_key == reading.reach.host_key
        ):
            raise RefusedError(
                f"{reading.spec.name} is the machine of envspecs/{spec.name}.toml",
                hint=f"nox -s capture -- {spec.name} --venv {reading.venv}",
            )
