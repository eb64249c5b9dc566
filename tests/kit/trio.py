"""Three hosts on this machine, ``ref``, ``one`` and ``two``, each with a root of its own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Ran, Repository

HOSTS = ("ref", "one", "two")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trio:
    """The hosts and their repository."""

    repository: Repository

    def root(self, host: str) -> pathlib.Path:
        """Where everything of a host lies."""
        return self.repository.folder / f"root-{host}"

    def spec(self, host: str, *requires: str, env: str = "", more: str = "") -> None:
        """Write a host's spec; ``env`` are more lines of ``[env]``, ``more`` more tables."""
        wanted = ", ".join(json.dumps(each) for each in requires)
        (self.repository.path / f"envspecs/{host}.toml").write_text(
            f'[host]\ntransport = "local"\nroot = {json.dumps(str(self.root(host)))}\n'
            f'[env]\nrequires = [{wanted}]\n{env}\n[platform]\nglibc = "2.17"\n'
            f'[build]\nmin-free = "1MiB"\n{more}\n'
        )

    def specs(self, *requires: str, env: str = "", more: str = "", hosts: tuple[str, ...] = HOSTS) -> None:
        """Write the same spec for several hosts."""
        for host in hosts:
            self.spec(host, *requires, env=env, more=more)

    def run(self, session: str, *words: str) -> Ran:
        """Run a session whose words are exactly these."""
        return self.repository.run(session, hosts=words)

    def done(self, session: str, *words: str) -> Ran:
        """Run a session; it must succeed."""
        ran = self.run(session, *words)
        assert ran.error is None, ran.error
        assert ran.failure is None, ran.message
        return ran

    def current(self, host: str) -> pathlib.Path:
        """The build that is current on a host."""
        return (self.root(host) / "current/env").resolve()

    def site(self, host: str) -> pathlib.Path:
        """Its ``site-packages``."""
        (found,) = self.current(host).glob("lib/python3*/site-packages")
        return found

    def headlines(self, ran: Ran) -> dict[str, str]:
        """Return what a session said of each host."""
        return {each["host"]: each["headline"] for each in ran.document["hosts"]}


def digests(folder: pathlib.Path) -> dict[str, tuple[int, str]]:
    """Return mode and sha256 of every file below a folder, read here, by nobody's code.

    Bytecode aside, and what tells of one installation: when it was, from where, and RECORD, which lists that.
    """
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file())
        and path.suffix != ".pyc"
        and path.name not in {"RECORD", "uv_cache.json", "direct_url.json"}
    }
