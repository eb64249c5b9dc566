"""Reaching a host by SSH: strict host keys, no questions, one connection for all channels."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import shlex
import socket
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import fabric
import paramiko

from hostenv.errors import HostenvError, InputError, RefusedError, UnreachableError
from hostenv.machine import hostkeys
from hostenv.machine.keepalive import Keepalive
from hostenv.machine.proxy_command import ProxyProcess
from hostenv.machine.ssh_auth import KeyLogin
from hostenv.machine.ssh_channel import LOST, SshChannel
from hostenv.machine.ssh_config import Destination, parse_jump, resolve_alias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

for _library in ("fabric", "invoke", "paramiko"):  # nox sets the root logger to DEBUG: 120 lines a command
    logging.getLogger(_library).setLevel(logging.CRITICAL)

LONGEST_CHAIN = 8
"""Hops of ProxyJump after which the configuration is taken for a loop."""

_OTHER_KEY_TYPES = ("ecdsa-sha2-nistp256", "ssh-rsa")
_LOGIN_TIMEOUT = 30.0
"""Seconds that a login may take: PAM, LDAP and a key in hardware are slower than a TCP handshake."""

_FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class SshTransport:
    """A host behind SSH. It connects on first use; commands run side by side on one connection.

    ``trust`` says which key the host may show, beside what the known_hosts files of ``destination`` list.
    Raises :class:`RefusedError` for a host key that is not trusted, a gateway's too, and
    :class:`UnreachableError` for everything else that keeps it from the host. Thread safe.
    """

    def __init__(
        self,
        name: str,
        destination: Destination,
        *,
        trust: hostkeys.Trust | None = None,
        gateway: SshTransport | None = None,
        owns_gateway: bool = True,
    ) -> None:
        self.name = name
        self._destination = destination
        self._trust = trust or hostkeys.Trust(name=destination.host_key_name)
        self._gateway = gateway
        self._owns_gateway = owns_gateway
        self._connecting = threading.Lock()
        self._connection: Any = None
        self._keepalive: Keepalive | None = None
        self._proxy: ProxyProcess | None = None
        self._offered: hostkeys.HostKey | None = None
        self._lost: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def host_key(self) -> str:
        """The fingerprint of the host key that was shown and trusted; connects where need be."""
        self.connect()
        return self._offered.fingerprint if self._offered else ""

    def connect(self) -> None:
        """Connect and log in; nothing where that is done."""
        with self._connecting:
            if self._lost:
                raise self.unreachable(self._lost)
            if not self._connection:
                self._connect()

    def open(self, argv: Sequence[str]) -> SshChannel:
        """Start ``argv`` in a channel of its own."""
        self.connect()
        timeout = self._destination.connect_timeout
        try:
            session = self._connection.transport.open_session(timeout=timeout)
            session.settimeout(None)
            session.exec_command(shlex.join(argv))
        except LOST as error:
            raise self.unreachable(f"cannot start a command: {_reason(error)}") from error
        return SshChannel(session, self)

    def another(self) -> SshTransport:
        """Return a further connection to the same host, through the same gateway's connection."""
        return SshTransport(
            self.name,
            self._destination,
            trust=self._trust,
            gateway=self._gateway,
            owns_gateway=False,
        )

    def close(self) -> None:
        """Give up the connection, and the gateway's with it; idempotent, from any thread."""
        self._lost = self._lost or "the connection was closed"
        if self._keepalive:
            self._keepalive.stop()
        if self._connection:
            self._connection.client.close()
        self._end_proxy()
        if self._gateway and self._owns_gateway:
            self._gateway.close()

    def _end_proxy(self) -> None:
        if self._proxy:
            self._proxy.close()
            self._proxy = None

    def lost(self) -> str | None:
        """Say why the connection is no more; ``None`` while it stands."""
        if self._lost:
            return self._lost
        if self._connection and not self._connection.transport.is_active():
            return "the connection was lost"
        return None

    def _connect(self) -> None:
        files = self._destination.known_hosts_files
        known = hostkeys.read_known_hosts(files)
        written = next((file for file in files if file != pathlib.Path(os.devnull)), None)
        trust = replace(self._trust, known=known, file=written)
        preferred = trust.key_types()
        try:
            connection = self._opened(trust, preferred)
        except RefusedError:
            # The pinned key may be of another type than the one that the host shows first.
            others = _OTHER_KEY_TYPES if self._offered and trust.pinned and not preferred else ()
            connection = self._opened_with_any(trust, others)
            if not connection:
                raise
        self._connection = connection
        if self._lost:  # given up meanwhile, from another thread
            connection.client.close()
            raise self.unreachable(self._lost)
        self._watch()

    def _opened_with_any(self, trust: hostkeys.Trust, key_types: Sequence[str]) -> Any:
        for key_type in key_types:
            with contextlib.suppress(RefusedError):
                return self._opened(trust, [key_type])
        return None

    def _opened(self, trust: hostkeys.Trust, preferred: Sequence[str]) -> Any:
        connection = fabric.Connection(
            host=self._destination.hostname,
            user=self._destination.user,
            port=self._destination.port,
            # A configuration of its own, from nothing: no fabric.yaml, no environment, no ssh_config.
            config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
            gateway=False,
            connect_timeout=max(1, round(self._destination.connect_timeout)),
            connect_kwargs=self._connect_arguments(preferred),
        )
        connection.client.set_missing_host_key_policy(_StrictPolicy(self, trust))
        try:
            connection.open()
        except HostenvError:
            connection.client.close()
            raise
        except LOST as error:
            connection.client.close()
            unknown = isinstance(error, socket.gaierror)
            raise self.unreachable(_reason(error), hint=self._where() if unknown else None) from error
        return connection

    def _connect_arguments(self, preferred: Sequence[str]) -> dict[str, Any]:
        timeout = self._destination.connect_timeout
        arguments: dict[str, Any] = {
            "auth_strategy": KeyLogin(self.name, self._destination),
            "transport_factory": _transport_factory(preferred),
            "banner_timeout": timeout,
            "auth_timeout": max(timeout, _LOGIN_TIMEOUT),
        }
        if self._gateway:
            arguments["sock"] = self._gateway.forward(self._destination)
        elif self._destination.proxy_command:
            self._end_proxy()
            self._proxy = ProxyProcess(self.name, self._destination.proxy_command)
            arguments["sock"] = self._proxy.socket
        return arguments

    def forward(self, destination: Destination) -> Any:
        """Return a stream from this host to ``destination`` (``direct-tcpip``, RFC 4254 7.2)."""
        self.connect()
        place = (destination.hostname, destination.port)
        try:
            return self._connection.transport.open_channel(
                "direct-tcpip", place, ("", 0), timeout=destination.connect_timeout
            )
        except LOST as error:
            raise UnreachableError(
                f"{destination.alias}: the gateway {self.name} cannot reach "
                f"{destination.hostname}:{destination.port}: {_reason(error)}"
            ) from error

    def check_host_key(self, key: Any, trust: hostkeys.Trust) -> None:
        """Raise :class:`RefusedError` unless the key that the host shows is trusted."""
        self._offered = hostkeys.HostKey(type=key.get_name(), blob=key.asbytes())
        hostkeys.require_trusted(self.name, self._offered, trust)

    def _watch(self) -> None:
        transport = self._connection.transport
        with contextlib.suppress(AttributeError, OSError):  # a gateway's channel, a proxy's socket pair
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask() -> None:
            try:
                transport.global_request("keepalive@openssh.com", wait=True)
            except LOST as error:
                raise OSError(_reason(error)) from error
            if not transport.is_active():
                raise ConnectionResetError

        self._keepalive = Keepalive(
            ask,
            interval=self._destination.keepalive_interval,
            count=self._destination.keepalive_count,
            give_up=self._give_up,
        )
        self._keepalive.start()

    def _give_up(self, why: str) -> None:
        self._lost = why
        self._connection.transport.close()

    def unreachable(self, why: str, *, hint: str | None = None) -> UnreachableError:
        """Return the error that says where the connection leads and what is wrong with it."""
        place = f"{self._destination.user}@{self._destination.hostname}:{self._destination.port}"
        return UnreachableError(f"{self.name}: {place}: {why}", hint=hint)

    def _where(self) -> str:
        alias = shlex.quote(self._destination.alias)
        return f"`ssh -G {alias}` says where the alias leads: its HostName must be a name that resolves"


