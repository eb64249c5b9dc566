"""Which name and password belong to which index: from uv's settings and variables, as uv reads them.

uv takes them from an index's URL, or from ``UV_INDEX_NAME_USERNAME`` and ``UV_INDEX_NAME_PASSWORD`` for an
index that its settings name (docs.astral.sh/uv/concepts/indexes, "Authentication"). netrc is left to the
session that sends the request.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import tomllib
from typing import TYPE_CHECKING, Any

from hostenv.index.source import Login, origin, split_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMED = ("UV_INDEX", "UV_DEFAULT_INDEX")
_PLAIN = ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_NAME = re.compile(r"(?:([A-Za-z0-9_.-]+)=)?(\S+)")


def read_logins(environ: Mapping[str, str]) -> dict[str, Login]:
    """Return the logins that are known, by origin. An unreadable settings file is left to uv to report."""
    logins: dict[str, Login] = {}
    for name, url in (*_from_variables(environ), *_from_settings(environ)):
        place, login = split_login(url)
        variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
        user = environ.get(f"{variable}_USERNAME") if name else None
        password = environ.get(f"{variable}_PASSWORD") if name else None
        if user is not None or password is not None:
            login = Login(user=user or "", password=password or "")
        if login:
            with contextlib.suppress(ValueError):  # no URL: uv says so
                logins.setdefault(origin(place), login)
    return logins


def _from_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable in (*_NAMED, *_PLAIN):
        for word in re.split(r"[\s,]+", environ.get(variable, "")):
            match = _NAME.fullmatch(word) if variable in _NAMED else None
            if match:
                yield match[1] or "", match[2]
            elif word:
                yield "", word


def _from_settings(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for path in _settings_files(environ):
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        for table in (settings, settings.get("pip", {})):
            if isinstance(table, dict):
                yield from _indexes(table)


def _indexes(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for index in table.get("index", []):
        if isinstance(index, dict) and isinstance(index.get("url"), str):
            yield str(index.get("name", "")), index["url"]
    plain = [table.get("index-url"), *table.get("extra-index-url", []), *table.get("find-links", [])]
    yield from (("", url) for url in plain if isinstance(url, str))


def _settings_files(environ: Mapping[str, str]) -> Iterator[pathlib.Path]:
    """Yield the files uv reads: the one it is told, else the user's and the system's."""
    if environ.get("UV_CONFIG_FILE"):
        yield pathlib.Path(environ["UV_CONFIG_FILE"])
        return
    if environ.get("UV_NO_CONFIG", "").lower() in {"1", "true", "yes", "y", "on"}:
        return
    home = pathlib.Path(environ.get("HOME") or "/nonexistent")
    yield pathlib.Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield pathlib.Path(folder) / "uv/uv.toml"
    yield pathlib.Path("/etc/uv/uv.toml")
