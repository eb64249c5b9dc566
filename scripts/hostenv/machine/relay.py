"""A relay: a machine between the controller and a host, through which bulk data goes."""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING

from hostenv.errors import RefusedError
from hostenv.machine import bulk
from hostenv.machine.agent import agent_on, argv
from hostenv.machine.reach import PYTHON
from hostenv.spec.host import Become, Mode

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hostenv.machine.agent import Agent
    from hostenv.spec.spec import Spec

HOME = "~/.cache/hostenv"
"""Where a relay keeps what passes through it."""


class Relay:
    """A relay with a running agent; ``root`` is :data:`HOME` there, absolute."""

    def __init__(self, agent: Agent, root: str) -> None:
        self.agent = agent
        self.root = root

    def send_files(
        self,
        source: pathlib.Path,
        destination: str,
        files: Sequence[bulk.File],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, str]:
        """Put files on the relay: :func:`hostenv.machine.bulk.send_files`."""
        return bulk.send_files([self.agent], source, destination, files, on_progress=on_progress)


@contextlib.contextmanager
def relay_at(alias: str, specs: Iterable[Spec]) -> Iterator[Relay]:
    """Reach a relay for the length of a ``with`` block, its host key checked as strictly as a host's.

    Where a spec has ``alias`` as its address, its identity must match and its mode must not be ``observe``:
    wheels are kept there. Raises :class:`RefusedError` then, and what SSH raises.
    """
    from hostenv.machine.ssh import Address, open_ssh  # noqa: PLC0415  fabric takes 0.2 s to import

    spec = next((each for each in specs if each.host.address == alias and not each.is_local), None)
    if spec and spec.host.mode is Mode.OBSERVE:
        raise RefusedError(
            f'{alias} cannot be a relay: {spec.path.name} says mode = "observe", and wheels are kept there',
            hint='set its mode to "manage", or choose another supply.via',
        )
    identity = spec.identity if spec else None
    pinned = identity.host_key if identity else None
    user = spec.host.user if spec else None
    transport = open_ssh(f"relay {alias}", Address(alias=alias, user=user), host_key=pinned)
    with transport, agent_on(transport, python=PYTHON) as agent:
        state = agent.call("root.state", root=HOME)
        found = state["machine"]["machine_id"]
        if identity and identity.machine_id != found:
            raise RefusedError(
                f"relay {alias}: wrong machine: its machine-id is {found}, {spec and spec.path.name} says "
                f"{identity.machine_id}"
            )
        yield Relay(agent, state["root"])


def onward(spec: Spec) -> tuple[str, ...]:
    """Return the ssh command that starts an agent on a host, to be run on a relay: it asks nothing, ever.

    The relay's own configuration and known_hosts decide how the host's address is reached from there.
    """
    prefix = ("sudo", "-n", "--") if spec.host.become is Become.SUDO else ()
    options = ("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=15", "ServerAliveInterval=15")
    words = [word for option in options for word in ("-o", option)]
    user = ("-l", spec.host.user) if spec.host.user else ()
    return ("ssh", *words, *user, "--", spec.host.address, shlex.join(argv(PYTHON, prefix)))