class _StrictPolicy:
    """What paramiko asks about every key, since its own store of known keys stays empty."""

    def __init__(self, transport: SshTransport, trust: hostkeys.Trust) -> None:
        self._transport = transport
        self._trust = trust

    def missing_host_key(self, client: object, hostname: str, key: Any) -> None:
        """Raise unless ``key`` is trusted; paramiko then ends the connection before any login."""
        del client, hostname
        self._transport.check_host_key(key, self._trust)


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """How a spec names a host to SSH: an alias, and what wins over the configuration's user and port.

    ``ssh_config`` replaces the user's and the system's configuration file (``ssh -F``).
    """

    alias: str
    user: str | None = None
    port: int | None = None
    ssh_config: pathlib.Path | None = None

    def resolve(self) -> Destination:
        """Ask OpenSSH what the address means."""
        return resolve_alias(self.alias, user=self.user, port=self.port, config=self.ssh_config)


def open_ssh(
    name: str, address: Address, *, host_key: str | None = None, owners: Mapping[str, str] | None = None
) -> SshTransport:
    """Return the transport to the host at ``address``, through the gateways that OpenSSH would take.

    Nothing is contacted before the first use. ``name`` is the host's name in ``envspecs/``; ``host_key``
    the fingerprint that its spec pins, ``owners`` the names of all specs by the fingerprints that they pin.
    Raises :class:`InputError` for an alias that means nothing.
    """
    destination = address.resolve()
    gateway = _gateway(name, destination.proxy_jump, address.ssh_config, LONGEST_CHAIN)
    trust = hostkeys.Trust(name=destination.host_key_name, pinned=host_key, owners=owners or {})
    return SshTransport(name, destination, trust=trust, gateway=gateway)


