"""Small shared objects made with gcc, the real loader's answer to them, and the simulated one.

Both loaders see the same process: this interpreter's program, started bare, with ctypes imported.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import loadersystem, preload
from hostenv.agent.elf import read_elf
from hostenv.agent.hostfiles import HostFiles
from hostenv.agent.loader import Process
from hostenv.agent.verdicts import Judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostenv.agent.verdicts import Verdict

PROGRAM = os.path.realpath(sys.executable)

_CHILD = """
import ctypes, json, os, sys
before, path = json.loads(sys.argv[1]), sys.argv[2]
for name, everyone in before:
    ctypes.CDLL(name, mode=os.RTLD_NOW | (os.RTLD_GLOBAL if everyone else os.RTLD_LOCAL))
try:
    ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
except OSError as error:
    print(error, end="")
"""

_PROGRAM_SOURCE = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    if (!dlopen(names[count - 1], RTLD_NOW)) fputs(dlerror(), stdout);
    return 0;
}
"""

needs_gcc = pytest.mark.skipif(
    not shutil.which("gcc") or sys.platform != "linux", reason="the cases are built with gcc on Linux"
)


def platform_machine() -> bytes:
    """Return e_machine of this machine's objects, as it stands in a file."""
    return pathlib.Path(PROGRAM).read_bytes()[18:20]


def shared(folder: pathlib.Path, name: str, source: str = "", *flags: str) -> pathlib.Path:
    """Compile ``source`` into the shared object ``folder/name``; ``flags`` go to gcc after it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    subprocess.run(
        ("gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-x", "none", "-o", str(path), *flags),
        input=source,
        text=True,
        check=True,
        capture_output=True,
        cwd=folder,
    )
    return path


def program(folder: pathlib.Path, name: str, *flags: str) -> pathlib.Path:
    """Compile a program that opens its last argument; ``flags`` go to gcc."""
    path = folder / name
    subprocess.run(
        ("gcc", "-x", "c", "-", "-x", "none", "-o", str(path), *flags, "-ldl"),
        input=_PROGRAM_SOURCE,
        text=True,
        check=True,
        capture_output=True,
        cwd=folder,
    )
    return path


def wrote(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    """Write ``folder/name`` (a linker's version script) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def real(
    path: object,
    *,
    before: Sequence[tuple[object, bool]] = (),
    environment: Mapping[str, str] | None = None,
    cwd: object = "/",
) -> str:
    """Return what ``dlopen`` says of ``path`` in a child, ``""`` where it loads.

    ``before`` are objects opened first, each with whether for everyone (RTLD_GLOBAL). A child that dies of a
    signal gives its number.
    """
    opened = json.dumps([(str(name), everyone) for name, everyone in before])
    done = subprocess.run(
        (PROGRAM, "-I", "-S", "-c", _CHILD, opened, str(path)),
        env={"LC_ALL": "C", **(environment or {})},
        cwd=str(cwd),
        capture_output=True,
        text=True,
        check=False,
    )
    return f"signal {-done.returncode}" if done.returncode < 0 else done.stdout + done.stderr


def simulated(
    path: object,
    *,
    before: Sequence[tuple[object, bool]] = (),
    environment: Mapping[str, str] | None = None,
    cwd: object = "/",
) -> Verdict:
    """Return the simulated loader's verdict on the same call."""
    system = loadersystem.system_of(read_elf(PROGRAM), environment or {}, cwd=str(cwd))
    files = HostFiles()
    judge = Judge(files)
    process = Process(system, files)
    place = preload.Environment(
        PROGRAM, "/nonexistent", _standard(), "cpython-{}{}".format(*sys.version_info)
    )
    preload.start(judge, process, place)
    for name, everyone in before:
        judge.open(process, str(name), everyone=everyone)
    return judge.judge(process, str(path))


def agree(
    path: object,
    *,
    before: Sequence[tuple[object, bool]] = (),
    environment: Mapping[str, str] | None = None,
    cwd: object = "/",
) -> str:
    """Require that both loaders say the same, to the letter; return what they say.

    Where the real one dies (an assertion, SIGBUS), the simulated one must say so.
    """
    said = real(path, before=before, environment=environment, cwd=cwd)
    verdict = simulated(path, before=before, environment=environment, cwd=cwd)
    if "Inconsistency detected by ld.so" in said:  # the real text names a line of glibc's source
        assert verdict.loads is False
        assert "Inconsistency detected by ld.so" in (verdict.error or "")
        return said
    if said.startswith("signal"):
        assert verdict.loads is False
        assert "dies of SIGBUS" in (verdict.error or "")
        return said
    assert (verdict.error or "", verdict.loads) == (said, not said), (said, verdict)
    return said


def agree_in(host: pathlib.Path, path: object) -> str:
    """Require that both loaders say the same of ``path`` in a program of its own; return what they say."""
    said = subprocess.run((str(host), str(path)), capture_output=True, text=True, check=False).stdout
    system = loadersystem.system_of(read_elf(str(host)), {})
    judge = Judge(HostFiles())
    process = Process(system, judge.files)
    judge.start(process, str(host))
    verdict = judge.judge(process, str(path))
    assert (verdict.error or "", verdict.loads) == (said, not said), (said, verdict)
    return said


@functools.cache
def _standard() -> str:
    return str(pathlib.Path(sysconfig.get_path("platstdlib")) / "lib-dynload")
