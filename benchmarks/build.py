"""Compares ``build_env`` with plain uv, and times what an operator waits for when there is nothing to do.

    python benchmarks/build.py [--wheels FOLDER] [--rounds N] [--scratch FOLDER]

The environment is ``local``, from real wheels: those of the wheelhouse ``FOLDER`` (one that ``fetch``
filled), or else downloaded. Both sides install the same wheels with the same link mode, from an empty cache
of uv's and again from a full one, alternating; before each measurement the disk is synced. Ours is the whole
command: start of nox, plan, build, series, manifest, checks, sync, switch. The figures are medians; those of
a busy machine mean little, so the load is printed.

Wanted: a build in at most uv's time, 1.3 times that of hashing its bytes with two processes, and 0.5 s;
nothing to do in at most 0.5 s where the environment has what hostenv needs, in 1.3 s through nox's script
mode; ``nox -l`` in 0.3 s.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from hostenv.agent import venv  # noqa: E402
from hostenv.agent.layout import Layout  # noqa: E402
from hostenv.machine import uv  # noqa: E402
from hostenv.spec.lock import Lock  # noqa: E402
from hostenv.steps import fetch  # noqa: E402  the path is set above

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOCAL_ROOT = 'root = "~/.local/share/hostenv"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A repository in a folder of its own, with ``local``'s root below it and every wheel in place."""

    folder: pathlib.Path
    rounds: int

    @property
    def root(self) -> pathlib.Path:
        """The host's root."""
        return self.folder / "root"

    @property
    def lock(self) -> Lock:
        """The lock for the running Python."""
        name = f"local.cp3{sys.version_info[1]}-{os.uname().machine}.txt"
        return Lock.parse((self.folder / "envspecs/locks" / name).read_text(), document=name)

    def prepare(self, wheels: pathlib.Path | None) -> None:
        """Copy what a session reads, and bring the wheels."""
        for name in ("envspecs", "patches"):
            shutil.copytree(ROOT / name, self.folder / name)
        for name in ("scripts", "pyproject.toml"):
            (self.folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "noxfile.py", self.folder)
        spec = self.folder / "envspecs/local.toml"
        spec.write_text(spec.read_text().replace(LOCAL_ROOT, f"root = {json.dumps(str(self.root))}"))
        if wheels:
            shutil.copytree(wheels, self.root / "wheelhouse")
        self.nox("fetch")

    def nox(self, session: str) -> None:
        """Run a session, in the process that starts."""
        run([sys.executable, "-m", "nox", "-s", session, "--", "local"], self.folder)

    def build(self) -> None:
        """Build and switch."""
        self.nox("build_env")

    def forget_builds(self) -> None:
        """Remove every build."""
        for name in ("builds", "generations"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / "current").unlink(missing_ok=True)

    def forget_caches(self) -> None:
        """Empty both caches."""
        for cache in (self.root / "cache", self.folder / "uv-cache"):
            shutil.rmtree(cache, ignore_errors=True)


def plain_uv(bench: Bench, python: str, mode: str) -> None:
    """Make a venv of the same wheels with uv alone."""
    target, rendered = bench.folder / "plain", bench.folder / "pylock.toml"
    common = ["--offline", "--no-config", "--quiet", "--cache-dir", str(bench.folder / "uv-cache")]
    run([str(uv.binary()), "venv", "--relocatable", "--python", python, *common, str(target)], bench.folder)
    sync = [str(uv.binary()), "pip", "sync", str(rendered), "--python", str(target / "bin/python")]
    sync += ["--preview-features", "pylock", "--no-index", "--require-hashes", "--link-mode", mode, *common]
    run(sync, bench.folder)


def render(bench: Bench) -> None:
    """Write the ``pylock.toml`` of the wheels in the wheelhouse."""
    lock = bench.lock
    wheels = [
        {"name": e.name, "version": e.version, "sha256": e.sha256, "size": e.size, "path": str(path)}
        for e, path in zip(lock.entries, fetch.paths(lock, bench.root / "wheelhouse"), strict=True)
    ]
    (bench.folder / "pylock.toml").write_text(venv.render(wheels))


