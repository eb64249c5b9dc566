"""The ELF reader: what readelf and nm say, and that no file, however malformed, does more than raise."""

from __future__ import annotations

import functools
import itertools
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostenv.agent import elf, elfmodel, elfsymbols, ldcache, loadersystem
from hostenv.agent.hostfiles import HostFiles
from hostenv.agent.loader import Process
from hostenv.agent.loadermodel import File, System
from hostenv.agent.verdicts import Judge
from kit.elf import PROGRAM, needs_gcc, shared, wrote

if TYPE_CHECKING:
    import pathlib

_NUMBERS = itertools.count()
SOURCE = """
int answer(void); extern int __attribute__((weak)) perhaps; static int mine(void){return 3;}
int first(void){return answer() + mine() + (&perhaps ? 1 : 0);}
int second = 2; __thread int third = 3; __attribute__((visibility("hidden"))) int fourth;
"""


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """An object with versions, thread-local data, a needed library and a RUNPATH."""
    shared(tmp_path, "libb.so", "int answer(void){return 1;}", "-Wl,-soname,libb.so.1")
    (tmp_path / "libb.so.1").symlink_to("libb.so")
    wrote(tmp_path, "map", "V1 { global: first; }; V2 { global: second; third; } V1;")
    return shared(
        tmp_path,
        "a.so",
        SOURCE,
        "-L.",
        "-lb",
        "-lc",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,-soname,a.so.7",
        "-Wl,--version-script,map",
    )


@needs_gcc
def test_dynamic_section_as_readelf_has_it(path: pathlib.Path) -> None:
    said = _run("readelf", "-dW", path)
    found = elf.read_elf(str(path))
    assert list(found.needed) == re.findall(r"Shared library: \[(.*)\]", said)
    assert found.soname == _one(r"Library soname: \[(.*)\]", said)
    assert found.runpath == _one(r"Library runpath: \[(.*)\]", said)
    assert found.rpath is None


@needs_gcc
def test_segments_as_readelf_has_them(path: pathlib.Path) -> None:
    said = _run("readelf", "-lW", path)
    found = elf.read_elf(str(path))
    loads = re.findall(r"LOAD\s+0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x(\w+)", said)
    assert [(s.offset, s.address, s.size, s.memory) for s in found.segments] == [
        tuple(int(value, 16) for value in load) for load in loads
    ]
    assert found.tls_size == int(_one(r"TLS\s+0x\w+ 0x\w+ 0x\w+ 0x\w+ 0x(\w+)", said) or "", 16)
    assert found.stack == 6


@needs_gcc
def test_symbols_as_nm_has_them(path: pathlib.Path) -> None:
    said = [line.split() for line in _run("nm", "-D", "--with-symbol-versions", path).splitlines()]
    symbols = _symbols(path)
    wanted = {name.decode() for group in symbols.wanted for name in group.names}
    assert wanted == {words[-1].partition("@")[0] for words in said if words[0] == "U"}
    offered = {words[-1].partition("@")[0] for words in said if words[-2] not in "Uw"}
    assert {name.decode() for name in symbols.offered} == offered


@needs_gcc
def test_versions_as_readelf_has_them(path: pathlib.Path) -> None:
    said = _run("readelf", "-VW", path)
    found = elf.read_elf(str(path))
    assert set((found.definitions or {}).values()) == {"V1", "V2"}
    needs = {version.name for need in found.version_needs for version in need.versions}
    assert needs == set(re.findall(r"Name: (GLIBC_\S+)  Flags", said))


@needs_gcc
@pytest.mark.parametrize("flags", [("-s",), ("-Wl,--hash-style=sysv",), ("-Wl,--hash-style=gnu", "-s")])
def test_symbols_without_section_headers(tmp_path: pathlib.Path, flags: tuple[str, ...]) -> None:
    for source in (SOURCE, "int gone(void); static int f(void){return gone();} int (*p)(void);"):
        whole = shared(tmp_path, "a.so", source, *flags)
        expected = _symbols(whole)
        data = bytearray(whole.read_bytes())
        data[40:48], data[58:64] = bytes(8), bytes(6)
        whole.write_bytes(data)
        found = _symbols(whole)
        assert found.offered == expected.offered
        assert {name for group in found.wanted for name in group.names} <= {
            name for group in expected.wanted for name in group.names
        }


