"""Running uv on the controller: the uv of hostenv's own environment, with clean settings."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from hostenv.errors import HostError, SupplyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log = logging.getLogger(__name__)

_REACH = re.compile(
    r"UV_(CACHE_DIR|CONFIG_FILE|DEFAULT_INDEX|EXTRA_INDEX_URL|FIND_LINKS|INDEX|INDEX_STRATEGY|INDEX_URL"
    r"|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)|INSECURE_HOST|KEYRING_PROVIDER|NATIVE_TLS|NO_CONFIG|OFFLINE"
    r"|SYSTEM_CERTS|CREDENTIALS_DIR|(HTTP|REQUEST)_[A-Z_]+|CONCURRENT_[A-Z]+)"
)
"""What of uv's variables says how an index is reached. The others (UV_PYTHON and UV_PROJECT of the session
that runs us, UV_CONSTRAINT, UV_PRERELEASE, UV_EXCLUDE_NEWER …) would change what is resolved."""

_SCRUBBED = re.compile(r"UV_.*|VIRTUAL_ENV|CONDA_.*|PYTHON.*")

_DRAWN = re.compile(r"^[^A-Za-z0-9`(\[]+")
"""What earlier releases of uv draw at the start of an explanation's lines."""

_USERINFO = re.compile(r"(?<=//)[^/\s]+@")
"""Up to the last ``@`` before the path: a password may hold one."""

_QUERY = re.compile(r"(?<=://)([^\s?]*\?)\S+?(?=[^\w\s]*(?:\s|$))")
"""The query of a URL, where tokens are; without what closes a quotation of it."""

_DIES_WITH_US = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])\n"
)
"""Starts a program that is killed when this process is: PR_SET_PDEATHSIG (prctl(2)) stays over an exec. In a
process of its own, since subprocess's ``preexec_fn`` may deadlock in a process with threads."""


class UvError(SupplyError):
    """uv ended with an error. ``said`` is all that it wrote, without credentials."""

    def __init__(self, message: str, *, said: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.said = said


def binary() -> pathlib.Path:
    """Return the uv that lies in the environment hostenv runs in; never another found on PATH."""
    import uv  # noqa: PLC0415  not needed before something is resolved

    try:
        return pathlib.Path(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise SupplyError(
            "the uv of hostenv's own environment is not there",
            hint="make the environment again: remove .nox/_nox_script_mode, or pip install uv",
        ) from error


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables uv runs with: ``inherited`` less all that would change a resolution.

    The system's certificates are trusted, as by pip, unless the user decided otherwise.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if _REACH.fullmatch(name) or not _SCRUBBED.fullmatch(name)
    }
    if "UV_NATIVE_TLS" not in kept:
        kept.setdefault("UV_SYSTEM_CERTS", "1")
    return kept | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "LC_ALL": "C"}


def run(arguments: Sequence[str], *, folder: pathlib.Path) -> str:
    """Run ``uv ARGUMENTS`` in ``folder`` and return its standard output.

    ``folder`` should be one that hostenv made: uv reads settings from the folders above it. Raises
    :class:`UvError` with the cause that uv gives, :class:`HostError` where no process can be started.
    """
    argv = (str(binary()), *arguments, "--color", "never")
    _log.info("%s", without_credentials(shlex.join(argv)))
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-S", "-c", _DIES_WITH_US, str(os.getpid()), *argv),
            cwd=folder,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise HostError(f"uv cannot be started here: {error.strerror}", hint="see ulimit -a") from error
    if done.returncode:
        told = cause(done.stderr) or f"exit {done.returncode}, nothing said"
        raise UvError(f"uv: {told}", said=without_credentials(done.stderr))
    return done.stdout


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder of its own for one call of uv."""
    return tempfile.TemporaryDirectory(prefix="hostenv-uv-")


def cause(stderr: str) -> str:
    """Shorten uv's explanation to what is wrong: one line, no drawing, no credentials.

    uv 0.13 writes ``error: …``, ``  cause: …`` with continuation lines, then hints. Kept are the chain of an
    unsatisfiable requirement without what follows from it, or what failed and its deepest cause.
    """
    body = without_credentials(stderr).split("\nhint:")[0]
    lines = [_DRAWN.sub("", line).strip() for line in body.splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith("warning:"))
    said = [part.strip() for part in re.split(r"(?:^| )(?:error|cause): ", text) if part.strip()]
    because = [part for part in said if part.startswith("Because ")]
    if because:
        return _without_conclusions(because[0])
    fetched = [part for part in said if part.startswith("Failed to fetch")]
    return ": ".join(dict.fromkeys((*(fetched or said)[:1], *said[-1:])))


def without_credentials(text: str) -> str:
    """Return ``text`` with the user name, the password and the query of every URL taken out."""
    return _QUERY.sub(r"\1…", _USERINFO.sub("", text))


def _without_conclusions(because: str) -> str:
    text = re.sub(r",? we can conclude that your requirements are unsatisfiable\.?$", "", because)
    text = re.sub(r",? we can conclude that .*?\. And because ", "; and ", text)
    return text.removeprefix("Because ")
