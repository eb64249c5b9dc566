"""Ended at random moments of sync, switch and rollback: the target is whole, and the next run finishes.

A trial is one number: ``--kills 200 --kills-seed 7`` runs those from 7 on, ``--kills 1 --kills-seed 57``
the one that failed. What is whole is said by ``sha256sum`` on the reference's tree, before and after.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kit.fleet import descendants
from kit.forwarder import Forwarder
from kit.killing import Kill, Victim, all_gone, end, ours, small_disk, start
from kit.moments import Moment, Watch
from kit.remotes import PYTHON, Remotes, remote_hosts
from kit.repository import Repository, repository_in
from kit.sshd import missing_sshd

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from kit.repository import Ran

pytestmark = pytest.mark.skipif(bool(missing_sshd()), reason=missing_sshd() or "")

LOG = logging.getLogger(__name__)
HERE = "the controller's store"
SESSIONS = ("sync_patches", "sync_patches", "switch", "rollback")
DISK = "256m"
LAST = 0.05
"""Seconds after the switch in which a session is still ended."""
ENOUGH = 4
"""Trials of which at least one must have come in time."""
VARIANTS = ("A", "B")
PATCH = """\
Description: Say that it is patched
Origin: written for this test
Forwarded: not-needed

--- a/demo/__init__.py
+++ b/demo/__init__.py
@@ -1 +1 @@
-VERSION = "1.0"
+VERSION = "1.0, patched {variant}"
"""
WANTED = ("demo==1.0", "kernel==1.0")
ENV = 'patches = ["demo-1.0"]'
OVERLAY = '[[overlays]]\nname = "ours"\n'
REFERENCE = '[reference]\nhost = "ref"\n'
LISTING = (
    "find . -name .hostenv -prune -o -name RECORD -o -name uv_cache.json -o -name '*.pyc'"
    r" -o -type f -printf '%m ' -exec sha256sum {} \;"
    r" -o -type l ! -path './bin/python*' -printf '%p %l\n' | sort"
)
"""Mode, digest and path of files, path and target of links; what tells of one installation aside."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is ended how and when, all drawn from one number."""

    seed: int
    kill: Kill
    session: str
    moment: Moment
    share: float
    without: tuple[str, ...]

    def __str__(self) -> str:
        lost = f", {' and '.join(self.without)} lost before" if self.without else ""
        where = f"{self.share:.2f} of {self.moment}"
        return f"--kills 1 --kills-seed {self.seed}: {self.kill} at {where} in {self.session}{lost}"


def draw(seed: int) -> Trial:
    """Draw a trial: half of them move bytes and build, half only move the pointer."""
    kill = tuple(Kill)[seed % len(Kill)]
    chance = random.Random(seed)  # noqa: S311  moments, no secret
    session = chance.choice(SESSIONS)
    if session == "sync_patches":
        moment = chance.choice(tuple(Moment))
        without = chance.choice(((), ("store",), ("wheelhouse",), ("store", HERE), ("store", "wheelhouse")))
        if moment is Moment.COMING and not without:
            without = ("store",)
    else:
        moment, without = chance.choice((Moment.START, Moment.TAKEN, Moment.TURNING, Moment.TURNED)), ()
    return Trial(seed, kill, session, moment, chance.random(), without)


