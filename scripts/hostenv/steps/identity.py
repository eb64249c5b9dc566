"""The guard before every write: is this the machine that the spec means, and may it be written to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import RefusedError
from hostenv.spec.host import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostenv.spec.host import Identity
    from hostenv.spec.spec import Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a host says of itself: /etc/machine-id, and the fingerprint of the host key that it showed.

    ``None`` is unknown; the host key of this machine is, since no SSH was spoken.
    """

    machine_id: str | None
    host_key: str | None


def require_managed(spec: Spec) -> None:
    """Raise :class:`RefusedError` where the spec forbids every write: asked before the host is."""
    if spec.host.mode is Mode.OBSERVE:
        raise RefusedError(
            f'{spec.name}: host.mode is "observe": no session may write there',
            hint=f'set mode = "manage" in {spec.path.name} if hostenv shall manage it',
        )


def require_identity(spec: Spec, seen: Seen, specs: Iterable[Spec]) -> None:
    """Return when ``seen`` is the machine that ``spec`` means; asked after reaching it, before any write.

    Machine id and host key must both match. GPUs are no part of it: a container and its host share them.
    ``specs`` are all specs, so that the refusal can name the one that the machine belongs to. A host behind
    SSH needs an identity in its spec; ``local`` does not. Raises :class:`RefusedError`.
    """
    require_managed(spec)
    if spec.identity is None:
        if spec.is_local:
            return
        raise RefusedError(
            f"{spec.name}: its spec has no [identity], so no session may write there",
            hint=f"if this is the right machine, put into {spec.path.name}:\n{_lines(seen)}",
        )
    wrong = _differences(spec.identity, seen)
    if not wrong:
        return
    owner = next((other.name for other in specs if other.identity and _is(other.identity, seen)), None)
    told = f": this is {owner}" if owner and owner != spec.name else ""
    raise RefusedError(
        f"{spec.name}: wrong machine{told}; {'; '.join(wrong)}",
        hint=f'"{spec.host.address}" leads elsewhere than {spec.path.name} says: correct the SSH alias, '
        f"or [identity] after a reinstallation:\n{_lines(seen)}",
    )


def _differences(wanted: Identity, seen: Seen) -> list[str]:
    pairs = [("machine-id", wanted.machine_id, seen.machine_id)]
    if wanted.host_key:
        pairs.append(("host-key", wanted.host_key, seen.host_key))
    return [
        f"{key}: the spec says {expected}, the host {found or 'does not say'}"
        for key, expected, found in pairs
        if expected != found
    ]


def _is(identity: Identity, seen: Seen) -> bool:
    """Tell whether an identity is that of the seen machine; a cloned machine id alone does not suffice."""
    return not _differences(identity, seen)


def _lines(seen: Seen) -> str:
    machine_id = seen.machine_id or "unknown: see /etc/machine-id there"
    lines = ["[identity]", f'machine-id = "{machine_id}"']
    if seen.host_key:
        lines.append(f'host-key = "{seen.host_key}"')
    return "\n".join(f"    {line}" for line in lines)
