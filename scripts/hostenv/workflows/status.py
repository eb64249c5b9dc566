"""The state of hosts at this moment, side by side, one round trip each."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import InputError, RefusedError
from hostenv.facts.fact import Fact
from hostenv.facts.host_saved import SavedFacts
from hostenv.facts.host_status import HostStatus
from hostenv.machine.fleet import run_on_hosts
from hostenv.machine.reach import Reach
from hostenv.steps.identity import Seen, require_identity

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from hostenv.errors import HostenvError
    from hostenv.machine.fleet import Result, Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.rules import Waiver
    from hostenv.spec.spec import Spec

SOON = dt.timedelta(days=14)
"""How long before its last day a waiver is told as expiring."""


NEVER_SAVED = "never saved"
"""Why the age of facts is unknown on a host that was never probed with ``--save``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusOptions:
    """How to ask. ``timeout`` is seconds a host; ``now`` is when ages are reckoned from."""

    jobs: int = 16
    timeout: float = 30.0
    smi_seconds: float = 8.0
    ssh_config: pathlib.Path | None = None
    python: str | None = None
    now: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLine:
    """What is known of one host now.

    ``identity`` says what differs from the spec's identity, ``None``: nothing. ``facts_age`` is that of the
    saved facts. ``expiring`` are waivers that end soon or have ended.
    """

    name: str
    spec: Spec
    seconds: float
    facts_age: Fact[dt.timedelta]
    expiring: tuple[Waiver, ...]
    status: HostStatus | None = None
    identity: str | None = None
    error: HostenvError | None = None


def status(fleet: Fleet, specs: Sequence[Spec], options: StatusOptions) -> tuple[HostLine, ...]:
    """Ask the hosts of ``specs``; a host that fails has its error in its line."""
    wanted = {spec.name: spec for spec in specs}
    now = options.now or dt.datetime.now(dt.UTC)

    def work(spec: Spec, turn: Turn) -> tuple[HostStatus, str | None]:
        return _read(fleet, spec, turn, options)

    results = run_on_hosts(wanted, work, jobs=options.jobs, timeout=options.timeout)
    return tuple(_line(fleet, wanted[name], result, now) for name, result in results.items())


def _read(fleet: Fleet, spec: Spec, turn: Turn, options: StatusOptions) -> tuple[HostStatus, str | None]:
    reach = Reach(spec, specs=fleet.specs.values(), ssh_config=options.ssh_config, python=options.python)
    turn.ends_with(reach.close)
    with reach:
        answer = reach.agent.call(
            "probe.status",
            root=str(spec.host.root),
            link=str(spec.host.link) if spec.host.link else None,
            units=[spec.service.unit] if spec.service and spec.service.unit else [],
            smi_seconds=options.smi_seconds,
        )
        host_key = reach.host_key
    read = HostStatus.from_answer(answer, spec.name)
    seen = Seen(machine_id=read.state.machine_id, host_key=host_key)
    return read, _identity(spec, seen, fleet)


def _identity(spec: Spec, seen: Seen, fleet: Fleet) -> str | None:
    """Return what a writing session would say of the machine, whether it may write there or not."""
    try:
        require_identity(spec.as_managed(), seen, fleet.specs.values())
    except RefusedError as error:
        return error.message
    return None


def _line(
    fleet: Fleet, spec: Spec, result: Result[tuple[HostStatus, str | None]], now: dt.datetime
) -> HostLine:
    read, identity = result.value or (None, None)
    return HostLine(
        name=spec.name,
        spec=spec,
        seconds=result.seconds,
        facts_age=_facts_age(fleet.facts_path(spec), now),
        expiring=tuple(each for each in spec.checks.allow if each.until - now.date() <= SOON),
        status=read,
        identity=identity,
        error=result.error,
    )


def _facts_age(path: pathlib.Path, now: dt.datetime) -> Fact[dt.timedelta]:
    if not path.exists():
        return Fact(how=str(path), unknown=NEVER_SAVED)
    try:
        saved = SavedFacts.load(path)
    except InputError as error:
        return Fact(how=str(path), unknown=error.message)
    return saved.age(now)