def run(argv: Sequence[str], folder: pathlib.Path) -> None:
    """Run a program; what it says is shown where it fails."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        argv, cwd=folder, env=usual, stdout=-1, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stdout}")


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes, nothing left to write from before."""
    os.sync()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def hash_files(paths: Sequence[str]) -> None:
    """Hash files by sha256."""
    for path in paths:
        with open(path, "rb") as file:  # noqa: PTH123  as quick as can be: it is the measure
            hashlib.file_digest(file, "sha256")


def hash_with_two(folder: pathlib.Path) -> float:
    """Return how long two processes take to hash every file below a folder, balanced by bytes."""
    sized = sorted(
        ((os.path.getsize(path), path) for path in map(str, folder.rglob("*")) if os.path.isfile(path)),  # noqa: PTH113, PTH202
        reverse=True,
    )
    halves: list[list[str]] = [[], []]
    weights = [0, 0]
    for size, path in sized:
        lighter = weights.index(min(weights))
        halves[lighter].append(path)
        weights[lighter] += size
    begun = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        list(pool.map(hash_files, halves))
    return time.perf_counter() - begun


def compare_builds(bench: Bench) -> bool:
    """Print a line for an empty and one for a full cache; tell whether both are as wanted."""
    good = True
    render(bench)
    bench.build()
    build = (bench.root / "current/env").resolve()
    facts = json.loads((build / ".hostenv/facts.json").read_text())["tree"]
    python = str((build / "bin/python").resolve())
    mode = venv.link_mode(Layout(str(bench.root)), "auto")
    hashing = statistics.median(hash_with_two(build) for _ in range(bench.rounds))
    print(f"local: {len(bench.lock.entries)} wheels, {facts['files']} files, {facts['bytes'] / 1e6:.0f} MB")
    print(f"link mode {mode}; hashing with two processes {hashing:.2f} s")
    for cold in (True, False):
        uv_alone, ours = [], []
        for _ in range(bench.rounds):
            bench.forget_builds()
            shutil.rmtree(bench.folder / "plain", ignore_errors=True)
            if cold:
                bench.forget_caches()
            uv_alone.append(seconds(lambda: plain_uv(bench, python, mode)))
            ours.append(seconds(bench.build))
        allowed = statistics.median(uv_alone) + 1.3 * hashing + 0.5
        told = (
            f"build, uv's cache {'empty' if cold else 'full'}: uv alone {statistics.median(uv_alone):.2f} s"
        )
        good &= verdict(told, statistics.median(ours), allowed)
    return good


def verdict(what: str, found: float, allowed: float) -> bool:
    """Print a figure beside what is wanted; tell whether it is that."""
    mark = "ok" if found <= allowed else "MISSED"
    print(f"{what}; hostenv {found:.2f} s, wanted {allowed:.2f} s, ratio {found / allowed:.2f}  {mark}")
    return found <= allowed


def compare_idle(bench: Bench) -> bool:
    """Print how long nothing to do takes, by either way of starting nox; tell whether that is as wanted."""
    bench.build()
    own = (sys.executable, "-m", "nox")
    many = 2 * bench.rounds + 1
    listing = [seconds(lambda: run([*own, "-l"], bench.folder)) for _ in range(many)]
    good = verdict("nox -l", statistics.median(listing), 0.3)
    idle = [seconds(bench.build) for _ in range(many)]
    good &= verdict("nothing to do, dependencies at hand", statistics.median(idle), 0.5)
    with contextlib.suppress(SystemExit):
        bare = bench.folder / "bare"
        run([str(uv.binary()), "venv", "--quiet", str(bare)], bench.folder)
        run([str(uv.binary()), "pip", "install", "--quiet", "--python", str(bare), "nox"], bench.folder)
        script = [str(bare / "bin/nox"), "-s", "build_env", "--", "local"]
        run(script, bench.folder)
        again = [seconds(lambda: run(script, bench.folder)) for _ in range(many)]
        good &= verdict("nothing to do, nox's script mode", statistics.median(again), 1.3)
    return good


def main() -> int:
    """Run both comparisons and print a line each; 1 where one is not as wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=pathlib.Path, help="a wheelhouse to copy, instead of a download")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="where to work; 3 GB are needed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostenv-bench-", dir=arguments.scratch) as scratch:
        bench = Bench(folder=pathlib.Path(scratch), rounds=arguments.rounds)
        bench.prepare(arguments.wheels)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        results = [compare_builds(bench), compare_idle(bench)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