def _gateway(
    name: str, hops: Sequence[str], ssh_config: pathlib.Path | None, left: int
) -> SshTransport | None:
    """Return the transport of the last hop, which goes through the hops before it."""
    if not hops:
        return None
    if not left:
        raise InputError(f"{name}: ProxyJump through {hops[-1]} leads in a circle")
    alias, user, port = parse_jump(hops[-1])
    destination = Address(alias=alias, user=user, port=port, ssh_config=ssh_config).resolve()
    before = _gateway(name, hops[:-1] or destination.proxy_jump, ssh_config, left - 1)
    return SshTransport(f"{name} (gateway {alias})", destination, gateway=before)


def _transport_factory(preferred: Sequence[str]) -> Any:
    """Return what makes paramiko's transport: AES-GCM first, and the types of trusted host keys first."""

    def make(sock: Any, **arguments: Any) -> Any:
        transport = paramiko.Transport(sock, **arguments)
        options = transport.get_security_options()
        options.ciphers = _first(_FAST_CIPHERS, options.ciphers)
        wanted = [name for key_type in preferred for name in _algorithms(key_type)]
        options.key_types = _first(wanted, options.key_types)
        return transport

    return make


def _algorithms(key_type: str) -> tuple[str, ...]:
    """Return the signature algorithms of a type of key (RFC 8332 gives RSA keys two more)."""
    return ("rsa-sha2-512", "rsa-sha2-256") if key_type == "ssh-rsa" else (key_type,)


def _first(wanted: Sequence[str], offered: Sequence[str]) -> tuple[str, ...]:
    available = [name for name in wanted if name in offered]
    return (*available, *(name for name in offered if name not in available))


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return "; ".join(dict.fromkeys(each.strerror or str(each) for each in error.errors.values()))
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return str(error) or type(error).__name__
