"""Compares hostenv's streams with rsync and ``tar | ssh`` over OpenSSH's server on loopback, in one run.

    python benchmarks/transfer.py [--small FOLDER] [--libs FOLDER] [--rounds N] [--link near|far]

Without folders it makes files of the same number and sizes. Every way starts from nothing: a new
connection, an empty destination, no dirty pages. The figures are the best of the rounds; the
ratios are what the issue promises: hostenv within 1.25 of ``tar | ssh`` and at or below rsync.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from hostenv.machine import bulk  # noqa: E402
from hostenv.machine.agent import agent_on  # noqa: E402
from hostenv.machine.ssh import Address, SshTransport, open_ssh  # noqa: E402
from kit.sshd import Sshd  # noqa: E402  the path is set above

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostenv.machine.agent import Agent

SMALL = (5770, 77 << 20)
LIBS = (57, 1_670_000_000)
MEGABYTE = 1e6
AT_MOST_TAR = 1.25


def main() -> int:
    """Run the comparison and print a table; 1 where hostenv takes longer than is wanted."""
    arguments = parse()
    good = True
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = pathlib.Path(scratch)
        small = arguments.small or make_files(folder / "small", *SMALL)
        libs = arguments.libs or make_files(folder / "libs", *LIBS)
        with Sshd(folder / "sshd") as sshd, delayed(sshd.port, arguments.delay) as far_port:
            config = folder / "ssh_config"
            near = sshd.client_entry("near", sshd.port)
            config.write_text(near + sshd.client_entry("far", far_port))
            bench = Bench(folder / "destination", config, arguments.rounds)
            if arguments.link != "far":
                good &= bench.compare("small, loopback", small, "near", (1,))
                good &= bench.compare("libs, loopback", libs, "near", (1, 2))
            if arguments.link != "near":
                good &= bench.compare(f"small, {arguments.delay * 1000:.0f} ms", small, "far", (1,))
                good &= bench.compare(f"libs, {arguments.delay * 1000:.0f} ms", libs, "far", (1, 4))
    return 0 if good else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", type=pathlib.Path, help="folder of many small files")
    parser.add_argument("--libs", type=pathlib.Path, help="folder of large libraries")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.02, help="round trip of the slow link, in seconds")
    parser.add_argument("--link", choices=("near", "far", "both"), default="both")
    parser.add_argument("--scratch", help="where to work; 4 GB are needed")
    return parser.parse_args()


def make_files(folder: pathlib.Path, count: int, size: int, *, suffix: str = ".py") -> pathlib.Path:
    """Write ``count`` files of ``size`` bytes in all, sizes spread as those of packages are."""
    chance = random.Random(0)  # noqa: S311  no secret
    weights = [chance.lognormvariate(0, 1.5) for _ in range(count)]
    for index, weight in enumerate(weights):
        path = folder / f"package_{index % 97}" / f"module_{index}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        left = int(size * weight / sum(weights))
        with path.open("wb") as file:
            while left:  # randbytes takes fewer than 256 MiB
                left -= file.write(chance.randbytes(min(left, 1 << 26)))
    return folder


@contextlib.contextmanager
def delayed(port: int, round_trip: float):  # type: ignore[no-untyped-def] # noqa: ANN201  a generator of int
    """Run the kit's forwarder in a process of its own: half the round trip each way."""
    forwarder = ROOT / "tests" / "kit" / "forwarder.py"
    argv = [sys.executable, str(forwarder), "127.0.0.1", str(port), str(round_trip / 2)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout  # noqa: S101  it was asked for
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


class Bench:
    """One set of ways to move files, each timed from a new connection to an empty destination."""

    def __init__(self, destination: pathlib.Path, config: pathlib.Path, rounds: int) -> None:
        self.destination = destination
        self.config = config
        self.rounds = rounds

    def compare(self, title: str, source: pathlib.Path, host: str, connections: Sequence[int]) -> bool:
        """Time every way over ``rounds`` rounds, one after another in each, and print the best.

        Tells whether hostenv's best way is as quick as is wanted, to the host and back.
        """
        files = describe(source)
        ways: dict[str, Callable[[], object]] = {
            "tar | ssh": lambda: self.tar(source, host),
            "rsync -a": lambda: self.rsync(source, host),
        }
        for count in connections:
            name = f"hostenv, {count} connection{'s' if count > 1 else ''}"
            ways[name] = lambda count=count: self.send(source, files, host, count)  # type: ignore[misc] # mypy knows no default of a lambda
            ways[f"{name}, back"] = lambda count=count: self.fetch(source, files, host, count)  # type: ignore[misc]
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(self.rounds):
            for name, way in ways.items():
                best[name] = min(best[name], self.timed(way))
        size = sum(file.size for file in files)
        print(f"\n{title}: {len(files)} files, {size / MEGABYTE:.0f} MB; seconds, to tar | ssh, to rsync")
        return report(best)

    def timed(self, way: Callable[[], object]) -> float:
        """Return the seconds that ``way`` takes into an empty destination."""
        shutil.rmtree(self.destination, ignore_errors=True)
        self.destination.mkdir()
        os.sync()
        begun = time.monotonic()
        way()
        return time.monotonic() - begun

    def tar(self, source: pathlib.Path, host: str) -> None:
        """Pack there, unpack here, through ssh."""
        far = shlex.join(["tar", "-xf", "-", "-C", str(self.destination)])
        pack = shlex.join(["tar", "--format=posix", "-cf", "-", "-C", str(source), "."])
        ssh = shlex.join(["ssh", "-F", str(self.config), host, far])
        subprocess.run(["sh", "-c", f"{pack} | {ssh}"], check=True)

    def rsync(self, source: pathlib.Path, host: str) -> None:
        """Copy with rsync over ssh."""
        shell = shlex.join(["ssh", "-F", str(self.config)])
        subprocess.run(["rsync", "-a", "-e", shell, f"{source}/", f"{host}:{self.destination}"], check=True)

    def send(self, source: pathlib.Path, files: Sequence[bulk.File], host: str, connections: int) -> None:
        """Put the files on the host."""
        with self.agents(host, connections) as agents:
            bulk.send_files(agents, source, str(self.destination), files)

    def fetch(self, source: pathlib.Path, files: Sequence[bulk.File], host: str, connections: int) -> None:
        """Fetch the files from the host."""
        with self.agents(host, connections) as agents:
            bulk.receive_files(agents, str(source), self.destination, files)

    @contextlib.contextmanager
    def agents(self, host: str, connections: int):  # type: ignore[no-untyped-def] # noqa: ANN201  a generator of agents
        """Start agents, each on a connection of its own."""
        address = Address(alias=host, ssh_config=self.config)
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(connections) as logins:
            transports = [stack.enter_context(open_ssh(host, address)) for _ in range(connections)]

            def start(transport: SshTransport) -> Agent:
                return stack.enter_context(agent_on(transport, python=sys.executable))

            yield list(logins.map(start, transports))


def describe(source: pathlib.Path) -> list[bulk.File]:
    """Return the files below a folder with their digests, as a lock or a manifest has them."""
    found = []
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(
                bulk.File(path=str(path.relative_to(source)), size=path.stat().st_size, sha256=digest)
            )
    return found


def report(best: Mapping[str, float]) -> bool:
    """Print a line a way, and whether the best of hostenv's is as wanted, in each direction."""
    for name, seconds in best.items():
        ratios = f"{seconds / best['tar | ssh']:5.2f}  {seconds / best['rsync -a']:5.2f}"
        print(f"  {name:28} {seconds:6.2f}  {ratios}")
    allowed = min(AT_MOST_TAR * best["tar | ssh"], best["rsync -a"])
    own = {name: seconds for name, seconds in best.items() if name.startswith("hostenv")}
    there = min(seconds for name, seconds in own.items() if not name.endswith("back"))
    back = min(seconds for name, seconds in own.items() if name.endswith("back"))
    good = max(there, back) <= allowed
    print(f"  wanted: {allowed:.2f} s there and back  {'ok' if good else 'MISSED'}")
    return good


if __name__ == "__main__":
    sys.exit(main())
