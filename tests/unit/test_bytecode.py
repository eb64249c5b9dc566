"""Which bytecode repeats its source. The oracles are CPython's own py_compile and source hash."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import py_compile
import struct
import time

import pytest

from hostenv.agent.bytecode import repeats, siphash, source_hash, source_of

SOURCE = b"hello world" * 10
KEY = 168627187

Mode = py_compile.PycInvalidationMode


def compiled(folder: pathlib.Path, mode: Mode) -> tuple[pathlib.Path, pathlib.Path]:
    source = folder / "m.py"
    source.write_text("x = 1\n", encoding="utf-8")
    return pathlib.Path(py_compile.compile(str(source), invalidation_mode=mode, doraise=True) or ""), source


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (b"p/__pycache__/m.cpython-312.pyc", b"p/m.py"),
        (b"__pycache__/m.cpython-312.opt-2.pyc", b"m.py"),
        (b"p/__pycache__/a.b.cpython-313.pyc", b"p/a.b.py"),
        (b"p/m.pyc", None),
        (b"p/__pycache__/m.pyc", None),
        (b"p/__pycache__/m.cpython-312.so", None),
    ],
)
def test_bytecode_belongs_to_a_source_only_under_pycache(path: bytes, source: bytes | None) -> None:
    assert source_of(path) == source


@pytest.mark.parametrize(
    ("rounds", "last", "expected"),
    [
        # _imp.source_hash(168627187, b"hello world" * 10) of CPython 3.8.18 and 3.10.13
        (2, 4, "03d05f524b4f2203"),
        # the same of CPython 3.11.7, 3.12.1 and 3.13.0
        (1, 3, "107a7396ae7e46e9"),
    ],
)
def test_the_hash_of_every_cpython_is_computed_without_that_cpython(
    rounds: int, last: int, expected: str
) -> None:
    assert siphash(KEY, SOURCE, rounds, last).hex() == expected


@pytest.mark.parametrize(("magic", "expected"), [(3413, "2-4"), (3439, "2-4"), (3495, "1-3"), (3571, "1-3")])
def test_the_magic_number_tells_which_hash(magic: int, expected: str) -> None:
    full = magic | 0x0A0D << 16
    rounds, last = map(int, expected.split("-"))
    assert source_hash(full, SOURCE) == siphash(full, SOURCE, rounds, last)


def test_the_running_python_agrees_for_every_length() -> None:
    magic = int.from_bytes(importlib.util.MAGIC_NUMBER, "little")
    for length in range(40):
        data = bytes(range(length))
        assert source_hash(magic, data) == importlib.util.source_hash(data)
        assert siphash(magic, data, 1, 3) == importlib.util.source_hash(data)


@pytest.mark.parametrize("mode", [Mode.CHECKED_HASH, Mode.TIMESTAMP])
def test_fresh_bytecode_repeats_its_source(tmp_path: pathlib.Path, mode: Mode) -> None:
    bytecode, source = compiled(tmp_path, mode)
    assert repeats(str(bytecode), str(source))


@pytest.mark.parametrize("mode", [Mode.CHECKED_HASH, Mode.TIMESTAMP])
def test_bytecode_of_an_older_source_does_not(tmp_path: pathlib.Path, mode: Mode) -> None:
    bytecode, source = compiled(tmp_path, mode)
    source.write_text("x = 2\n", encoding="utf-8")
    os.utime(source, (time.time() + 10,) * 2)
    assert not repeats(str(bytecode), str(source))


def test_unchecked_bytecode_never_counts(tmp_path: pathlib.Path) -> None:
    bytecode, source = compiled(tmp_path, Mode.UNCHECKED_HASH)
    assert not repeats(str(bytecode), str(source))


def test_a_touched_source_makes_timestamp_bytecode_differ_but_not_hashed(tmp_path: pathlib.Path) -> None:
    for mode, expected in ((Mode.CHECKED_HASH, True), (Mode.TIMESTAMP, False)):
        bytecode, source = compiled(tmp_path, mode)
        os.utime(source, (1, 1))
        assert repeats(str(bytecode), str(source)) is expected


@pytest.mark.parametrize(
    "content",
    [b"", b"\xcb\r\r\n", struct.pack("<IIQ", 0x0A0D0000 | 64, 3, 0), struct.pack("<IIQ", 0x0A0D0DCB, 7, 0)],
    ids=["empty", "short", "another implementation", "unknown flags"],
)
def test_what_is_no_bytecode_of_cpython_does_not_count(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "m.pyc").write_bytes(content)
    (tmp_path / "m.py").write_bytes(b"")
    assert not repeats(str(tmp_path / "m.pyc"), str(tmp_path / "m.py"))
