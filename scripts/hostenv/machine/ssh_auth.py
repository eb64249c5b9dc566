"""Logging in with keys, as OpenSSH would and without ever asking for a secret."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import paramiko

from hostenv.errors import UnreachableError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from hostenv.machine.ssh_config import Destination

_LOG = logging.getLogger(__name__)

_UNUSABLE = (OSError, ValueError, paramiko.SSHException)


class KeyLogin:
    """Tries the keys of a destination in OpenSSH's order: the agent's first, then files.

    ``authenticate`` is what paramiko's client calls once the host key is trusted. With IdentitiesOnly the
    agent's other keys are not offered. A key with a passphrase is used only through the agent.
    """

    def __init__(self, name: str, destination: Destination) -> None:
        self._name = name
        self._destination = destination
        self._locked: list[pathlib.Path] = []
        self._tried: list[str] = []

    def authenticate(self, transport: Any) -> None:
        """Log in over ``transport`` or raise :class:`UnreachableError` that says what was tried."""
        user = self._destination.user
        with contextlib.closing(_AgentKeys(self._destination.identity_agent)) as agent:
            for label, key in self._candidates(agent):
                self._tried.append(label)
                try:
                    further = transport.auth_publickey(user, key)
                except paramiko.BadAuthenticationType as error:
                    raise self._refused(f"it takes only {', '.join(error.allowed_types)}") from error
                except (paramiko.SSHException, EOFError, OSError) as error:
                    _LOG.debug("%s: %s: %s", self._name, label, error)
                    if not transport.is_active():
                        raise self._refused("it closed the connection (too many keys offered?)") from error
                    continue
                if further:
                    raise self._refused(f"it wants more than a key: {', '.join(further)}")
                return
        raise self._refused("no key was accepted" if self._tried else "there is no key to offer")

    def _candidates(self, agent: _AgentKeys) -> Iterator[tuple[str, Any]]:
        files = [path for path in self._destination.identity_files if path.exists()]
        wanted = {blob for path in self._named_files(files) if (blob := _public_blob(path))}
        held = agent.keys()
        named = [key for key in held if key.asbytes() in wanted or key.blob in wanted]
        for key in named:
            yield f"agent key {key.get_name()} {key.comment}".rstrip(), key
        if not self._destination.identities_only:
            for key in held:
                if key not in named:
                    yield f"agent key {key.get_name()} {key.comment}".rstrip(), key
        in_agent = {key.asbytes() for key in named}
        for path in files:
            if _public_blob(path) not in in_agent:
                yield from self._file_keys(path)

    def _named_files(self, files: list[pathlib.Path]) -> list[pathlib.Path]:
        """Return the key files of the configuration; a ``.pub`` alone names a key that the agent holds."""
        absent = [path for path in self._destination.identity_files if path not in files]
        return [*files, *(path for path in absent if path.with_name(path.name + ".pub").exists())]

    def _file_keys(self, path: pathlib.Path) -> Iterator[tuple[str, Any]]:
        """Yield the key in a file with each certificate that may belong to it, then the plain key."""
        certificates = [path.with_name(path.name + "-cert.pub"), *self._destination.certificate_files]
        for certificate in certificates:
            if certificate.exists() and (key := self._load(path)):
                try:
                    key.load_certificate(str(certificate))
                except _UNUSABLE:
                    continue  # of another type of key
                yield f"certificate {certificate}", key
        if key := self._load(path):
            key.public_blob = None  # the library attaches a certificate that lies beside the key
            yield f"key {path}", key

    def _load(self, path: pathlib.Path) -> Any:
        try:
            return paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):  # what cryptography raises for a passphrase
            if path not in self._locked:
                self._locked.append(path)
        except _UNUSABLE as error:
            _LOG.debug("%s: cannot use %s: %s", self._name, path, error)
        return None

    def _refused(self, why: str) -> UnreachableError:
        tried = f" (tried {'; '.join(self._tried)})" if self._tried else ""
        if self._locked:
            hint = "a passphrase is never asked for; give the key to the agent: ssh-add " + " ".join(
                str(path) for path in self._locked
            )
        else:
            hint = f"log in once by hand to see what is missing: ssh {self._destination.alias}"
        return UnreachableError(
            f"{self._name}: cannot log in as {self._destination.user}: {why}{tried}", hint=hint
        )


class _AgentKeys:
    """The keys that an ssh-agent holds; none where there is no agent behind the socket."""

    def __init__(self, path: str | None) -> None:
        self._agent: Any = None
        if not path:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(10.0)
            connection.connect(path)
            self._agent = paramiko.agent.AgentSSH()
            self._agent._connect(connection)  # noqa: SLF001  the library knows only SSH_AUTH_SOCK, not IdentityAgent
        except (OSError, paramiko.SSHException) as error:
            connection.close()
            self._agent = None
            _LOG.debug("no agent at %s: %s", path, error)

    def keys(self) -> list[Any]:
        """Return the keys in the agent's order."""
        return list(self._agent.get_keys()) if self._agent else []

    def close(self) -> None:
        """Leave the agent."""
        if self._agent:
            self._agent._close()  # noqa: SLF001  as above


def _public_blob(path: pathlib.Path) -> bytes | None:
    """Return the public key that lies beside a private one, without opening the private one."""
    public = path.with_name(path.name + ".pub")
    try:
        blob: bytes = paramiko.PublicBlob.from_file(os.fspath(public)).key_blob
    except (*_UNUSABLE, IndexError):
        return None
    return blob
