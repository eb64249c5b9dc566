"""The fleet: every spec of ``envspecs/`` read and validated at once, and hosts chosen by words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hostenv.document import Problems, Source, did_you_mean, list_of, load_toml, table_of
from hostenv.errors import InputError
from hostenv.spec import words
from hostenv.spec.extends import Folder, overlaid
from hostenv.spec.host import Mode
from hostenv.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path, PurePath

FLEET_FILE = "fleet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All hosts. ``folder`` is ``envspecs/``; its siblings are ``patches/`` and ``overlays/``."""

    folder: Path
    specs: Mapping[str, Spec]
    default_hosts: tuple[str, ...]

    def select(self, chosen: Iterable[str]) -> tuple[Spec, ...]:
        """Return the specs that words name: a host, ``@tag`` or ``@all``.

        The order of the words is kept, within a tag that of names, and no host comes twice. Raises
        InputError that names every unknown word.
        """
        found: dict[str, Spec] = {}
        unknown = []
        for word in chosen:
            specs = self._named(word)
            found.update((spec.name, spec) for spec in specs)
            if not specs:
                unknown.append(self._unknown(word))
        if unknown:
            known = ", ".join([*self.specs, *(f"@{tag}" for tag in self.tags), "@all"])
            raise InputError("\n".join(unknown), hint=f"known: {known}")
        return tuple(found.values())

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag that some host carries, sorted."""
        return tuple(sorted({tag for spec in self.specs.values() for tag in spec.tags}))

    def lock_path(self, spec: Spec, *, python: str, arch: str) -> Path:
        """Return where the spec's lock for a platform lies, whether it exists or not."""
        return self.folder / "locks" / spec.lock_name(python=python, arch=arch)

    def facts_path(self, spec: Spec) -> Path:
        """Return where the saved facts of a host lie, whether they exist or not."""
        return self.folder / "facts" / f"{spec.name}.json"

    def _named(self, word: str) -> tuple[Spec, ...]:
        if word == "@all":
            return tuple(self.specs.values())
        if word.startswith("@"):
            return tuple(spec for spec in self.specs.values() if word[1:] in spec.tags)
        return (self.specs[word],) if word in self.specs else ()

    def _unknown(self, word: str) -> str:
        if word.startswith("@"):
            near = did_you_mean(word, (*(f"@{tag}" for tag in self.tags), "@all"))
            return f'no host carries the tag "{word}"{near}'
        return f'there is no host "{word}"{did_you_mean(word, self.specs)}'


