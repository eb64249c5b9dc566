"""Coverage-guided fuzzing of the ELF reader, the verdicts on it and the loader's cache, with atheris.

    pip install atheris
    python tests/fuzz/elf_reader.py CORPUS -max_total_time=600 -rss_limit_mb=1024 -timeout=10

CORPUS is a folder: a few objects made with ``gcc -shared -nostdlib`` and an ld.so.cache are a good start.
A run ends at the first input that raises anything but the reader's own errors, takes ten seconds or a
gigabyte.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import sys
from typing import Any

atheris: Any = importlib.import_module("atheris")  # installed by hand where this is run
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))

with atheris.instrument_imports(include=["hostenv.agent"]):
    from hostenv.agent import elfsymbols, ldcache
    from hostenv.agent.elf import ElfFile
    from hostenv.agent.elfmodel import ElfError
    from hostenv.agent.hostfiles import HostFiles
    from hostenv.agent.loader import Process
    from hostenv.agent.loadermodel import System
    from hostenv.agent.verdicts import Judge

_SYSTEM = System(machine=62, folders=("/lib/",), cache={}, glibc=(2, 36))


def one(data: bytes) -> None:
    """Read ``data`` as an object and as a cache."""
    with contextlib.suppress(ldcache.CacheError):
        ldcache.table(ldcache.parse(data), 62, ["x86-64-v3"])
    descriptor = os.memfd_create("input")
    try:
        os.write(descriptor, data)
        with contextlib.suppress(ElfError):
            file = ElfFile(descriptor)
            list(elfsymbols.relocated(file))
        judge = Judge(HostFiles())
        judge.judge(Process(_SYSTEM, judge.files), f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