def test_the_programs_own_loader_is_read() -> None:
    found = elf.read_elf(PROGRAM)
    system = loadersystem.system_of(found, {})
    said = _run(found.interpreter or "", "--list-diagnostics")
    assert list(system.folders) == re.findall(r'path\.system_dirs\[\w+\]="(.*)"', said)
    assert "{}.{}".format(*system.glibc) == (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[1]
    levels = (_one(r'dl_hwcaps_subdirs="(.*)"', said) or "").split(":")
    active = int(_one(r"dl_hwcaps_subdirs_active=0x(\w+)", said) or "0", 16)
    known = [level for position, level in enumerate(reversed(levels)) if active >> position & 1]
    ours = [name.split("/")[1] for name in system.subfolders if name.startswith("glibc-hwcaps/")]
    assert sorted(ours) == sorted(known)


def test_the_cache_as_ldconfig_prints_it() -> None:
    if not os.path.exists("/sbin/ldconfig") or not os.path.exists(loadersystem.CACHE):  # noqa: PTH110
        pytest.skip("no ldconfig here")
    said = _run("/sbin/ldconfig", "-p")
    with open(loadersystem.CACHE, "rb") as file:  # noqa: PTH123
        entries = ldcache.parse(file.read())
    printed = re.findall(r"^\t(\S+) \(.*\) => (\S+)$", said, re.MULTILINE)
    assert [(entry.name, entry.path) for entry in entries] == printed


@given(data=st.binary(max_size=4096))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_no_cache(data: bytes) -> None:
    for prefix in (b"", ldcache.MAGIC, ldcache.OLD_MAGIC):
        try:
            ldcache.parse(prefix + data)
        except ldcache.CacheError:
            continue


@needs_gcc
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 14), st.binary(min_size=1, max_size=8)), max_size=6))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_altered_objects_are_read_or_refused(path: pathlib.Path, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[place % len(data) : place % len(data) + len(value)] = value
    altered = path.with_name("altered.so")
    altered.write_bytes(data)
    _judge(altered)


@needs_gcc
def test_every_field_of_the_tables_may_be_absurd(path: pathlib.Path) -> None:
    """Sizes and offsets of header, program headers and dynamic section, each at its extremes."""
    whole = path.read_bytes()
    phoff, count = int.from_bytes(whole[32:40], "little"), int.from_bytes(whole[56:58], "little")
    dynamic = next(at for at in range(phoff, phoff + 56 * count, 56) if whole[at : at + 4] == b"\x02\0\0\0")
    start = int.from_bytes(whole[dynamic + 8 : dynamic + 16], "little")
    places = [*range(16, 64, 2), *range(phoff, phoff + 56 * count, 8), *range(start + 8, start + 400, 16)]
    altered = path.with_name("altered.so")
    began = time.monotonic()
    for place in places:
        for value in (
            b"\xff" * 8,
            b"\0" * 8,
            b"\xff\xff\xff\x7f\0\0\0\0",
            (len(whole) - 1).to_bytes(8, "little"),
        ):
            width = 2 if place < 64 else 8
            altered.write_bytes(whole[:place] + value[:width] + whole[place + width :])
            _judge(altered)
    assert time.monotonic() - began < 60


@needs_gcc
def test_names_that_overlap_are_bounded(tmp_path: pathlib.Path) -> None:
    """Ten thousand names of ten thousand bytes each, all in one string: an error, not a gigabyte."""
    count, length = 10_000, 60_000
    whole = shared(tmp_path, "a.so", "".join(f"int symbol_{i};" for i in range(count)), "-s")
    data = bytearray(whole.read_bytes())
    file = elf.ElfFile(descriptor := os.open(whole, os.O_RDONLY))
    os.close(descriptor)
    table = file.tables.offset(elfmodel.DT_SYMTAB) or 0
    strings = file.tables.offset(elfmodel.DT_STRTAB) or 0
    size = file.tables.entries[elfmodel.DT_STRSZ]
    data[strings + 1 : strings + size - 1] = b"x" * (size - 2)
    for index in range(1, count):
        place = table + 24 * index
        data[place : place + 4] = (1 + max(0, size - length) + index % 100).to_bytes(4, "little")
    whole.write_bytes(data)
    with pytest.raises(elfmodel.ElfError, match=r"absurd|no end"):
        _symbols(whole)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "text", "empty", "loop"])
def test_what_is_no_file(tmp_path: pathlib.Path, kind: str) -> None:
    place = tmp_path / "a.so"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "loop":
        place.symlink_to("a.so")
    else:
        place.write_text("INPUT(libc.so.6)" * 9 if kind == "text" else "")
    assert not isinstance(HostFiles().open(str(place)), File)


def test_an_unreadable_file(tmp_path: pathlib.Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    place = tmp_path / "a.so"
    place.write_bytes(b"\x7fELF")
    place.chmod(0)
    assert not isinstance(HostFiles().open(str(place)), File)


def _judge(path: pathlib.Path) -> None:
    """Judge a file that is new at every call: what was read of an inode is kept."""
    judge, process = _started()
    fresh = path.rename(path.with_name(f"{next(_NUMBERS)}.so"))
    judge.judge(process, str(fresh))


@functools.cache
def _started() -> tuple[Judge, Process]:
    judge = Judge(HostFiles())
    process = Process(_system(), judge.files)
    judge.start(process, PROGRAM)
    return judge, process


def _system() -> System:
    return loadersystem.system_of(elf.read_elf(PROGRAM), {})


def _symbols(path: pathlib.Path) -> elfsymbols.Symbols:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return elfsymbols.read_symbols(elf.ElfFile(descriptor))
    finally:
        os.close(descriptor)


def _run(*command: object) -> str:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def _one(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None
