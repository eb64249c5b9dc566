"""Real sessions in surroundings that nobody wants: variables, limits, streams, folders."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.report.live import Live

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.repository import Repository

NOWHERE = "/nonexistent/of-hostenv"
ODD = {
    "UV_PYTHON": f"{NOWHERE}/python",
    "UV_PROJECT_ENVIRONMENT": NOWHERE,
    "UV_INDEX_URL": "http://127.0.0.1:9/simple",
    "UV_LINK_MODE": "symlink",
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_NO_INDEX": "1",
    "PIP_TARGET": NOWHERE,
    "PYTHONPATH": NOWHERE,
    "PYTHONOPTIMIZE": "2",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONWARNINGS": "error",
    "VIRTUAL_ENV": NOWHERE,
    "CONDA_PREFIX": NOWHERE,
    "LD_LIBRARY_PATH": NOWHERE,
    "TMPDIR": NOWHERE,
    "LANG": "C",
    "LC_ALL": "C",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "COLUMNS": "40",
}


def oddly() -> None:
    """Close standard input, allow few descriptors, and let files be made for their owner only."""
    os.close(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.umask(0o077)


def nox(repository: Repository, session: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the real nox; ``environment`` replaces the repository's own."""
    environment = more.pop("environment", repository.environment)
    if "stdout" not in more:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    argv = [sys.executable, "-m", "nox", "-s", session, "--", *words]
    return subprocess.run(argv, cwd=repository.path, env=environment, text=True, check=False, **more)


def other_host(repository: Repository, name: str) -> pathlib.Path:
    """Write the spec of a second host like ``local``; return its root."""
    root = repository.folder / f"{name}-root"
    text = (repository.path / "envspecs/local.toml").read_text()
    (repository.path / f"envspecs/{name}.toml").write_text(text.replace(str(repository.root), str(root)))
    return root


def test_the_environment_of_a_session_leaves_no_trace_in_a_build(repository: Repository) -> None:
    root = other_host(repository, "odd")
    plain = repository.build().host["fingerprint"]
    written = repository.folder / "odd.json"
    environment = {name: value for name, value in repository.environment.items() if name != "HOME"}
    ran = nox(
        repository,
        "build_env",
        *("odd", "--json", str(written)),
        environment=environment | ODD,
        preexec_fn=oddly,
    )
    assert ran.returncode == 0, ran.stdout
    (told,) = json.loads(written.read_text())["hosts"]
    assert told["fingerprint"] == plain
    assert (root / "current").stat().st_mode & 0o777 == 0o755


def broken_pipe() -> int:
    """Return the writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("session", ["status", "builds", "probe"])
def test_where_nobody_reads_the_output_one_line_says_so_and_the_json_is_there(
    repository: Repository, session: str
) -> None:
    written = repository.folder / "told.json"
    pipe = broken_pipe()
    ran = nox(
        repository,
        session,
        *("local", "--json", str(written)),
        stdout=pipe,
        stderr=subprocess.PIPE,
    )
    os.close(pipe)
    assert ran.returncode == 1
    assert "the output cannot be written: Broken pipe" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert len(json.loads(written.read_text())["hosts"]) == 1


@contextlib.contextmanager
def nobody_reads_errors() -> Iterator[None]:
    """Let standard error lead to a pipe that nobody reads."""
    nobody = os.fdopen(broken_pipe(), "w")
    with contextlib.redirect_stderr(nobody):
        yield
    with contextlib.suppress(BrokenPipeError):
        nobody.close()


def test_a_plan_that_cannot_be_shown_changes_nothing(repository: Repository) -> None:
    with nobody_reads_errors():
        ran = repository.run("build_env")
    assert "local: the plan cannot be shown: Broken pipe" in ran.message
    assert not (repository.root / "builds").exists()


def test_work_goes_on_where_its_progress_cannot_be_shown() -> None:
    with nobody_reads_errors(), Live() as live:
        live.phase("local", "fetch", 10)
        live.advance("local", 10)
        live.finished("local")


def test_a_root_that_cannot_be_made_is_told_with_the_reason(repository: Repository) -> None:
    """Nor is a folder that the kernel makes up a full disk."""
    repository.run("lock")
    home = replace(repository, root=pathlib.Path("/proc/hostenv/root"))
    home.spec("demo==1.0")
    for session in ("build_env", "fetch"):
        ran = home.run(session)
        assert "/proc/hostenv/root cannot be written: /proc lies on a filesystem that keeps no" in ran.message
        assert ran.document["outcome"] == "refused"


def test_facts_that_cannot_be_kept_are_an_error_of_their_host(repository: Repository) -> None:
    """As in a repository on a read-only disk."""
    (repository.path / "envspecs/facts").write_text("a file where a folder should be")
    written = repository.folder / "told.json"
    ran = nox(repository, "probe", "local", "--save", "--json", str(written))
    assert ran.returncode == 1
    assert "Traceback" not in ran.stdout
    (told,) = json.loads(written.read_text())["hosts"]
    assert "envspecs/facts/local.json: cannot be written: " in told["error"]
