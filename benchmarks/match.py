"""Times ``match`` of two large environments beside the tools that people compare folders with.

    python benchmarks/match.py FOLDER [OTHER] [--rounds N] [--skip-rsync]

FOLDER and OTHER are virtual environments on this machine, only read; without OTHER, FOLDER is compared with
itself under another name, which reads it twice as two hosts would. Each is a host of its own, so two agents
work at once and share this machine's cores, where two machines would have their own: ``one host`` is what an
agent needs alone. The rounds take turns, the page cache is warm after the first reading; the load is printed,
for the figures of a busy machine mean little.

Wanted for 75,000 files of 9.95 GB on two cores: all bytes hashed in at most 4.5 s on one host, nothing
changed in at most 0.8 s.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import io
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from hostenv import commands  # noqa: E402  the path is set above
from hostenv.errors import HostenvError  # noqa: E402
from hostenv.machine.agent import agent_on  # noqa: E402
from hostenv.machine.local import LocalTransport  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def make_repository(folder: pathlib.Path) -> None:
    """Write two hosts on this machine."""
    (folder / "envspecs").mkdir(parents=True)
    (folder / "patches").mkdir()
    for name in ("one", "two"):
        (folder / f"envspecs/{name}.toml").write_text(
            f'[host]\ntransport = "local"\nroot = "{folder}/root-{name}"\nmode = "observe"\n'
        )


def compare(folder: pathlib.Path, one: pathlib.Path, two: pathlib.Path, *words: str) -> None:
    """Run the command; what it prints is not shown."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        commands.run("match", [f"one:{one}", f"two:{two}", *words], folder)


def hash_one(environment: pathlib.Path, root: pathlib.Path) -> None:
    """Have one agent hash everything, alone."""
    with agent_on(LocalTransport("one"), python=sys.executable) as agent:
        agent.call("environment.look", root=str(root), path=str(environment), rehash=True)


def stat_of(environment: pathlib.Path, root: pathlib.Path) -> str | None:
    """Return the digest of all stats, as an agent tells it; ``None`` where a file is too young for it."""
    with agent_on(LocalTransport("one"), python=sys.executable) as agent:
        told = agent.call("environment.look", root=str(root), path=str(environment))
        return None if told["stat"] is None else str(told["stat"])


def look_again(environment: pathlib.Path, root: pathlib.Path, seen: str | None) -> None:
    """Have one agent look whether anything changed, alone."""
    with agent_on(LocalTransport("one"), python=sys.executable) as agent:
        told = agent.call("environment.look", root=str(root), path=str(environment), seen=seen)
        if told["summary"] is not None:
            print("something changed meanwhile")


def all_stats(environment: pathlib.Path) -> None:
    """Print the stats of every file, as people do who compare them."""
    argv = ["find", str(environment), "-printf", "%p %m %s %i %T@ %C@\n"]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)


def checksums(environment: pathlib.Path) -> None:
    """Hash every file as people do, two processes at once."""
    script = "find . -type f -print0 | xargs -0 -P2 -n 512 sha256sum >/dev/null"
    subprocess.run(["sh", "-c", script], cwd=environment, check=True)


def hash_bare(environment: pathlib.Path) -> None:
    """Hash every file with Python's own function in two processes: what the cores can do."""
    files = [str(path) for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    files.sort(key=os.path.getsize, reverse=True)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        halves = [pool.submit(hash_files, files[half::2]) for half in range(2)]
        for half in halves:
            half.result()


def hash_files(paths: list[str]) -> None:
    """Hash files, one after another."""
    for path in paths:
        with pathlib.Path(path).open("rb", buffering=0) as file:
            hashlib.file_digest(file, "sha256")


def rsync(one: pathlib.Path, two: pathlib.Path) -> None:
    """Have rsync find what differs by content."""
    argv = ["rsync", "-nac", "--delete", "--out-format=%n", f"{one}/", f"{two}/"]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)


def timed(work: Callable[[], None]) -> float:
    """Return the seconds that something takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def main() -> int:
    """Print a line for each way: median seconds, all rounds, ratio to sha256sum of one environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-rsync", action="store_true")
    chosen = parser.parse_args()
    one, two = chosen.folder.absolute(), (chosen.other or chosen.folder).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        make_repository(folder)
        seen = stat_of(one, folder)
        ways: dict[str, Callable[[], None]] = {
            "sha256sum, xargs -P2, one": lambda: checksums(one),
            "two bare processes, one": lambda: hash_bare(one),
            "all bytes, one host": lambda: hash_one(one, folder),
            "find, all stats, one": lambda: all_stats(one),
            "nothing changed, one host": lambda: look_again(one, folder, seen),
            "match, all bytes, two hosts": lambda: compare(folder, one, two, "--rehash"),
            "match, nothing changed": lambda: compare(folder, one, two),
        }
        if shutil.which("rsync") and not chosen.skip_rsync:
            ways["rsync -nac"] = lambda: rsync(one, two)
        try:
            compare(folder, one, two)
        except HostenvError as error:
            print(error)
            return 1
        report(measure(ways, chosen.rounds))
    return 0


def measure(ways: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Take turns."""
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            figures[name].append(timed(work))
    return figures


def report(figures: Mapping[str, list[float]]) -> None:
    """Print the figures."""
    base = statistics.median(next(iter(figures.values())))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, seconds in figures.items():
        median = statistics.median(seconds)
        rounds = " ".join(f"{each:.2f}" for each in seconds)
        print(f"{name:<28} {median:7.2f} s  {median / base:5.2f} x  ({rounds})")


if __name__ == "__main__":
    sys.exit(main())
