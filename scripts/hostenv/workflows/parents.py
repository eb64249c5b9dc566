"""The machines that containers run on: who is to be probed beside the hosts that were asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hostenv.spec.environment import Supply
from hostenv.spec.host import Become, Mode
from hostenv.spec.rules import Checks, System

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Parents:
    """``extra`` are specs of parents that nobody asked for; ``names`` maps each container to its parent's."""

    extra: tuple[Spec, ...]
    names: Mapping[str, str]


def parents_of(fleet: Fleet, specs: Sequence[Spec]) -> Parents:
    """Return the parents that the specs name (``host.container.parent``, an SSH alias).

    A parent with a spec of its own is probed as that says, another with its alias as all that is known.
    """
    known = {spec.host.address: spec for spec in (*fleet.specs.values(), *specs) if not spec.is_local}
    asked = {spec.name for spec in specs}
    extra: dict[str, Spec] = {}
    names: dict[str, str] = {}
    for spec in specs:
        alias = spec.host.container.parent if spec.host.container else None
        if alias is None:
            continue
        parent = known.get(alias) or _bare(spec, alias, fleet)
        names[spec.name] = parent.name
        if parent.name not in asked:
            extra.setdefault(parent.name, parent)
    return Parents(extra=tuple(extra.values()), names=names)


def _bare(container: Spec, alias: str, fleet: Fleet) -> Spec:
    """Return a spec that says nothing but how a machine is reached, and that it is only read."""
    host = replace(
        container.host,
        address=alias,
        user=None,
        become=Become.NONE,
        root=PurePosixPath("~/hostenv"),
        link=None,
        mode=Mode.OBSERVE,
        container=None,
    )
    return replace(
        container,
        name=f"ssh:{alias}" if alias in fleet.specs else alias,
        tags=(),
        host=host,
        identity=None,
        gpus=None,
        capture=None,
        supply=Supply(),
        system=System(),
        checks=Checks(),
        models=(),
        service=None,
    )