def load_fleet(folder: Path) -> Fleet:
    """Read and validate every file of ``envspecs/``; raise DocumentError with all that is wrong in any."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}", hint="run from a clone of the repository")
    files = Folder(path=folder, problems=Problems())
    classes = files.names("classes/")
    for name in classes:
        _read_class(files, name)
    names = [name for name in files.names() if name != FLEET_FILE]
    specs = {name: spec for name in names if (spec := _read_spec(files, name))}
    defaults = _read_fleet_file(files)
    files.problems.raise_any()
    fleet = Fleet(folder=folder, specs=MappingProxyType(specs), default_hosts=defaults)
    _check_names(fleet, files, classes)
    _check_identities(fleet, files)
    _check_places(fleet, files)
    _check_mentions(fleet, files)
    files.problems.raise_any()
    return fleet


def _read_spec(files: Folder, name: str) -> Spec | None:
    merged = files.merged(name)
    if merged is None:
        return None
    return files.problems.read(
        merged.values,
        table_of(
            lambda table: Spec.from_table(
                table,
                name=name,
                path=files.path / f"{name}.toml",
                classes=merged.classes,
                lock_owner=merged.lock_owner,
                overlays_of=merged.source.child("overlays").document,
                left_out=merged.left_out,
            )
        ),
        source=merged.source,
    )


def _read_class(files: Folder, name: str) -> None:
    """Validate a class by itself, as a host with the least that a host must say; it may extend none."""
    merged = files.merged(name)
    if merged is None:
        return
    for key in ("identity", "capture"):
        if merged.values.pop(key, None) is not None:
            files.problems.add(merged.source.child(key).document, key, "belongs to one host, not to a class")
    if isinstance(host := merged.values.get("host"), dict) and "address" in host:
        source = merged.source.child("host").child("address")
        files.problems.add(source.document, "host.address", "belongs to one host, not to a class")
    least = {"host": {"root": "/srv/hostenv"}}
    values, source = overlaid(least, merged.source, merged.values, merged.source)
    reader = table_of(lambda table: Spec.from_table(table, name=name, path=files.path / f"{name}.toml"))
    files.problems.read(values, reader, source=source)


def _read_fleet_file(files: Folder) -> tuple[str, ...]:
    """Read ``fleet.toml``; without it no host is a default."""
    path = files.path / f"{FLEET_FILE}.toml"
    if not path.exists():
        return ()
    document = files.label(path.name)
    values = load_toml(path, document=document, problems=files.problems)
    if values is None:
        return ()
    reader = table_of(lambda table: table.get("default-hosts", list_of(words.line), ()))
    return files.problems.read(values, reader, source=Source(document))


def _check_names(fleet: Fleet, files: Folder, classes: tuple[str, ...]) -> None:
    """Check names, which become folders, keys and lock names: plain, and told apart whatever their case."""
    taken: dict[str, str] = {}
    for relative in (*classes, *fleet.specs):
        name = relative.rpartition("/")[2]
        document = files.label(f"{relative}.toml")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            files.problems.add(
                document, "", "a file's name must be of letters, digits, dots, dashes, underscores"
            )
        earlier = taken.setdefault(name.casefold(), document)
        if earlier != document:
            files.problems.add(document, "", f"has the same name as {earlier}")


_CLONED = {
    "machine-id": "; on a clone of a VM or template: rm /etc/machine-id && systemd-machine-id-setup, reboot, "
    "and correct its spec",
    "host-key": "; on a clone of a VM or template: rm /etc/ssh/ssh_host_* && ssh-keygen -A, restart sshd, "
    "and correct its spec",
}
"""What a clone shares with its template until somebody gives it its own."""


def _check_identities(fleet: Fleet, files: Folder) -> None:
    """Check that no two specs share a machine id or a host key: one host would be taken for the other."""
    first: dict[str, str] = {}
    for spec in fleet.specs.values():
        identity = spec.identity
        parts = {"machine-id": identity.machine_id, "host-key": identity.host_key} if identity else {}
        for key, value in parts.items():
            earlier = first.setdefault(value, spec.name) if value else spec.name
            if earlier != spec.name:
                document = files.label(f"{spec.name}.toml")
                why = f"is also that of {files.label(f'{earlier}.toml')}: two specs are one machine"
                files.problems.add(document, f"identity.{key}", why + _CLONED[key])


def _check_places(fleet: Fleet, files: Folder) -> None:
    """Check that no two environments of this machine lie in one place: each would switch the other's.

    However a place is spelled; links are not followed: nothing that this asks may hang on a dead mount.
    """
    first: dict[tuple[str, str], str] = {}
    for spec in fleet.specs.values():
        places = {"root": spec.host.root, "link": spec.host.link}
        for key, place in places.items():
            if place is None or not spec.is_local or spec.host.mode is not Mode.MANAGE:
                continue
            earlier = first.setdefault((key, _here(place)), spec.name)
            if earlier != spec.name:
                why = f"is also that of {files.label(f'{earlier}.toml')}: each environment needs its own"
                files.problems.add(files.label(f"{spec.name}.toml"), f"host.{key}", why)


def _here(place: PurePath) -> str:
    """Return a place of this machine in the one form that all its spellings have."""
    home = os.path.expanduser(place)  # noqa: PTH111  pathlib raises where there is no home folder
    return "/" + os.path.normpath(home).lstrip("/")  # "//a" is "/a" here


def _check_mentions(fleet: Fleet, files: Folder) -> None:
    """Check what files say of each other: references and default hosts exist, a build has contents."""
    for spec in fleet.specs.values():
        document = files.label(f"{spec.name}.toml")
        if spec.reference and spec.reference.host not in fleet.specs:
            why = f'there is no spec "{spec.reference.host}"{did_you_mean(spec.reference.host, fleet.specs)}'
            files.problems.add(document, "reference.host", why)
        if spec.host.mode is Mode.MANAGE and not spec.env.requires:
            files.problems.add(document, "env.requires", 'is empty: nothing to build (host.mode is "manage")')
    for index, word in enumerate(fleet.default_hosts):
        try:
            fleet.select([word])
        except InputError as error:
            files.problems.add(files.label(f"{FLEET_FILE}.toml"), f"default-hosts[{index}]", error.message)
