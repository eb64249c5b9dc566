"""What an SSH alias means, asked of OpenSSH itself."""

from __future__ import annotations

import getpass
import os
import pathlib
import pwd
import re
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a host where the configuration says nothing; TCP alone would wait two minutes."""

KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 15.0, 3
"""Seconds between two questions to a silent host, and how many may stay unanswered, where the
configuration says nothing (ServerAliveInterval, ServerAliveCountMax)."""

DEFAULT_PORT = 22
_ANSWER_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """Where an alias leads and how one logs in there; the words of ssh_config(5)."""

    alias: str
    hostname: str
    port: int = DEFAULT_PORT
    user: str
    identity_files: tuple[pathlib.Path, ...] = ()
    certificate_files: tuple[pathlib.Path, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str | None = None
    host_key_alias: str | None = None
    known_hosts_files: tuple[pathlib.Path, ...] = ()
    connect_timeout: float = CONNECT_TIMEOUT
    keepalive_interval: float = KEEPALIVE_INTERVAL
    keepalive_count: int = KEEPALIVE_COUNT

    @property
    def host_key_name(self) -> str:
        """The name that known_hosts lists this host under."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.hostname if self.port == DEFAULT_PORT else f"[{self.hostname}]:{self.port}"


def resolve_alias(
    alias: str, *, user: str | None = None, port: int | None = None, config: pathlib.Path | None = None
) -> Destination:
    """Ask ``ssh -G`` what ``alias`` means: Include, Match, canonical names and all.

    ``user`` and ``port`` win over the configuration, as they do on ssh's command line; ``config`` replaces
    the user's and the system's file (``ssh -F``). Raises :class:`InputError` when ssh is not there or does
    not accept the alias or its configuration.
    """
    if not alias or alias.startswith("-"):
        raise InputError(f"{alias!r} is no SSH alias")
    argv = ["ssh", "-G"]
    argv += ["-F", str(config)] if config else []
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    try:
        answer = subprocess.run(
            [*argv, "--", alias],
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_TIMEOUT,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"{alias}: no ssh on PATH to ask what the alias means", hint="install OpenSSH's client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{alias}: ssh -G did not answer in {_ANSWER_TIMEOUT:.0f} s",
            hint="a Match exec in the SSH configuration hangs",
        ) from error
    except subprocess.CalledProcessError as error:
        raise InputError(f"{alias}: ssh -G: {error.stderr.strip()}", hint=f"try: ssh -G {alias}") from error
    return parse_answer(alias, answer.stdout)


def parse_answer(alias: str, answer: str) -> Destination:
    """Return the destination that an answer of ``ssh -G`` describes.

    The answer has a keyword in lower case and its value on each line; a keyword that takes several values
    comes several times (``identityfile``) or with all of them on its line (``userknownhostsfile``).
    """
    values: dict[str, list[str]] = {}
    for line in answer.splitlines():
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword, []).append(value)
    try:
        tokens = _tokens(alias, values)
        return Destination(
            alias=alias,
            hostname=values["hostname"][0],
            port=int(values["port"][0]),
            user=values["user"][0],
            identity_files=_paths(values.get("identityfile", ()), tokens),
            certificate_files=_paths(values.get("certificatefile", ()), tokens),
            identities_only=values.get("identitiesonly") == ["yes"],
            identity_agent=_identity_agent(values, tokens),
            proxy_jump=tuple(_given(values, "proxyjump").split(",")) if _given(values, "proxyjump") else (),
            proxy_command=_expand(_given(values, "proxycommand"), tokens) or None,
            host_key_alias=_given(values, "hostkeyalias") or None,
            known_hosts_files=_known_hosts_files(values, tokens),
            connect_timeout=float(_given(values, "connecttimeout") or CONNECT_TIMEOUT),
            keepalive_interval=float(_given(values, "serveraliveinterval") or 0) or KEEPALIVE_INTERVAL,
            keepalive_count=int(_given(values, "serveralivecountmax") or KEEPALIVE_COUNT),
        )
    except (KeyError, ValueError) as error:
        raise InputError(f"{alias}: ssh -G answered what hostenv does not understand: {error}") from error


def parse_jump(hop: str) -> tuple[str, str | None, int | None]:
    """Return alias, user and port of one hop of ProxyJump: ``[user@]host[:port]`` or an ssh:// URI."""
    user, _, place = hop.removeprefix("ssh://").rpartition("@")
    if bracketed := re.fullmatch(r"\[([^]]+)\](?::(\d+))?", place):
        host, port = bracketed[1], bracketed[2]
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, None
    return host, user or None, int(port) if port else None


def _given(values: Mapping[str, Sequence[str]], keyword: str) -> str:
    value = next(iter(values.get(keyword, ())), "")
    return "" if value == "none" else value


def _tokens(alias: str, values: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Return the percent tokens of ssh_config(5) that may stand in a path or a ProxyCommand."""
    local_name = socket.gethostname()
    return {
        "%": "%",
        "d": _home(),
        "h": values["hostname"][0],
        "i": str(os.getuid()),
        "k": _given(values, "hostkeyalias") or alias,
        "L": local_name.partition(".")[0],
        "l": local_name,
        "n": alias,
        "p": values["port"][0],
        "r": values["user"][0],
        "u": getpass.getuser(),
    }


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _expand_path(text: str, tokens: Mapping[str, str]) -> str:
    named = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text)
    return re.sub(r"^~(?=/|$)", _home().replace("\\", r"\\"), _expand(named, tokens))


def _home() -> str:
    """Return the home folder that OpenSSH means by ``~``: the account's, whatever $HOME says."""
    return pwd.getpwuid(os.getuid()).pw_dir


def _paths(texts: Sequence[str], tokens: Mapping[str, str]) -> tuple[pathlib.Path, ...]:
    return tuple(pathlib.Path(_expand_path(text, tokens)) for text in texts if text != "none")


def _known_hosts_files(
    values: Mapping[str, Sequence[str]], tokens: Mapping[str, str]
) -> tuple[pathlib.Path, ...]:
    keywords = ("userknownhostsfile", "globalknownhostsfile")
    return _paths([name for keyword in keywords for name in _given(values, keyword).split()], tokens)


def _identity_agent(values: Mapping[str, Sequence[str]], tokens: Mapping[str, str]) -> str | None:
    """Return the agent's socket: IdentityAgent, else the environment's; ``None`` for no agent."""
    said = next(iter(values.get("identityagent", ())), "SSH_AUTH_SOCK")
    if said == "none":
        return None
    if said == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK")
    if re.fullmatch(r"\$\w+", said):
        return os.environ.get(said[1:])
    return _expand_path(said, tokens)
