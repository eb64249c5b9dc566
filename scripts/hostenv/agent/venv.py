"""The venv of a build, made by uv from wheels that lie on this host: no index, no settings, no compiler."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.layout import Layout

RENDERED = "hostenv-"
"""Prefix of the folders in uv's cache that hold what uv is told to install."""

FICLONE = 0x40049409
"""ioctl(2) request that shares a file's extents, linux/fs.h."""


class Uv:
    """One uv executable, called so that nothing of the login or the machine changes what it does."""

    def __init__(self, executable: str, cache: str, descriptors: Sequence[int]) -> None:
        self._executable = executable
        self._cache = cache
        self._descriptors = tuple(descriptors)

    def create(self, path: str, python: str) -> None:
        """Make an empty, relocatable venv for the interpreter at ``python``."""
        self._run("venv", "--no-project", "--relocatable", "--python", python, path)

    def install(self, path: str, wheels: List[Dict[str, Any]], mode: str) -> None:
        """Install exactly ``wheels``, each by its path and hash; whatever else is there goes."""
        self._install(("sync", "--allow-empty-requirements"), path, wheels, mode)

    def reinstall(self, path: str, wheel: Dict[str, Any], mode: str) -> None:
        """Remove one installed distribution and install it again from ``wheel``."""
        self._install(("install", "--no-deps", "--reinstall", "-r"), path, [wheel], mode)

    def _install(self, words: Sequence[str], path: str, wheels: List[Dict[str, Any]], mode: str) -> None:
        with tempfile.TemporaryDirectory(prefix=RENDERED, dir=self._cache) as folder:
            rendered = os.path.join(folder, "pylock.toml")
            with open(rendered, "w", encoding="utf-8") as file:
                file.write(render(wheels))
            self._run(
                *("pip", *words, rendered, "--python", os.path.join(path, "bin", "python")),
                *("--preview-features", "pylock", "--no-index", "--no-build", "--require-hashes"),
                *("--link-mode", mode),
            )

    def _run(self, *words: str) -> None:
        fixed = ("--no-config", "--offline", "--no-python-downloads", "--no-progress", "--color", "never")
        argv = (self._executable, *words, *fixed, "--cache-dir", self._cache)
        environment = {"PATH": "/usr/bin:/bin", "HOME": self._cache, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                argv,
                env=environment,
                cwd=os.path.dirname(self._cache),  # uv takes no folder in its cache for a project
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=self._descriptors,
                check=False,
            )
        except OSError as error:
            raise AgentError(f"cannot run uv ({self._executable}): {error.strerror}") from error
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip()
            raise AgentError(f"uv {' '.join(words[:2])} failed (exit {done.returncode}):\n{said}")


def render(wheels: List[Dict[str, Any]]) -> str:
    """Return a ``pylock.toml`` (PEP 751) that names each wheel by its path here, size and sha256.

    JSON's string literals are TOML's basic strings, so no value can leave its quotes.
    """
    lines = ['lock-version = "1.0"', 'created-by = "hostenv"']
    if not wheels:
        lines.append("packages = []")  # the key is required; overlays may be all that there is
    for wheel in wheels:
        quoted = {key: json.dumps(wheel[key]) for key in ("name", "version", "path", "sha256")}
        file_name = json.dumps(os.path.basename(wheel["path"]))
        lines += [
            "",
            "[[packages]]",
            f"name = {quoted['name']}",
            f"version = {quoted['version']}",
            (
                f"wheels = [{{ name = {file_name}, path = {quoted['path']}, size = {int(wheel['size'])}, "
                f"hashes = {{ sha256 = {quoted['sha256']} }} }}]"
            ),
        ]
    return "\n".join(lines) + "\n"


def site_packages(path: str) -> str:
    """Return the one ``site-packages`` of a venv."""
    found = glob.glob(os.path.join(glob.escape(path), "lib", "python3*", "site-packages"))
    if len(found) != 1:
        raise AgentError(f"{path} has {len(found)} site-packages folders, not one")
    return found[0]


def link_mode(layout: Layout, wanted: str) -> str:
    """Return uv's link mode: ``clone`` only where the filesystem can.

    uv's own ``clone`` falls back to hard links where the filesystem cannot (seen with 0.13.9 on ext4,
    2026-12-01), and hard links let one edit reach the cache and every other build.
    """
    if wanted == "hardlink":
        return "hardlink"
    return "clone" if wanted in ("auto", "clone") and _can_reflink(layout.cache) else "copy"


def _can_reflink(folder: str) -> bool:
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        target = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        source.write(b"\0" * 4096)
        source.flush()
        try:
            fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
        except OSError:
            return False
    return True


_BROKEN = ("Traceback (most recent call last)", "MemoryError")
"""What compileall prints where it failed itself, and not for a source that does not compile."""


def compile_bytecode(path: str, final: str, descriptors: Sequence[int]) -> None:
    """Compile every module, checked by source hash, as if ``path`` were ``final``.

    ``checked-hash`` bytecode depends on the source's bytes alone: the same in every build. Raises
    :class:`AgentError` where the compilation itself did not come to its end, killed for memory, say.
    """
    argv = (
        *(os.path.join(path, "bin", "python"), "-I", "-S", "-m", "compileall", "-q", "-j", "0"),
        *("--invalidation-mode", "checked-hash", "-s", path, "-p", final, site_packages(path)),
    )
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, pass_fds=tuple(descriptors), check=False
    )
    # A wheel may ship a file that does not compile (a template, another version's syntax): exit 1, no fault
    # here. Where a worker was killed, that is an exit 1, too, with a traceback.
    said = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode not in (0, 1) or any(sign in said for sign in _BROKEN):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        last = said.strip().splitlines()[-1:] or ["nothing said"]
        message = f"compiling bytecode ended early ({how}): {last[0]}"
        raise AgentError(message, hint='is the memory enough? build.bytecode = "none" does without')