@dataclass(kw_only=True)
class Field:
    """A reference here, which is one of two variants, and a victim behind SSH that shall be the same."""

    remotes: Remotes
    victim: Victim
    texts: dict[str, dict[pathlib.Path, bytes]] = field(default_factory=dict)
    builds: dict[str, str] = field(default_factory=dict)
    trees: dict[str, str] = field(default_factory=dict)
    lengths: dict[tuple[str, Moment], float] = field(default_factory=dict)

    @property
    def repository(self) -> Repository:
        return self.remotes.repository

    @property
    def reference(self) -> pathlib.Path:
        return self.repository.folder / "root-ref"

    def spec(self, **more: str) -> None:
        """Write the reference's spec."""
        wanted = ", ".join(json.dumps(each) for each in WANTED)
        (self.repository.path / "envspecs/ref.toml").write_text(
            f'[host]\ntransport = "local"\nroot = "{self.reference}"\n'
            f"[env]\nrequires = [{wanted}]\n{more.get('env', '')}\n"
            f'[platform]\nglibc = "2.17"\npython = "{PYTHON}"\n[build]\nmin-free = "1MiB"\n'
            f"{more.get('more', '')}\n"
        )

    def run(self, session: str, *words: str) -> dict[str, Any]:
        """Run a session in this process; it must succeed. Return what it says of its last host."""
        ran: Ran = self.repository.run(session, hosts=words)
        assert ran.error is None, ran.error
        assert ran.failure is None, ran.message
        found: dict[str, Any] = ran.document["hosts"][-1]
        return found

    def make_variant(self, variant: str, plain: pathlib.Path) -> None:
        """Let the reference be ``variant``, and keep the files of the repository that say so."""
        (site,) = plain.glob("lib/python3*/site-packages")
        (site / "kernel/__init__.py").write_text(f"WHOSE = 'ours {variant}'\n")
        (site / "kernel/ops.bin").write_bytes(os.urandom(6 << 20))
        self.run("overlay", "ref", "ours", "kernel", "--venv", str(plain))
        self.repository.series("demo-1.0", PATCH.format(variant=variant))
        self.spec(env=ENV, more=OVERLAY)
        self.builds[variant] = self.run("build_env", "ref")["build"]
        self.trees[variant] = tree_of(self.reference / "builds" / self.builds[variant])
        changing = ("overlays/ours.files", "overlays/ours.toml", "patches/demo-1.0/one.patch")
        self.texts[variant] = {
            path: path.read_bytes() for path in (self.repository.path / name for name in changing)
        }

    def want(self, variant: str) -> None:
        """Let reference, series and overlay be ``variant``."""
        for path, content in self.texts[variant].items():
            path.write_bytes(content)
        self.run("switch", "ref", "--build", self.builds[variant])

    def learn(self, session: str, watch: Watch) -> None:
        """Remember how long the parts of a session last on this machine."""
        self.lengths |= {(session, moment): span for moment, span in watch.lengths().items()}

    def current(self) -> str:
        """Return which variant is current on the victim, every byte and link of it checked."""
        link = self.victim.root / "current"
        generation = link.resolve(strict=True)
        assert generation.parent == self.victim.root / "generations"
        receipt = json.loads((generation / "receipt.json").read_text())
        environment = (generation / "env").resolve(strict=True)
        (variant,) = [name for name, build in self.builds.items() if build == environment.name]
        assert receipt["build"] == environment.name
        assert tree_of(environment) == self.trees[variant]
        program = "import demo, kernel; print(demo.VERSION, kernel.WHOSE)"
        said = f"1.0, patched {variant} ours {variant}"
        assert self.repository.python(program, environment) == said
        return str(variant)

    @property
    def cache(self) -> pathlib.Path:
        """What the controller keeps of overlays' contents."""
        return self.repository.folder / "home/.cache/hostenv/store"

    def left_over(self) -> list[pathlib.Path]:
        """Return what is no finished thing under the victim's root, uv's cache aside."""
        root = self.victim.root
        patterns = (".tmp-*", "*/.tmp-*", "*/.incoming-*", "cache/hostenv-*", "wheelhouse/.partial/*")
        return [path for pattern in patterns for path in root.glob(pattern)]


def tree_of(environment: pathlib.Path) -> str:
    """Return what ``sha256sum`` and ``find`` say of an environment."""
    done = subprocess.run(["sh", "-c", LISTING], cwd=environment, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="module")
def battle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Both variants built on the reference, the first one current on the victim, each phase's length seen."""
    folder = tmp_path_factory.mktemp("killed")
    with (
        remote_hosts(folder / "hosts", ["c"]) as hosts,
        pytest.MonkeyPatch.context() as patched,
        repository_in(folder / "here") as repository,
        Forwarder(("127.0.0.1", hosts["c"].port)) as link,
    ):
        for name in [each for each in os.environ if each.startswith(("UV_", "PIP_"))]:
            patched.delenv(name)
        remotes = Remotes(repository=repository, hosts=hosts)
        for name, value in (repository.environment | remotes.install()).items():
            patched.setenv(name, value)
        remotes.reach_by({"c": link.port})
        root = remotes.root("c")
        root.mkdir(parents=True)
        victim = Victim(root, int((folder / "hosts/c/sshd/pid").read_text()), link)
        made = Field(remotes=remotes, victim=victim)
        furnish(made)
        yield made
        end([*ours(repository), *descendants(victim.sshd)])


