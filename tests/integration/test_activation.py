"""Stage, switch, rollback and hold, through the sessions."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.machine.agent import Agent
from kit.repository import Ran, listing

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.repository import Repository

VERSION = "import demo; print(demo.VERSION)"


@pytest.fixture
def two(repository: Repository) -> Repository:
    """Return a repository that can build demo 1.0 and demo 2.0."""
    repository.wheel("demo", "2.0", {"demo/__init__.py": 'VERSION = "2.0"\n'})
    return repository


def build(two: Repository, version: str, *words: str, more: str = "", host: str = "") -> str:
    two.spec(f"demo=={version}", more=more, host=host)
    made: str = two.build(*words).host["build"]
    return made


def version(two: Repository) -> str:
    return two.python(VERSION)


def test_a_staged_build_waits_for_the_switch(two: Repository) -> None:
    build(two, "1.0")
    staged = build(two, "2.0", "--stage")
    assert version(two) == "1.0"
    assert "nothing to do" in two.build("--stage").host["headline"]

    switched = two.run("switch").host

    assert switched["build"] == staged
    assert (switched["generation"], version(two)) == (2, "2.0")
    receipt = json.loads((two.root / "current/receipt.json").read_text())
    assert receipt["fingerprint"] == switched["fingerprint"]
    assert not (two.root / "staged.json").exists()


def test_manual_activation_stages(two: Repository) -> None:
    build(two, "1.0", more='[build]\nactivate = "manual"')
    assert not (two.root / "current").exists()
    assert two.run("switch").host["generation"] == 1
    assert version(two) == "1.0"
    assert two.build().host["headline"] == "nothing to do"


def test_nothing_staged_is_refused(two: Repository) -> None:
    build(two, "1.0")
    ran = two.run("switch")
    assert ran.document["outcome"] == "refused"
    assert "nothing is staged" in ran.message


def test_a_rollback_returns_and_holds_and_again_goes_forward(
    two: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    old = build(two, "1.0")
    new = build(two, "2.0")

    back = two.run("rollback", "--why", "2.0 crashes on load").host
    assert (back["build"], back["generation"], version(two)) == (old, 3, "1.0")
    held = two.build().host
    assert any("2.0 crashes on load" in note for note in held["notes"])
    assert version(two) == "1.0"
    assert two.build().host["headline"] == "nothing to do"

    capsys.readouterr()
    again = two.run("rollback").host
    assert (again["build"], again["generation"], version(two)) == (new, 4, "2.0")
    plan = capsys.readouterr().err
    assert "2.0 crashes on load" in plan.splitlines()[1], "why it is held is said first"


def test_a_rollback_switches_first_and_then_says_whether_the_build_is_as_it_was_built(
    two: Repository,
) -> None:
    build(two, "1.0")
    old = two.current
    build(two, "2.0")
    assert "it is as it was built, file by file" in two.run("rollback").host["notes"]
    two.run("rollback")
    (words,) = old.glob("lib/python3*/site-packages/demo/words.txt")
    words.write_text("edited by hand\n")

    ran = two.run("rollback")

    assert two.current == old
    assert ran.document["outcome"] == "checks"
    assert "1 file of it is not as built" in ran.message
    assert "demo/words.txt" in ran.message
    assert (two.root / "hold.json").exists()


def unmade(two: Repository) -> None:
    """Make two builds, the second current, and take from the first one what it keeps of its making."""
    build(two, "1.0")
    (two.current / ".hostenv/facts.json").unlink()
    build(two, "2.0")


def manifest_lost(two: Repository) -> None:
    """The same, where the first build was edited, and only its manifest is gone."""
    build(two, "1.0")
    (two.current / ".hostenv/manifest.z").unlink()
    (two.site() / "demo/words.txt").write_text("edited by hand\n")
    build(two, "2.0")


@pytest.mark.parametrize(
    ("damage", "outcome", "why"),
    [
        (unmade, "checks", "keeps nothing of its making"),
        (manifest_lost, "failed", "keeps no manifest: No such file"),
    ],
)
def test_a_rollback_that_cannot_be_verified_says_so_and_that_it_switched(
    two: Repository, damage: Callable[[Repository], None], outcome: str, why: str
) -> None:
    damage(two)
    ran = two.run("rollback")
    assert version(two) == "1.0"
    require_told(two, ran, outcome)
    assert "is current again, but could not be verified: " in ran.message
    assert why in ran.message
    assert not [note for note in ran.host["notes"] if "as it was built" in note]


@pytest.mark.parametrize(("what", "outcome"), [("connection", "unreachable"), ("bug", "failed")])
def test_what_ends_the_verification_of_a_rollback_does_not_unsay_the_switch(
    two: Repository, monkeypatch: pytest.MonkeyPatch, what: str, outcome: str
) -> None:
    build(two, "1.0")
    build(two, "2.0")
    call = Agent.call

    def break_at_look(agent: Agent, operation: str, /, **more: Any) -> Any:
        if operation == "environment.look" and what == "bug":
            raise KeyError("this is the bug")
        if operation == "environment.look":
            os.kill(agent._channel._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return call(agent, operation, **more)

    monkeypatch.setattr(Agent, "call", break_at_look)
    if what == "bug":
        with pytest.raises(KeyError, match="this is the bug"):
            two.run("rollback")
        told = json.loads((two.folder / "result.json").read_text())
        ran = Ran(error=None, failure=None, document=told)
    else:
        ran = two.run("rollback")
        assert "is current again, but could not be verified: " in ran.message
    assert version(two) == "1.0"
    require_told(two, ran, outcome)


def require_told(two: Repository, ran: Ran, outcome: str) -> None:
    """Require that a rollback's JSON says that it switched, and that not all is well."""
    assert (ran.document["outcome"], ran.host["changed"]) == (outcome, True)
    assert (ran.host["build"], ran.host["generation"]) == (two.current.name, 3)


