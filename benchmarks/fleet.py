"""Builds on many hosts at once, each with its own sshd, host key, machine id and root on this machine.

    python benchmarks/fleet.py [--hosts N] [--jobs N]

Prints the seconds and the peak memory of the controller (RSS, everything that it starts added up), and the
same for one host alone, in the same run. Hosts and controller share this machine's processors: the seconds
are theirs together. At most 500 MB are wanted.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from kit.many import build_on_many  # noqa: E402  the path is set above

MEGABYTE = 1_000_000
AT_MOST = 500 * MEGABYTE
"""Bytes of memory."""


def main() -> int:
    """Build on one host, then on many; 1 where one did not finish or the memory is above what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--jobs", type=int, help="hosts side by side (all)")
    arguments = parser.parse_args()
    good = True
    print("hosts  done  seconds  seconds a host  peak MB")
    for count in (1, arguments.hosts):
        with tempfile.TemporaryDirectory(prefix="hostenv-bench-") as scratch:
            many = build_on_many(pathlib.Path(scratch), count, arguments.jobs or count)
        done = sum(host["outcome"] == "done" for host in many.hosts)
        each, peak = many.seconds / count, many.peak / MEGABYTE
        print(f"{count:5}  {done:4}  {many.seconds:7.1f}  {each:14.2f}  {peak:7.0f}")
        good &= done == count and many.peak <= AT_MOST
        if done < count:
            print(many.output)
    print(f"  wanted: all done, at most {AT_MOST / MEGABYTE:.0f} MB  {'ok' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
