"""Runs the benchmarks that are named, or all but those that need a folder, one after another.

    nox -s bench [-- NAME... [-- OPTIONS]]

A benchmark is a module of this folder with a ``main()`` that parses its own options and prints its figures.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent

NEEDS_ARGUMENTS = ("abi", "fatbin", "match")
"""Benchmarks that look at a folder that the caller names: run only where they are asked for."""


def main() -> int:
    """Run each in a process of its own; return 1 where one failed."""
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "run")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    names, options = words[:cut], words[cut + 1 :]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
        return 1
    failed = []
    for name in names or [name for name in known if name not in NEEDS_ARGUMENTS]:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, FOLDER / f"{name}.py", *options], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
