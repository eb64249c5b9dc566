"""A complete small repository in a folder, specs, patches and an index of wheels; sessions run in it.

The host is this machine with its root inside the folder. Nothing outside the folder is written, no network
but loopback is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostenv import commands
from hostenv.checks import abi_rules
from hostenv.errors import HostenvError
from kit.registry import Registry
from kit.wheels import BuiltWheel, build_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROJECT = pathlib.Path(__file__).parents[2]

_KEPT = ("PATH", "LANG")

DEMO = 'VERSION = "1.0"\n\n\ndef main() -> None:\n    print("demo", VERSION)\n'
"""``demo/__init__.py`` of demo 1.0."""

DEMO_PATCH = """\
Description: Say that it is patched
Origin: written for this test
Forwarded: not-needed

--- a/demo/__init__.py
+++ b/demo/__init__.py
@@ -1 +1 @@
-VERSION = "1.0"
+VERSION = "1.0, patched"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a session did: what it raised, the line it would fail with, and its ``--json`` document."""

    error: HostenvError | None
    failure: str | None
    document: dict[str, Any]

    @property
    def host(self) -> dict[str, Any]:
        """The document's part of the one host."""
        (only,) = self.document["hosts"]
        found: dict[str, Any] = only
        return found

    @property
    def message(self) -> str:
        """Everything that it complained of."""
        told = [str(self.error or "")]
        told += [str(each["error"]) for each in self.document.get("hosts", ())]
        return "\n".join(told).replace("\\n", "\n")


def done(ran: Ran) -> dict[str, dict[str, Any]]:
    """Return the part of each host of a session that must have succeeded."""
    assert ran.error is None, ran.error
    assert ran.failure is None, ran.message
    return {host["host"]: host for host in ran.document["hosts"]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A repository below ``folder``, whose host ``local`` has ``root`` as its root."""

    folder: pathlib.Path
    registry: Registry
    root: pathlib.Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> pathlib.Path:
        """Where ``noxfile.py`` lies."""
        return self.folder / "repository"

    def spec(self, *requires: str, more: str = "", env: str = "", host: str = "") -> None:
        """Write ``envspecs/local.toml``. ``env`` and ``host`` are more lines of these tables."""
        wanted = ", ".join(json.dumps(each) for each in requires)
        text = (
            f'[host]\ntransport = "local"\nroot = {json.dumps(str(self.root))}\n{host}\n'
            f'[env]\nrequires = [{wanted}]\n{env}\n[platform]\nglibc = "2.17"\n{more}\n'
        )
        if "min-free" not in more:
            text += "" if "[build]" in more else "[build]\n"
            text = text.replace("[build]\n", '[build]\nmin-free = "1MiB"\n')
        (self.path / "envspecs/local.toml").write_text(text)

    def wheel(self, name: str, version: str, files: Mapping[str, str | bytes], **more: Any) -> BuiltWheel:
        """Put a wheel on the index."""
        return build_wheel(self.registry.folder, name, version, files, **more)

    def series(self, name: str, patch: str) -> None:
        """Write a series of one patch."""
        folder = self.path / "patches" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "series").write_text("one.patch\n")
        (folder / "one.patch").write_text(patch)

    def run(self, session: str, *words: str, hosts: Sequence[str] = ("local",)) -> Ran:
        """Run a session over ``hosts`` in this process."""
        document = self.folder / "result.json"
        document.unlink(missing_ok=True)
        failure = error = None
        try:
            failure = commands.run(session, [*hosts, *words, "--json", str(document)], self.path)
        except HostenvError as raised:
            error = raised
        written = json.loads(document.read_text()) if document.exists() else {}
        return Ran(error=error, failure=failure, document=written)

    def build(self, *words: str) -> Ran:
        """Run ``build_env`` in this process; it must succeed."""
        ran = self.run("build_env", *words)
        assert ran.error is None, ran.error
        assert ran.failure is None, ran.message
        return ran

    def build_waived(self, host: str = "local") -> Ran:
        """Run ``build_env`` on a host whose spec waives whatever is found; it must succeed.

        The spec is then as it was: an environment is current that ``verify_abi`` rejects.
        """
        path = self.path / f"envspecs/{host}.toml"
        text = path.read_text()
        line = '{{ rule = "{}", object = "*", reason = "as it is", until = 2099-12-31 }}'
        waivers = ", ".join(line.format(rule.id) for rule in abi_rules.RULES)
        path.write_text(f"{text}\n[checks]\nallow = [{waivers}]\n")
        try:
            ran = self.run("build_env", hosts=(host,))
        finally:
            path.write_text(text)
        assert ran.error is None, ran.error
        assert ran.failure is None, ran.message
        return ran

    @staticmethod
    def command(session: str, *words: str) -> list[str]:
        """Return the command line of ``nox -s SESSION -- local WORDS``."""
        return [sys.executable, "-m", "nox", "-s", session, "--", "local", *words]

    def nox(self, session: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start the real nox in a session of its own."""
        return subprocess.Popen(
            self.command(session, *words),
            cwd=self.path,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @property
    def current(self) -> pathlib.Path:
        """The build that is current."""
        return (self.root / "current/env").resolve()

    def python(self, program: str, build: pathlib.Path | None = None) -> str:
        """Run a program with a build's interpreter (the current one's); return what it printed."""
        argv = (f"{build or self.current}/bin/python", "-B", "-c", program)
        done = subprocess.run(argv, env={}, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def site(self, build: pathlib.Path | None = None) -> pathlib.Path:
        """Return the ``site-packages`` of a build (the current one's)."""
        (found,) = (build or self.current).glob("lib/python3*/site-packages")
        return found


@contextlib.contextmanager
def repository_in(folder: pathlib.Path) -> Iterator[Repository]:
    """Make a repository whose spec wants ``demo`` (1.0 on the index, a console script, one dependency).

    ``environment`` is what its sessions must run with: the index, an empty home, uv's cache inside.
    """
    path = folder / "repository"
    (path / "envspecs").mkdir(parents=True)
    (path / "patches").mkdir()
    (path / "scripts").symlink_to(PROJECT / "scripts")
    (path / "pyproject.toml").symlink_to(PROJECT / "pyproject.toml")
    shutil.copy(PROJECT / "noxfile.py", path)
    (path / "envspecs/fleet.toml").write_text('default-hosts = ["local"]\n')
    for name in ("files", "home", "tmp"):
        (folder / name).mkdir()
    with Registry(folder / "files") as registry:
        made = Repository(
            folder=folder, registry=registry, root=folder / "root", environment=_variables(folder, registry)
        )
        scripts = "[console_scripts]\ndemo = demo:main\n"
        made.wheel("helper", "1.0", {"helper.py": "ONE = 1\n"})
        made.wheel(
            "demo",
            "1.0",
            {"demo/__init__.py": DEMO, "demo/words.txt": "a b c\n"},
            requires=["helper"],
            entry_points=scripts,
        )
        made.spec("demo==1.0")
        yield made


def _variables(folder: pathlib.Path, registry: Registry) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "UV_DEFAULT_INDEX": registry.simple,
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_NO_CONFIG": "1",
        "UV_HTTP_RETRIES": "0",
        "NO_PROXY": "127.0.0.1",
        "NOX_SCRIPT_MODE": "none",
    }


def listing(folder: pathlib.Path, skipped: Sequence[str] = ()) -> dict[str, tuple[object, ...]]:
    """Return every path below ``folder`` with what stat says of it, times of access aside."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        status = path.lstat()
        if name not in skipped:
            target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115  text compares well
            found[name] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, target)
    return found