def test_a_switch_lifts_the_hold(two: Repository) -> None:
    build(two, "1.0")
    build(two, "2.0")
    two.run("rollback")
    two.build()
    assert two.run("switch").failure is None
    assert version(two) == "2.0"
    assert not (two.root / "hold.json").exists()
    assert two.build().host["notes"] == []


def test_a_switch_lifts_the_hold_where_what_the_spec_wants_is_current_already(
    two: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    build(two, "1.0")
    new = build(two, "2.0")
    for _ in range(2):  # back, and forward again: held at what the spec wants
        assert two.run("rollback").failure is None
    (note,) = two.build("--stage").host["notes"]
    assert "`nox -s switch -- local` moves on" in note
    assert two.run("switch", "--dry-run").failure is None
    assert (two.root / "hold.json").exists()
    capsys.readouterr()

    lifted = two.run("switch").host

    assert (lifted["headline"], lifted["changed"]) == (f"hold lifted: build {new} stays current", True)
    assert "switch   current" not in capsys.readouterr().err, "nothing is switched"
    assert (version(two), (two.root / "current").readlink().name) == ("2.0", "4")
    assert not (two.root / "hold.json").exists()
    assert two.build().host["notes"] == []
    assert "nothing is staged" in two.run("switch").message


def test_a_hold_at_what_the_spec_does_not_want_is_not_lifted_by_a_switch_alone(two: Repository) -> None:
    build(two, "1.0")
    build(two, "2.0")
    two.run("rollback")
    assert "nothing is staged" in two.run("switch").message
    two.spec("demo==1.0")  # another lock is wanted now: what it would be is not known here
    assert "nothing is staged" in two.run("switch").message
    assert (two.root / "hold.json").exists()


def test_a_build_can_be_named_by_the_beginning_of_its_id(two: Repository) -> None:
    old = build(two, "1.0")
    new = build(two, "2.0")
    length = next(count for count in range(1, 17) if old[:count] != new[:count])
    if length > 1:
        assert (
            f"{old[: length - 1]} begins several" in two.run("rollback", "--build", old[: length - 1]).message
        )
    assert two.run("rollback", "--build", old[:8]).host["build"] == old
    assert two.run("switch", "--build", new[:length]).host["build"] == new
    refused = two.run("switch", "--build", f"{new[:8]}x")
    assert refused.document["outcome"] == "refused"
    assert old in refused.message


def test_a_held_host_that_has_what_the_spec_wants_stays_held(two: Repository) -> None:
    build(two, "1.0")
    build(two, "2.0")
    two.run("rollback")
    two.spec("demo==1.0")
    before = listing(two.root)
    assert two.build().host["headline"] == "checked and current", "the lock was made again"
    ran = two.build().host
    assert ran["headline"] == "nothing to do"
    assert ran["notes"]
    assert listing(two.root) == before


def test_the_build_can_be_named(two: Repository) -> None:
    old = build(two, "1.0")
    build(two, "2.0")
    two.wheel("demo", "3.0", {"demo/__init__.py": 'VERSION = "3.0"\n'})
    build(two, "3.0")
    assert two.run("rollback", "--build", old).host["build"] == old
    assert version(two) == "1.0"
    unknown = two.run("switch", "--build", "0" * 16)
    assert unknown.document["outcome"] == "refused"
    assert old in unknown.message
    assert version(two) == "1.0"


def test_where_there_is_nothing_to_go_back_to_a_rollback_says_why(two: Repository) -> None:
    ran = two.run("rollback")
    assert ran.document["outcome"] == "refused"
    assert "nothing was ever current there" in ran.message
    assert not two.root.exists()
    old = build(two, "1.0")
    ran = two.run("rollback")
    assert ran.document["outcome"] == "refused"
    assert "generation 1 was the first: there is no generation to go back to" in ran.message
    assert not (two.root / "hold.json").exists()
    build(two, "2.0")
    shutil.rmtree(two.root / "builds" / old)
    ran = two.run("rollback")
    assert ran.document["outcome"] == "refused"
    assert "the build of generation 1, which was current before, is gone" in ran.message
    assert version(two) == "2.0"


def test_a_link_that_is_missing_is_made_without_a_new_generation(two: Repository) -> None:
    link = two.folder / "link"
    build(two, "1.0")
    build(two, "2.0")
    build(two, "2.0", host=f'link = "{link}"')
    assert (link / "bin/python").exists()
    assert sorted(path.name for path in (two.root / "generations").iterdir()) == ["1", "2"]
    two.run("rollback")
    assert version(two) == "1.0"


def test_what_stands_at_the_link_is_refused_then_adopted(two: Repository) -> None:
    link = two.folder / "venv"
    link.mkdir()
    (link / "by-hand").write_text("precious")
    two.spec("demo==1.0", host=f'link = "{link}"')
    refused = two.run("build_env")
    assert refused.document["outcome"] == "refused"
    assert "--adopt-link" in refused.message
    assert not two.root.exists()

    adopted = two.build("--adopt-link").host

    assert link.resolve() == two.current
    (aside,) = two.folder.glob("venv.before-hostenv-*")
    assert (aside / "by-hand").read_text() == "precious"
    assert any(str(aside) in note for note in adopted["notes"])


def test_running_processes_are_named_and_not_moved_by_accident(two: Repository) -> None:
    link = two.folder / "venv"
    build(two, "1.0", host=f'link = "{link}"')
    with sleeping(link / "bin/python") as server:
        two.spec("demo==2.0", host=f'link = "{link}"')
        refused = two.run("build_env")
        assert refused.document["outcome"] == "refused"
        assert f"pid {server.pid}" in refused.message
        assert version(two) == "1.0"
        moved = two.build("--despite-running").host
    assert version(two) == "2.0"
    assert any(f"pid {server.pid}" in note for note in moved["notes"])


def test_a_dry_run_names_the_processes_that_the_run_would_be_refused_for(two: Repository) -> None:
    link = two.folder / "venv"
    first = build(two, "1.0", host=f'link = "{link}"')
    build(two, "2.0", host=f'link = "{link}"')
    with sleeping(link / "bin/python") as server:
        for session, *words in (["rollback"], ["switch", "--build", first]):
            refused, run = two.run(session, *words, "--dry-run"), two.run(session, *words)
            assert refused.document["outcome"] == run.document["outcome"] == "refused"
            assert f"pid {server.pid}" in refused.message
            assert f"pid {server.pid}" in run.message
            assert two.run(session, *words, "--dry-run", "--despite-running").failure is None
    assert version(two) == "2.0"


def test_an_activated_shell_is_no_running_process_but_its_python_is(two: Repository) -> None:
    link = two.folder / "venv"
    build(two, "1.0", host=f'link = "{link}"')
    activated = {"PATH": f"{link}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(link)}
    with subprocess.Popen(["sh", "-c", "read line"], env=activated, stdin=subprocess.PIPE) as shell:
        build(two, "2.0", host=f'link = "{link}"')
        shell.kill()
    python = ["sh", "-c", "exec python -c 'import time; time.sleep(60)'"]
    with subprocess.Popen(python, env=activated) as server:
        wait_until(server.pid, b"time.sleep")
        two.spec("demo==1.0", host=f'link = "{link}"')
        refused = two.run("build_env")
        assert f"pid {server.pid}" in refused.message
        server.kill()


def test_a_process_of_the_build_itself_is_in_nobodys_way(two: Repository) -> None:
    build(two, "1.0")
    with sleeping(two.current / "bin/python"):
        build(two, "2.0")
    assert version(two) == "2.0"


def test_a_dry_run_of_a_switch_or_rollback_changes_nothing(two: Repository) -> None:
    build(two, "1.0")
    build(two, "2.0")
    two.wheel("demo", "3.0", {"demo/__init__.py": 'VERSION = "3.0"\n'})
    build(two, "3.0", "--stage")
    before = listing(two.root)
    for session in ("switch", "rollback"):
        assert two.run(session, "--dry-run").host["headline"] == "dry run: nothing was changed"
    assert listing(two.root) == before


class sleeping:  # noqa: N801  reads as a statement
    """A python that sleeps while a ``with`` block runs."""

    def __init__(self, python: pathlib.Path) -> None:
        self._argv = [str(python), "-c", "import time; time.sleep(60)"]

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(self._argv, env={}, cwd="/")
        wait_until(self._process.pid, b"time.sleep")
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def wait_until(pid: int, word: bytes) -> None:
    """Wait until a process has become the python that was asked for."""
    deadline = time.monotonic() + 60
    while True:
        line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        if word in line and not line.startswith(b"sh\0"):
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)
