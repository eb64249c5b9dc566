#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "fabric>=3.2.3,<4",        # SSH; DESIGN gives it
#     "invoke<3",                # fabric 3.2 breaks with invoke 3
#     "nox[uv]>=2026.10.20",
#     "packaging>=26",
#     "requests>=2.34",
#     "rich>=15",                # tables and progress that degrade well without a terminal
#     "truststore>=0.10",        # requests then trusts what the system, pip and uv --system-certs trust
#     "uv>=0.13.9",
# ]
# ///
"""hostenv's commands, as nox sessions: each turns its words into a request and shows what a workflow did."""

from __future__ import annotations

import logging
import os
import pathlib
import sys

import nox

ROOT = pathlib.Path(__file__).parent
sys.path.insert(0, str(ROOT / "scripts"))  # the nox program does not do it, and hostenv is not installed

nox.needs_version = ">=2026.10.20"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "tests"]  # bare `nox` never touches a host

# As pip does: trust what the system trusts. uv's own list lacks a company's proxy.
os.environ.setdefault("UV_SYSTEM_CERTS", "1")

# nox sets the root logger to DEBUG: one command of fabric's would print 120 lines.
for library in ("fabric", "invoke", "paramiko", "urllib3"):
    logging.getLogger(library).setLevel(logging.WARNING)
if not {"-v", "--verbose"} & set(sys.argv):  # with it, every command that is run is shown
    logging.getLogger("hostenv").setLevel(logging.WARNING)


def _session(session: nox.Session, name: str) -> None:
    """Run the workflow of that name over the hosts in the words; errors become the session's, bugs do not."""
    from hostenv import commands  # noqa: PLC0415  `nox -l` stays quick
    from hostenv.errors import HostenvError  # noqa: PLC0415

    try:
        failure = commands.run(name, session.posargs, ROOT)
    except HostenvError as error:
        session.error(commands.shown(str(error)))
    if failure:
        session.error(commands.shown(failure))


@nox.session(venv_backend="none", default=False)
def build_env(session: nox.Session) -> None:
    """Build each HOST's environment, check it, switch to it."""
    _session(session, "build_env")


@nox.session(venv_backend="none", default=False)
def lock(session: nox.Session) -> None:
    """Resolve for each HOST's platform and write its lock."""
    _session(session, "lock")


@nox.session(venv_backend="none", default=False)
def fetch(session: nox.Session) -> None:
    """Fill the wheelhouse of each HOST with the wheels of its lock."""
    _session(session, "fetch")


@nox.session(venv_backend="none", default=False)
def status(session: nox.Session) -> None:
    """One line a HOST: build, processes, hold, GPUs, disk, age of facts."""
    _session(session, "status")


@nox.session(venv_backend="none", default=False)
def switch(session: nox.Session) -> None:
    """Activate the staged build of each HOST, or another."""
    _session(session, "switch")


@nox.session(venv_backend="none", default=False)
def rollback(session: nox.Session) -> None:
    """Go back to the previous generation of each HOST, and hold it there."""
    _session(session, "rollback")


@nox.session(venv_backend="none", default=False)
def verify_abi(session: nox.Session) -> None:
    """Judge every binary of each HOST's environment against itself and its host."""
    _session(session, "verify_abi")


@nox.session(venv_backend="none", default=False)
def match(session: nox.Session) -> None:
    """Compare each TARGET's environment with REFERENCE's: equal, or what differs and why."""
    _session(session, "match")


@nox.session(venv_backend="none", default=False)
def builds(session: nox.Session) -> None:
    """List the builds of each HOST: size, age, and what uses them."""
    _session(session, "builds")


@nox.session(venv_backend="none", default=False)
def prune(session: nox.Session) -> None:
    """Remove the builds of each HOST that nothing uses."""
    _session(session, "prune")


@nox.session(venv_backend="none", default=False)
def overlay(session: nox.Session) -> None:
    """Take whole distributions of a HOST as overlays/NAME: -- HOST NAME DIST..."""
    _session(session, "overlay")


@nox.session(venv_backend="none", default=False)
def sync_patches(session: nox.Session) -> None:
    """Bring series and overlays of a REFERENCE to each TARGET, and prove them equal."""
    _session(session, "sync_patches")


@nox.session(venv_backend="none", default=False)
def capture(session: nox.Session) -> None:
    """Turn the environment of a HOST that works into a spec, series and overlays."""
    _session(session, "capture")


def _dependencies(*groups: str) -> list[str]:
    """Return the runtime dependencies (the PEP 723 block above) and the named groups of pyproject.toml."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    runtime: list[str] = nox.project.load_toml(__file__)["dependencies"]
    return [*runtime, *nox.project.dependency_groups(project, *groups)]


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint, types, and the import contract."""
    session.install(*_dependencies("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports", env={"PYTHONPATH": str(ROOT / "scripts")}, silent=True)


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, in two processes that take a file at a time; words after -- go to pytest."""
    session.install(*_dependencies("tests"))
    processes = ("--numprocesses=2", "--dist=loadfile")  # -n0 after -- takes it back, for a debugger
    session.run("pytest", *processes, *session.posargs, env={"PYTHONDONTWRITEBYTECODE": "1"})


@nox.session(venv_backend="none", default=False)
def probe(session: nox.Session) -> None:
    """Read what each HOST has, and which are the same machine; changes nothing."""
    _session(session, "probe")


@nox.session(venv_backend="none", default=False)
def oracle(session: nox.Session) -> None:
    """Hold the simulated loader against the real one, on every object of each VENV; runs their code."""
    _session(session, "oracle")


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Speed beside the bare tools, as ratios measured in one run; words after -- choose benchmarks."""
    session.install(*_dependencies("tests"))
    session.run("python", "benchmarks/run.py", *session.posargs, env={"PYTHONPATH": str(ROOT / "scripts")})


if __name__ == "__main__":
    sys.argv[1:1] = ["-f", __file__]
    nox.main()