def furnish(made: Field) -> None:
    repository = made.repository
    files = {f"kernel/m{number}.py": f"N = {number}\n" * 20 for number in range(80)}
    repository.wheel("kernel", "1.0", {**files, "kernel/__init__.py": "WHOSE = 'index'\n"})
    made.spec()
    plain = made.reference / "builds" / made.run("build_env", "ref")["build"]
    for variant in reversed(VARIANTS):
        made.make_variant(variant, plain)
    made.remotes.share(*WANTED, env=ENV)
    made.remotes.spec("c", supply="offline = true", more=OVERLAY + REFERENCE)
    made.run("lock", "c")
    with Watch(made.victim.root) as watch:
        made.run("sync_patches", "ref", "c")
    seen = watch.lengths()
    first = {moment: seen.get(moment, LAST) for moment in Moment}
    made.lengths = {(session, moment): span for session in SESSIONS for moment, span in first.items()}
    assert made.current() == VARIANTS[0]
    kinds = ("/kernel/ops.bin", "/demo/__init__.py", "./bin/", "/METADATA")
    assert all(each in tree for each in kinds for tree in made.trees.values()), "the oracle sees it all"
    assert made.trees["A"] != made.trees["B"]


@pytest.mark.parametrize("kill", Kill)
def test_ended_at_any_moment_the_target_is_whole_and_the_next_run_finishes(
    battle: Field, kill: Kill, kills: range
) -> None:
    with contextlib.ExitStack() as stack:
        if kill is Kill.DISK and (problem := stack.enter_context(small_disk(battle.victim.root, DISK))):
            pytest.skip(problem)
        cut = [repeatably(battle, trial) for trial in map(draw, kills) if trial.kill is kill]
    assert any(cut) or len(cut) < ENOUGH, "nothing was cut short: all came too late"


def repeatably(battle: Field, trial: Trial) -> bool:
    """Carry out a trial; a failure says how to do it again."""
    try:
        return carry_out(battle, trial)
    except BaseException as error:
        error.add_note(f"again: {trial}")
        raise


def carry_out(battle: Field, trial: Trial) -> bool:
    """End a session as the trial says, look at what is left, and run it again; tell if it was cut short."""
    victim, repository = battle.victim, battle.repository
    old, new, words = prepare(battle, trial)
    with Watch(victim.root) as watch:
        session = start(repository, trial.session, *words)
        watch.wait(trial.moment, session, lambda: victim.aim(trial.kill))
        time.sleep(trial.share * battle.lengths[trial.session, trial.moment])
        victim.strike(trial.kill, session)
        said, _ = session.communicate(timeout=300)
    battle.learn(trial.session, watch)
    victim.heal()
    assert "Traceback" not in said, said
    assert "[Errno" not in said, said
    assert all_gone(repository, victim.sshd)
    found = battle.current()
    assert found in {old, new}
    assert session.returncode or found == new, said
    LOG.info("%s: %s %s | %s", trial, found == old, session.returncode, said[-200:])

    done = battle.run(trial.session, *words)
    assert battle.current() == new
    assert battle.left_over() == []
    if trial.session == "sync_patches":
        assert any("equal to ref in every file" in note for note in done["notes"])
    if trial.session == "rollback":
        assert json.loads((victim.root / "hold.json").read_text())["why"]
        battle.run("switch", "c", "--build", battle.builds[new])
    return session.returncode != 0


def prepare(battle: Field, trial: Trial) -> tuple[str, str, list[str]]:
    """Make ready for a trial; return which variant is current, which is wanted, and the session's words."""
    root = battle.victim.root
    old = battle.current()
    new = VARIANTS[1 - VARIANTS.index(old)]
    built = root / "builds" / battle.builds[new]
    if trial.session == "sync_patches":
        battle.want(new)
        shutil.rmtree(built, ignore_errors=True)
        for name in trial.without:
            shutil.rmtree(battle.cache if name == HERE else root / name)
        return old, new, ["ref", "c"]
    if not built.exists():
        battle.want(new)
        battle.run("sync_patches", "ref", "c")
        old, new = new, old
    return old, new, ["c", "--build", battle.builds[new]]
