"""Compares ``fetch`` with the download part of ``uv pip sync`` into an empty cache, in one run.

    python benchmarks/fetch.py [--wheels N] [--mebibytes N] [--rounds N]

The index is a process of its own on loopback, the same for both. The wheels are stored, not compressed: what
uv unpacks beside the download costs it as little as can be. uv's figure is its own ("Prepared N packages in
…"), which holds no linking. The figures are the best of the rounds; at most 1.1 is wanted.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from hostenv.agent.wheelhouse import Wheelhouse  # noqa: E402
from hostenv.index.fetch import fetch as bring  # noqa: E402
from hostenv.machine import uv  # noqa: E402
from hostenv.spec.lock import Lock, LockEntry  # noqa: E402
from hostenv.spec.lockplatform import LockPlatform  # noqa: E402
from hostenv.steps import fetch  # noqa: E402
from hostenv.steps.locate import locate  # noqa: E402
from kit.wheels import build_wheel  # noqa: E402  the path is set above

PLATFORM = LockPlatform(python=f"3.{sys.version_info[1]}", arch=os.uname().machine, glibc="2.34")
LARGE_SHARE = 0.9
"""Part of the bytes that a twentieth of the wheels holds, as in SGLang's lock."""

_SERVE = (
    "import pathlib, sys, time\n"
    "from kit.registry import Registry\n"
    "with Registry(pathlib.Path(sys.argv[1])) as served:\n"
    "    print(served.simple, flush=True)\n"
    "    sys.stdin.read()\n"
)


AT_MOST = 1.1
"""Seconds of hostenv's fetch for a second of uv's download."""


def main() -> int:
    """Run the comparison and print a table; 1 where hostenv takes longer than is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=int, default=200)
    parser.add_argument("--mebibytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostenv-bench-") as scratch:
        folder = pathlib.Path(scratch)
        lock = make_lock(folder / "files", arguments.wheels, arguments.mebibytes << 20)
        with subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(folder / "files")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) as server:
            os.environ["UV_DEFAULT_INDEX"] = server.stdout.readline().strip() if server.stdout else ""
            os.environ["UV_NO_CONFIG"] = "1"
            os.environ["UV_CACHE_DIR"] = str(folder / "resolver-cache")
            try:
                ratio = compare(lock, folder, arguments.rounds)
            finally:
                server.communicate()
    return 0 if ratio <= AT_MOST else 1


def compare(lock: Lock, folder: pathlib.Path, rounds: int) -> float:
    """Time both, taking turns, and print the best of each; return their ratio."""
    ours, theirs, located = [], [], []
    for number in range(rounds):
        theirs.append(by_uv(lock, folder / f"uv-{number}"))
        begun = time.perf_counter()
        sources, logins = locate(lock, lock.entries)
        located.append(time.perf_counter() - begun)
        os.sync()
        begun = time.perf_counter()
        bring(sources, Wheelhouse(str(folder / f"wheelhouse-{number}")), logins=logins)
        ours.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    nothing = fetch.plan(lock, folder / "wheelhouse-0")
    again = time.perf_counter() - begun
    print(f"{len(lock.entries)} wheels, {lock.size / 2**20:.0f} MiB, best of {rounds}")
    print(f"uv pip sync, empty cache, its download   {min(theirs):7.2f} s")
    print(f"hostenv fetch, hashed and durable        {min(ours):7.2f} s")
    print(f"  asking uv where the wheels lie         {min(located):7.2f} s")
    print(f"  a second look ({len(nothing.missing)} missing)             {again:9.4f} s")
    ratio = min(ours) / min(theirs)
    mark = "ok" if ratio <= AT_MOST else "MISSED"
    print(f"ratio                                    {ratio:7.2f}   (at most {AT_MOST})  {mark}")
    return ratio


def by_uv(lock: Lock, folder: pathlib.Path) -> float:
    """Return the seconds that uv says it took to bring the wheels."""
    folder.mkdir()
    (folder / "lock.txt").write_text(lock.render())
    own = os.environ | {"UV_CACHE_DIR": str(folder / "cache")}
    subprocess.run(
        [uv.binary(), "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True, env=own
    )
    os.sync()
    command = [str(uv.binary()), "pip", "sync", "--python", str(folder / "venv"), "--require-hashes"]
    done = subprocess.run(
        [*command, "--color=never", str(folder / "lock.txt")],
        check=True,
        env=own,
        capture_output=True,
        text=True,
    )
    said = re.search(r"Prepared \d+ packages? in (?:(\d+)m )?([\d.]+)(ms|s)", done.stderr)
    if not said:
        raise SystemExit(f"uv did not say how long it took:\n{done.stderr}")
    return 60 * int(said[1] or 0) + float(said[2]) / (1000 if said[3] == "ms" else 1)


def make_lock(folder: pathlib.Path, count: int, size: int) -> Lock:
    """Make wheels of random bytes and the lock that names them."""
    source = random.Random(1)  # noqa: S311  content, no secret
    large = max(1, count // 20)
    entries = []
    for number in range(count):
        share = size * LARGE_SHARE / large if number < large else size * (1 - LARGE_SHARE) / (count - large)
        content = {f"bench{number}/data.bin": source.randbytes(int(share))}
        wheel = build_wheel(folder, f"bench{number}", "1.0", content, compress=False)
        entries.append(
            LockEntry(
                name=wheel.name,
                version=wheel.version,
                sha256=wheel.sha256,
                filename=wheel.filename,
                size=wheel.size,
            )
        )
    return Lock(name="bench", platform=PLATFORM, inputs=(), entries=tuple(entries))


if __name__ == "__main__":
    sys.exit(main())
