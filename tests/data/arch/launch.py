"""Write down what a real GPU makes of the samples: open each, launch its kernel, keep the ``cudaError``.

    LD_LIBRARY_PATH=/usr/local/cuda/lib64 python3 launch.py FOLDER > truth-GPU.json

Each launch has its own process: an error of CUDA's stays with the process that met it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FUNCTIONS = ("hostenv_run", "hostenv_run_second")
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "CUDA_MODULE_LOADING=EAGER": {"CUDA_MODULE_LOADING": "EAGER"},
}
"""Environments to launch in; the first is the ordinary one."""


def launch(path: str) -> dict[str, int]:
    """Launch the kernels of one sample in this process and return their errors, 0 for none."""
    library = ctypes.CDLL(path)
    return {name: getattr(library, name)() for name in FUNCTIONS if hasattr(library, name)}


def launch_apart(path: Path, setting: dict[str, str]) -> dict[str, int] | str:
    """Launch in a process of its own; a process that dies is told by its last line."""
    done = subprocess.run(
        (sys.executable, __file__, "--one", str(path)),
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        return f"exit {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


def describe_gpu() -> dict[str, str]:
    """Return the name, compute capability and driver of GPU 0, as nvidia-smi has them."""
    fields = "name,compute_cap,driver_version"
    query = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0")
    line = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    name, capability, driver = line.split(", ")
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return {"name": name, "compute_capability": capability, "driver": driver, "driver_cuda": cuda}


def main() -> None:
    """Launch every sample of the folder in every setting and print the answers as JSON."""
    if sys.argv[1] == "--one":
        sys.stdout.write(json.dumps(launch(sys.argv[2])))
        return
    samples = sorted(Path(sys.argv[1]).glob("*.so"))
    with ThreadPoolExecutor(8) as pool:
        results = {
            setting: {
                path.name: answer
                for path, answer in zip(
                    samples,
                    pool.map(lambda path, given=given: launch_apart(path, given), samples),
                    strict=True,
                )
            }
            for setting, given in SETTINGS.items()
        }
    sys.stdout.write(json.dumps({"gpu": describe_gpu(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
