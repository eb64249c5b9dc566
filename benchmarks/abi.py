"""Time the judgement of an environment beside the loader itself, ``ldd -r``, ``lddtree`` and ``readelf``.

    python benchmarks/abi.py VENV [--rounds N]

Our own seconds are the agent's, in a fresh process each (bare, then with nothing changed since); the others
work over the same objects. ``lddtree`` is auditwheel's and left out where it is not installed. Times of a
busy machine compare only within one run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    if not options.only_ours:
        for name, seconds in others(options.venv, [f"{site}/{path}" for path in paths]).items():
            print(f"{name:<28}{seconds:8.2f} s{seconds / best:8.1f} x")


if __name__ == "__main__":
    main()
