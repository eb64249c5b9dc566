"""The commits of a git checkout on this host, each as a patch. Reads only: git is told to take no locks."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any, Dict, List

from hostenv.agent.wire import AgentError, Wire

_REVISIONS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+~^-]*\.\.[A-Za-z0-9][A-Za-z0-9._/+~^-]*\Z")
_FIELDS = "%H%x00%an <%ae>%x00%s%x00%b"


def commits(wire: Wire, *, folder: str, revisions: str, strip: str = "") -> List[Dict[str, Any]]:
    """Return the commits of ``BASE..BRANCH`` that touch files below ``strip``, oldest first.

    Each has ``commit``, ``author``, ``subject``, ``body`` and ``diff``: git's, with paths relative to
    ``strip``, renames as removals and additions. Merges are refused: a series has one order. So are files
    that were changed and not committed. Raises :class:`AgentError` with git's words.
    """
    del wire
    if not _REVISIONS.match(revisions) or strip.startswith(("/", "-")) or ".." in strip.split("/"):
        raise AgentError(f"{revisions!r} below {strip!r} is not BASE..BRANCH below a folder", outcome="input")
    if _git(folder, "log", "--format=%H", "--merges", revisions, "--"):
        message = f"{folder}: {revisions} holds merges: a series has one order"
        raise AgentError(message, hint="rebase the branch onto its base", outcome="refused")
    dirty = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", strip or ".")
    if dirty:
        message = f"{folder} holds changes that are not committed:\n{dirty.decode(errors='replace').rstrip()}"
        raise AgentError(message, hint="commit them to the branch, or put them away", outcome="refused")
    found = []
    for commit in _git(folder, "rev-list", "--reverse", revisions, "--").decode().split():
        relative = (f"--relative={strip.rstrip('/')}",) if strip else ()
        diff = _git(
            folder,
            *(
                "show",
                "--format=",
                "--no-color",
                "--no-ext-diff",
                "--no-textconv",
                "--no-renames",
                "--binary",
            ),
            *("--full-index", "--src-prefix=a/", "--dst-prefix=b/", *relative, commit, "--"),
        )
        if diff:
            fields = _git(folder, "show", "-s", f"--format={_FIELDS}", commit, "--").decode(errors="replace")
            name, author, subject, body = (fields.split("\0") + [""] * 4)[:4]
            found.append(
                {
                    "commit": name,
                    "author": author,
                    "subject": subject,
                    "body": body.strip(),
                    "diff": diff.decode("latin-1"),
                }
            )
    return found


def _git(folder: str, *words: str) -> bytes:
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "core.fsmonitor",  # a checkout's own setting would run a program
        "GIT_CONFIG_VALUE_1": "false",
        "GIT_PAGER": "cat",
    }
    argv = ("git", "-C", folder, *words)
    try:
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise AgentError(f"cannot run git: {error.strerror}", hint="install git there") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise AgentError(f"git {words[0]} in {folder} failed: {said}", outcome="input")
    return done.stdout
