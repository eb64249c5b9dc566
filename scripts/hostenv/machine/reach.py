"""Reaching the host of a spec, whichever way it is reached."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from hostenv.machine import bulk
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport
from hostenv.spec.host import Become

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostenv.machine.agent import Agent
    from hostenv.machine.ssh import SshTransport
    from hostenv.spec.spec import Spec

PYTHON = "python3"
"""The interpreter that runs the agent on a host behind SSH: what it is called on every PATH."""


class Reach:
    """A host with a running agent, and the way to more of them.

    ``specs`` are all specs, so that a refused host key can be named. ``agent`` runs on the first connection;
    ``host_key`` is the fingerprint of the key that the host has shown and that was trusted, ``None`` for this
    machine. Raises what :class:`~hostenv.machine.ssh.SshTransport` raises.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        specs: Iterable[Spec] = (),
        ssh_config: pathlib.Path | None = None,
        python: str | None = None,
    ) -> None:
        self._spec = spec
        self._python = python or (sys.executable if spec.is_local else PYTHON)
        self._stack = contextlib.ExitStack()
        self._transport: LocalTransport | SshTransport
        if spec.is_local:
            self._transport = LocalTransport(spec.name)
        else:
            from hostenv.machine.ssh import Address, open_ssh  # noqa: PLC0415  fabric takes 0.2 s to import

            address = Address(alias=spec.host.address, user=spec.host.user, ssh_config=ssh_config)
            pinned = spec.identity.host_key if spec.identity else None
            self._transport = open_ssh(spec.name, address, host_key=pinned, owners=_owners(specs))
        self._agents: list[Agent] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            opening.callback(self.close)
            self._agents = [self._start(self._transport)]
            opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.close()

    @property
    def agent(self) -> Agent:
        """The agent on the first connection."""
        return self._agents[0]

    @property
    def name(self) -> str:
        """The host's name."""
        return self._spec.name

    @property
    def host_key(self) -> str | None:
        """The fingerprint of the host key that was trusted."""
        return self._transport.host_key if not isinstance(self._transport, LocalTransport) else None

    def close(self) -> None:
        """Drop every connection; may be called from another thread to end what waits for the host."""
        self._transport.close()

    def streams(self, size: int) -> Sequence[Agent]:
        """Return the agents that a transfer of ``size`` bytes should use, each on its own connection.

        More than one only within the spec's ``connections`` and where the round trip makes it worthwhile.
        """
        allowed = self._spec.host.connections
        if allowed == 1 or isinstance(self._transport, LocalTransport):
            return self._agents[:1]
        wanted = bulk.worthwhile_connections(allowed, bulk.measure_round_trip(self.agent), size)
        missing = max(0, wanted - len(self._agents))
        more = [
            self._stack.enter_context(contextlib.closing(self._transport.another())) for _ in range(missing)
        ]
        if more:  # side by side: a login takes ten round trips
            with ThreadPoolExecutor(missing, thread_name_prefix="login") as pool:
                self._agents += list(pool.map(self._start, more))
        return self._agents[:wanted]

    def send_files(
        self,
        source: pathlib.Path,
        destination: str,
        files: Sequence[bulk.File],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, str]:
        """Put files on the host: :func:`hostenv.machine.bulk.send_files`."""
        agents = self.streams(sum(file.size for file in files))
        return bulk.send_files(agents, source, destination, files, on_progress=on_progress)

    def receive_files(
        self,
        source: str,
        destination: pathlib.Path,
        files: Sequence[bulk.File],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, str]:
        """Fetch files from the host: :func:`hostenv.machine.bulk.receive_files`."""
        agents = self.streams(sum(file.size for file in files))
        return bulk.receive_files(agents, source, destination, files, on_progress=on_progress)

    def _start(self, transport: LocalTransport | SshTransport) -> Agent:
        prefix = ("sudo", "-n", "--") if self._spec.host.become is Become.SUDO else ()
        return self._stack.enter_context(agent_on(transport, python=self._python, prefix=prefix))


def _owners(specs: Iterable[Spec]) -> dict[str, str]:
    """Return the specs' names by the host keys that they pin."""
    return {spec.identity.host_key: spec.name for spec in specs if spec.identity and spec.identity.host_key}
