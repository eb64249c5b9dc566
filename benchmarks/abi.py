"""Time the judgement of an environment beside the loader itself, ``ldd -r``, ``lddtree`` and ``readelf``.

    python benchmarks/abi.py VENV [--rounds N] [--only-ours] [--facts FILE]

Our own seconds are the agent's, in a fresh process each (bare, then with nothing changed since); the others
work over the same objects. ``lddtree`` is auditwheel's and left out where it is not installed.

Then the whole ``verify_abi`` is timed, against saved facts of a GPU host, and what its rules add: everything
but the objects, the host's facts and the agent's start, so the look at all files, the surroundings, reading
the answers and judging. Wanted for sglang 0.5.23's 75,000 files: at most 1 s with nothing changed since the
last look, 6 s where everything must be read. ``find`` of all stats beside it is what the disk takes.

Times of a busy machine compare only within one run; seconds of CPU (ours and our processes') are told, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "tests" / "data" / "h200" / "facts.json.xz"
CHILD = ROOT / "scripts" / "hostenv" / "workflows" / "dlopen_child.py"

_OURS = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from hostenv.agent import objects
answer = objects.objects(None, venv=sys.argv[2], cache=sys.argv[3] or None, gpu=True)
peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
paths = [item["path"] for item in answer["objects"]]
print(json.dumps([answer["seconds"], answer["cached"], peak >> 10, paths, answer["site"]]))
"""

_WHOLE = """
import contextlib, io, json, os, pathlib, resource, sys, time
sys.path.insert(0, sys.argv[1])
from hostenv import commands
from hostenv.commands import verify_abi  # what the program itself takes to load is not the rules'
from hostenv.machine.agent import Agent

spent = {}

def timed(name, function):
    def call(*args, **keywords):
        began = time.monotonic()
        try:
            return function(*args, **keywords)
        finally:
            operation = name or args[1]
            spent[operation] = spent.get(operation, 0.0) + time.monotonic() - began
    return call

Agent.call = timed(None, Agent.call)
Agent.start = timed("start", Agent.start)
began = time.monotonic()
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    words = ["--venv", sys.argv[2], "--facts", sys.argv[3]]
    commands.run("verify_abi", words, pathlib.Path(sys.argv[1]).parent)
whole = time.monotonic() - began
facts = sum(spent.get(name, 0.0) for name in ("start", "probe.host", "abi.objects"))
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu = sum(each.ru_utime + each.ru_stime for each in used)
print(json.dumps([whole - facts, whole, cpu, spent["site.look"], spent["abi.surroundings"]]))
"""


def whole(venv: str, facts: str, caches: str) -> tuple[float, ...]:
    """Return the seconds that the rules add, those of all of ``verify_abi``, of CPU, and two parts."""
    argv = (sys.executable, "-c", _WHOLE, str(ROOT / "scripts"), venv, facts)
    told = json.loads(subprocess.check_output(argv, env={**os.environ, "XDG_CACHE_HOME": caches}))
    return tuple(map(float, told))


def time_whole(venv: str, facts: str | None, rounds: int) -> None:
    """Print what the rules add, beside ``find``."""
    with tempfile.TemporaryDirectory() as folder:
        if facts is None:
            facts = f"{folder}/facts.json"
            Path(facts).write_bytes(lzma.decompress(FACTS.read_bytes()))
        caches = [f"{folder}/{number}" for number in range(rounds)]
        read = min(whole(venv, facts, cache) for cache in caches)
        again = min(whole(venv, facts, cache) for cache in caches)
        stats = min(timed(("find", venv, "-printf", "%p %m %s %i %T@ %C@\n")) for _ in range(rounds))
    for name, (added, seconds, cpu, look, around) in (("everything read", read), ("nothing changed", again)):
        print(
            f"{f'rules add, {name}':<28}{added:8.2f} s  of {seconds:.2f} s in all, {cpu:.2f} s of CPU "
            f"(files {look:.2f}, surroundings {around:.2f}, judging {added - look - around:.2f})"
        )
    print(f"{'find, all stats':<28}{stats:8.2f} s")


def ours(venv: str, cache: str) -> tuple[float, bool, int, list[str], str]:
    """Return the agent's seconds, whether from the cache, MiB at most, paths, and site-packages."""
    argv = (sys.executable, "-I", "-c", _OURS, str(ROOT / "scripts"), venv, cache)
    seconds, cached, peak, paths, site = json.loads(subprocess.check_output(argv))
    return seconds, cached, peak, paths, site


def timed(argv: tuple[str, ...], given: bytes = b"") -> float:
    """Return the seconds that a command takes; how it ends does not matter."""
    began = time.monotonic()
    subprocess.run(argv, input=given, capture_output=True, check=False)
    return time.monotonic() - began


def others(venv: str, paths: list[str]) -> dict[str, float]:
    """Return the seconds of the other tools over ``paths``."""
    python = f"{venv}/bin/python"
    given = b"\0".join(map(os.fsencode, paths))
    found = {
        "dlopen, bare": timed((python, "-I", str(CHILD)), given),
        "dlopen, after import torch": timed((python, "-I", str(CHILD), "torch"), given),
    }
    for name, argv in (("ldd -r", ("ldd", "-r")), ("readelf", ("readelf", "-dVW", "--dyn-syms"))):
        if shutil.which(argv[0]):
            found[name] = sum(timed((*argv, path)) for path in paths)
    if importlib.util.find_spec("auditwheel"):
        began = time.monotonic()
        lddtree = importlib.import_module("auditwheel.lddtree")
        for path in paths:
            lddtree.ldd(path)
        found["lddtree"] = time.monotonic() - began
    return found


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venv")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--facts", help="saved facts of a host to judge against (default: an H200's)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [ours(options.venv, "") for _ in range(options.rounds)]
        best, _, peak, paths, site = min(rounds)
        cache = f"{folder}/objects.json"
        ours(options.venv, cache)
        again = min(ours(options.venv, cache) for _ in range(options.rounds))
    print(f"{len(paths)} objects, load {os.getloadavg()[0]:.1f}, peak {peak} MiB of two processes")
    print(f"{'hostenv':<28}{best:8.2f} s")
    print(f"{'hostenv, nothing changed':<28}{again[0]:8.2f} s{'' if again[1] else ' (not from the cache)'}")
    time_whole(str(Path(options.venv).absolute()), options.facts, options.rounds)
    if not options.only_ours:
        for name, seconds in others(options.venv, [f"{site}/{path}" for path in paths]).items():
            print(f"{name:<28}{seconds:8.2f} s{seconds / best:8.1f} x")


if __name__ == "__main__":
    main()
