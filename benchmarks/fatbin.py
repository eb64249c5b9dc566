"""Compare the walk over GPU code with ``cuobjdump``: whether the images are the same, and the times.

    python benchmarks/fatbin.py FOLDER [--cuobjdump PATH] [--largest BYTES]

cuobjdump does not list an ``f`` suffix, nor LTO-IR: both are left out of the comparison. It lists executable
code where there is any, relocatable code otherwise, or all with ``-all``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from hostenv.agent import gpucode

LISTED = re.compile(r"^(?:ELF|PTX) file +\d+: .*\.sm_(\d+[a-z]?)\.(cubin|ptx)$", re.MULTILINE)


def walked(path: Path) -> Counter[tuple[str, str]]:
    """Return (architecture, cubin or ptx) → images, as the agent sees them, the ``f`` left out."""
    code = gpucode.read(str(path)) or {"containers": []}
    found: Counter[tuple[str, str]] = Counter()
    for container in code["containers"]:
        for image in container["images"]:
            kind, _, rest = image.partition("_")
            if kind in ("sm", "compute"):
                name = rest.partition(":")[0].removesuffix("f")
                found[name, "cubin" if kind == "sm" else "ptx"] += container["count"]
    return found


def dumped(program: str, path: Path) -> Counter[tuple[str, str]]:
    """Return the same as cuobjdump lists it."""
    found: Counter[tuple[str, str]] = Counter()
    for option in ("--list-elf", "--list-ptx"):
        asked = (program, "-all", option, str(path))
        printed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        found.update((name.removesuffix("f"), kind) for name, kind in LISTED.findall(printed))
    return found


def main() -> int:
    """Print one line for each object that differs, then the times; 1 where any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--largest", type=int, default=1 << 40)
    chosen = parser.parse_args()
    start = time.perf_counter()
    answer = gpucode.gpu_code(None, root=str(chosen.folder))  # type: ignore[arg-type]  # the wire is unused
    found = time.perf_counter()
    gpucode.gpu_code(None, root=str(chosen.folder), paths=list(answer["objects"]))  # type: ignore[arg-type]
    again = time.perf_counter()
    images = sum(
        len(container["images"]) * container["count"]
        for code in answer["objects"].values()
        for container in code["containers"]
    )
    print(f"{images} images in {len(answer['objects'])} objects")
    print(f"folder walk and images {found - start:.3f} s, images alone {again - found:.3f} s")
    compared = differing = listed = 0
    for name in sorted(answer["objects"]):
        path = chosen.folder / name
        if path.stat().st_size > chosen.largest:
            continue
        compared += 1
        mine, theirs = walked(path), dumped(chosen.cuobjdump, path)
        listed += theirs.total()
        if mine != theirs:
            differing += 1
            print(f"differs: {name}\n  only walked {mine - theirs}\n  only cuobjdump {theirs - mine}")
    took = time.perf_counter() - again
    print(f"cuobjdump: {listed} images in {compared} objects, {took:.1f} s, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
