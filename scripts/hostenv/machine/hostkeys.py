"""Whether a host's key may be trusted: known_hosts files, a pinned key, and nothing else."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostenv.errors import RefusedError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping, Sequence

CERT_AUTHORITY, REVOKED = "@cert-authority", "@revoked"
_FIELDS = 3
_OTHER_MACHINE = "another machine answers under this address, or it was reinstalled; if the latter is certain"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostKey:
    """A host's public key: its type (``ssh-ed25519``) and its bytes on the wire."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The key as ``ssh-keygen -l`` shows it: ``SHA256:`` and 43 characters."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def line(self, name: str) -> str:
        """Return the known_hosts line that lists this key for ``name``."""
        return f"{name} {self.type} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownHost:
    """One line of a known_hosts file (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""

    file: pathlib.Path
    number: int
    marker: str
    patterns: tuple[str, ...]
    key: HostKey

    def lists(self, name: str) -> bool:
        """Tell whether the line is about ``name``; a negated pattern that matches excludes it."""
        if any(_matches(pattern[1:], name) for pattern in self.patterns if pattern.startswith("!")):
            return False
        return any(_matches(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Which key a host may show.

    ``name`` is what known_hosts calls it, ``known`` the lines of known_hosts, ``pinned`` the fingerprint in
    the spec. ``owners`` are the specs' names by the fingerprints they pin, to say whose key is shown instead.
    ``file`` is where a key that is to be trusted would be written.
    """

    name: str
    known: Sequence[KnownHost] = ()
    pinned: str | None = None
    owners: Mapping[str, str] = field(default_factory=dict)
    file: pathlib.Path | None = None

    def key_types(self) -> tuple[str, ...]:
        """Return the types of the trusted keys: what to ask the host for first."""
        entries = [entry for entry in self.known if entry.lists(self.name) and not entry.marker]
        if self.pinned:
            entries = [entry for entry in entries if entry.key.fingerprint == self.pinned]
        return tuple(dict.fromkeys(entry.key.type for entry in entries))


def read_known_hosts(files: Iterable[pathlib.Path]) -> tuple[KnownHost, ...]:
    """Return the lines of known_hosts files that name a key; files that do not exist hold none.

    A line that is no known_hosts line is skipped, as OpenSSH does: it can only make a host unknown.
    """
    found = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise RefusedError(f"{file}: cannot read known host keys: {error.strerror}") from error
        for number, line in enumerate(text.splitlines(), 1):
            if known := _parse_line(file, number, line):
                found.append(known)
    return tuple(found)


def require_trusted(host: str, offered: HostKey, trust: Trust) -> None:
    """Return when ``offered`` is the key that ``host`` shall show; raise otherwise.

    A pinned key wins over known_hosts; a key marked ``@revoked`` is never trusted. Lines of certificate
    authorities are read past: hostenv verifies plain keys. Raises :class:`RefusedError` with the fingerprints
    and the command that would trust the key.
    """
    about = [entry for entry in trust.known if entry.lists(trust.name)]
    for entry in about:
        if entry.marker == REVOKED and entry.key.blob == offered.blob:
            raise RefusedError(
                f"{host}: its host key {offered.fingerprint} is revoked in {entry.file}:{entry.number}",
                hint="whoever answers there holds a key that is known to be lost; do not connect",
            )
    if trust.pinned:
        _require_pinned(host, offered, trust)
        return
    plain = [entry for entry in about if not entry.marker]
    if any(entry.key == offered for entry in plain):
        return
    if plain:
        raise _changed(host, trust, offered, plain)
    raise _unknown(host, trust, offered)


def _parse_line(file: pathlib.Path, number: int, line: str) -> KnownHost | None:
    fields = line.split()
    marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
    if len(fields) < _FIELDS or fields[0].startswith("#"):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except binascii.Error:
        return None
    key = HostKey(type=fields[1], blob=blob)
    return KnownHost(file=file, number=number, marker=marker, patterns=tuple(fields[0].split(",")), key=key)


def _matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern matches: ``|1|salt|hash`` is an HMAC-SHA1 of the name, ``*`` and ``?`` match."""
    if pattern.startswith("|1|"):
        _, _, salt, digest = [*pattern.split("|"), ""][:4]
        try:
            expected = base64.b64decode(digest, validate=True)
            computed = hmac.new(base64.b64decode(salt, validate=True), name.lower().encode(), "sha1").digest()
        except binascii.Error:
            return False
        return hmac.compare_digest(computed, expected)
    literal = pattern.replace("[", "[[]")  # a port's brackets are no character set
    return fnmatch.fnmatchcase(name.lower(), literal.lower())


def _require_pinned(host: str, offered: HostKey, trust: Trust) -> None:
    if trust.pinned == offered.fingerprint:
        return
    owner = trust.owners.get(offered.fingerprint)
    told = f": this is {owner}" if owner else ""
    line = f'host-key = "{offered.fingerprint}"'
    raise RefusedError(
        f"{host}: wrong host key{told}; the spec pins {trust.pinned}, the host shows {offered.fingerprint}",
        hint=f"{_OTHER_MACHINE}, put\n    {line}\n    under [identity] of its spec",
    )


def _unknown(host: str, trust: Trust, offered: HostKey) -> RefusedError:
    return RefusedError(
        f"{host}: unknown host key {offered.type} {offered.fingerprint} ({trust.name})",
        hint="compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on its console; to trust it:\n"
        f"    {_trust_command(trust, offered)}\n"
        f'    or put host-key = "{offered.fingerprint}" under [identity] of its spec',
    )


def _changed(host: str, trust: Trust, offered: HostKey, known: Sequence[KnownHost]) -> RefusedError:
    listed = ", ".join(
        f"{entry.key.type} {entry.key.fingerprint} ({entry.file}:{entry.number})" for entry in known
    )
    files = tuple(dict.fromkeys(entry.file for entry in known))
    forget = "; ".join(shlex.join(("ssh-keygen", "-R", trust.name, "-f", str(file))) for file in files)
    return RefusedError(
        f"{host}: CHANGED host key: known is {listed}; the host shows {offered.type} {offered.fingerprint}",
        hint=f"{_OTHER_MACHINE}:\n    {forget}; {_trust_command(trust, offered)}",
    )


def _trust_command(trust: Trust, offered: HostKey) -> str:
    file = shlex.quote(str(trust.file)) if trust.file else "~/.ssh/known_hosts"
    return f"echo {shlex.quote(offered.line(trust.name))} >> {file}"
