"""Where a wheel lies, and who is let in there."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from hostenv.agent.wheelhouse import Wheel


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One wheel and the place to have it from: an http, https or file URL without credentials.

    ``sha256`` is in hex, ``size`` in bytes. The URL is not shown: an index may put a token into it.
    """

    sha256: str
    filename: str
    size: int
    url: str = field(repr=False)

    @property
    def wheel(self) -> Wheel:
        """The wheel, as a wheelhouse knows it."""
        return Wheel(self.sha256, self.filename, self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A name and a password; neither is ever shown."""

    user: str = field(repr=False)
    password: str = field(repr=False)


Logins = Mapping[str, Login]
"""Login by origin, as :func:`origin` writes it."""

_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """Return scheme, host and port of a URL: whom a login belongs to (RFC 6454)."""
    parts = urllib.parse.urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def split_login(url: str) -> tuple[str, Login | None]:
    """Return a URL without its user name and password, and these apart."""
    parts = urllib.parse.urlsplit(url)
    userinfo, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = userinfo.partition(":")
    login = Login(user=urllib.parse.unquote(user), password=urllib.parse.unquote(password))
    return parts._replace(netloc=place).geturl(), login
