"""A spec: all that one file of ``envspecs/`` says about one host, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostenv.document import list_of, table_of
from hostenv.spec import words
from hostenv.spec.environment import Build, Env, Platform, Supply
from hostenv.spec.host import Gpus, Host, Identity, Mode, Transport
from hostenv.spec.rules import Capture, Checks, Model, OverlayUse, Reference, Service, System

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostenv.document import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What is wanted on one host.

    ``name`` is the file's name without ``.toml``, ``path`` the file. ``classes`` are the classes that it
    extends, nearest first. ``lock_owner`` names the lock: the nearest of host and classes that says
    something of its own to the resolver, so that the hosts of a class share one lock. ``overlays_of`` is the
    file that its list of overlays is from; ``left_out`` what its own ``overlays`` and ``patches``
    leave out of its classes' lists, which they replace.
    """

    name: str
    path: Path
    classes: tuple[str, ...]
    lock_owner: str
    tags: tuple[str, ...]
    host: Host
    identity: Identity | None
    gpus: Gpus | None
    capture: Capture | None
    supply: Supply
    build: Build
    env: Env
    platform: Platform
    overlays: tuple[OverlayUse, ...]
    reference: Reference | None
    system: System
    checks: Checks
    models: tuple[Model, ...]
    service: Service | None
    overlays_of: str | None = None
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_table(  # noqa: PLR0913  what the file does not say itself, by keyword
        cls,
        table: Table,
        *,
        name: str,
        path: Path,
        classes: tuple[str, ...] = (),
        lock_owner: str | None = None,
        overlays_of: str | None = None,
        left_out: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Spec:
        """Read a spec whose classes are already merged into it."""
        spec = cls(
            name=name,
            path=path,
            classes=classes,
            lock_owner=lock_owner or name,
            tags=table.get("tags", list_of(words.tag), ()),
            host=table.get("host", table_of(lambda host: Host.from_table(host, name=name))),
            identity=table.get("identity", table_of(Identity.from_table), None),
            gpus=table.get("gpus", table_of(Gpus.from_table), None),
            capture=table.get("capture", table_of(Capture.from_table), None),
            supply=table.get("supply", table_of(Supply.from_table), Supply()),
            build=table.get("build", table_of(Build.from_table), Build()),
            env=table.get("env", table_of(Env.from_table), Env()),
            platform=table.get("platform", table_of(Platform.from_table), Platform()),
            overlays=table.get("overlays", list_of(table_of(OverlayUse.from_table)), ()),
            reference=table.get("reference", table_of(Reference.from_table), None),
            system=table.get("system", table_of(System.from_table), System()),
            checks=table.get("checks", table_of(Checks.from_table), Checks()),
            models=table.get("models", list_of(table_of(Model.from_table)), ()),
            service=table.get("service", table_of(Service.from_table), None),
            overlays_of=overlays_of,
            left_out=left_out or {},
        )
        if table.sound:
            spec._check(table)
        return spec

    @property
    def is_local(self) -> bool:
        """Whether the host is the machine that hostenv runs on."""
        return self.host.transport is Transport.LOCAL

    def as_managed(self) -> Spec:
        """Return the spec as one that may be written to: for the identity's guard over what only reads."""
        return replace(self, host=replace(self.host, mode=Mode.MANAGE))

    def lock_name(self, *, python: str, arch: str) -> str:
        """Return the lock's file name for a Python like ``3.12`` and an architecture as uname calls it."""
        return f"{self.lock_owner}.cp{python.replace('.', '')}-{arch}.txt"

    def _check(self, table: Table) -> None:
        if self.identity and self.identity.host_key is None and not self.is_local:
            table.problem("identity", "needs host-key beside machine-id: probe prints both")
        names = [overlay.name for overlay in self.overlays]
        for index, name in enumerate(names):
            if name in names[:index]:
                table.problem("overlays", f'"{name}" is named twice', index=index)
        if self.reference and self.reference.host == self.name:
            table.problem("reference", "a host cannot be its own reference")
