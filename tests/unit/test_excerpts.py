"""Excerpts of objects: what is read of them elsewhere is what is read of the files themselves."""

from __future__ import annotations

import os
import pathlib
import random
import sysconfig
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import elfsymbols, excerpts
from hostenv.agent.hostfiles import HostFiles
from hostenv.agent.loadermodel import File, Refusal
from hostenv.agent.wire import AgentError
from hostenv.document import DocumentError
from hostenv.facts.candidates import excerpts_from_answer
from kit.elf import PROGRAM, needs_gcc, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

SEEN = "/nowhere"


def taken(paths: Sequence[pathlib.Path]) -> excerpts.Excerpts:
    found = excerpts.Excerpts()
    for path in paths:
        with path.open("rb") as file:
            found.add(file.fileno(), str(path))
    return found


def read(path: str, laid: dict[str, str | None]) -> tuple[Any, ...]:
    """Return what the simulation reads of an object: its facts, symbols, and what relocations use."""
    files = HostFiles()
    files.lay(laid)
    opened = files.open(path)
    if isinstance(opened, Refusal):
        return (opened,)
    assert isinstance(opened, File)
    symbols: Any = files.symbols_of(opened.identity)
    offered = dict(symbols.offered) if isinstance(symbols, elfsymbols.Symbols) else None
    used = None if isinstance(symbols, str) else files.used(opened.identity)
    wanted = symbols if isinstance(symbols, str) else (symbols.wanted, symbols.versioned)
    return (opened.elf, wanted, offered, used)


def require_same(paths: Sequence[pathlib.Path]) -> int:
    """Require the same of all excerpts as of the files; return the bytes that travelled."""
    found = taken(paths)
    with excerpts.laid_out(found.described, [found.data]) as places:
        laid = {f"{SEEN}{path}": place for path, place in places.items()}
        for path in paths:
            assert read(f"{SEEN}{path}", dict(laid)) == read(str(path), {}), path
    return len(found.data)


def test_every_extension_of_this_python_and_what_it_needs_reads_the_same() -> None:
    folder = pathlib.Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    libraries = [pathlib.Path(PROGRAM), *sorted(folder.glob("*.so"))]
    system = (pathlib.Path("/lib") / f"{os.uname().machine}-linux-gnu").glob("lib[cmz].so.*")
    libraries += sorted(path for path in system if path.is_file())
    assert len(libraries) > 1
    assert require_same(libraries) < sum(path.stat().st_size for path in libraries)


@needs_gcc
def test_damaged_objects_read_the_same(tmp_path: pathlib.Path) -> None:
    source = "extern int far; int *p(void){return &far;} int puts(const char *); int q(void){return puts(0);}"
    whole = shared(tmp_path, "a.so", source, "-Wl,-soname,a", "-lc").read_bytes()
    chance = random.Random(0)  # noqa: S311  the same every time
    paths = []
    for number in range(300):
        content = bytearray(whole)
        for _ in range(chance.randint(0, 3)):
            content[chance.randrange(min(len(content), 2000))] = chance.randrange(256)
        end = chance.choice([len(content), len(content), chance.randrange(len(content))])
        paths.append(tmp_path / f"{number}.so")
        paths[-1].write_bytes(content[:end])
    require_same(paths)


@needs_gcc
def test_the_bulk_of_an_object_does_not_travel(tmp_path: pathlib.Path) -> None:
    path = shared(tmp_path, "a.so", "char big[1 << 22] = {1}; int q(void){return 1;}")
    with path.open("r+b") as file:  # what does not compress
        file.seek(path.stat().st_size // 2)
        file.write(random.Random(0).randbytes(1 << 20))  # noqa: S311  the same every time
    assert require_same([path]) < 1 << 16


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(zlib.compress(bytes(1 << 27), 9), id="a bomb"),
        pytest.param(zlib.compress(b"abc"), id="too few"),
        pytest.param(zlib.compress(b"x" * 50)[:-1], id="cut"),
        pytest.param(zlib.compress(b"x" * 50) + b"!", id="more"),
        pytest.param(b"nonsense", id="damaged"),
        pytest.param(b"", id="none"),
    ],
)
def test_bytes_that_are_not_those_of_the_parts_are_refused(data: bytes) -> None:
    described: list[dict[str, Any]] = [{"path": "a.so", "size": 100, "parts": [[0, 50]], "gpu": None}]
    with pytest.raises(AgentError, match="the data is damaged"), excerpts.laid_out(described, [data]):
        pass
    tracemalloc.start()
    with pytest.raises(DocumentError, match="the data is damaged"):
        excerpts_from_answer({"excerpts": described}, [data])
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
