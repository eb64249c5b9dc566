"""Every reader of a RECORD, over rows that are none: told or left out, never an exception."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import pathlib
import subprocess
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.agent import distinfo, normal, overlaying, recordfile, scripts, store, wheels
from hostenv.agent.wire import AgentError
from hostenv.errors import SupplyError
from hostenv.steps.pristine import PristineWheel
from hostenv.steps.wheelfiles import wheel_files
from kit.pythons import find_python

GOOD = hashlib.sha256(b"good").digest()
STATED = "sha256=" + base64.urlsafe_b64encode(GOOD).decode().rstrip("=")
LONG = '"a' + "x" * 140_000 + '",,\n'
ODD_HASHES = ("sha256=A", "sha256=é" + "A" * 42, "sha256=", "sha256=" + "*" * 43, "md5=A")


def wheel(path: pathlib.Path, record: str) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo-1.dist-info/RECORD", record)
    return str(path)


FIELD = st.text(st.characters(exclude_characters="\r"), min_size=1)


@given(st.lists(st.lists(FIELD, min_size=2, max_size=4), max_size=5))
def test_what_a_csv_writer_wrote_is_read_again(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    assert recordfile.fields(text.getvalue()) == (rows, [])


def test_a_row_that_is_no_csv_is_told_with_its_line_and_the_others_are_kept() -> None:
    rows, problems = recordfile.fields(f'"a,b",,\n{LONG}c.py,{STATED},4\n')
    assert rows == [["a,b", "", ""], ["c.py", STATED, "4"]]
    assert [problem.partition(":")[0] for problem in problems] == ["line 2 is not CSV"]
    found, told = distinfo.rows(f"{LONG}c.py,{STATED},4\n", b"site")
    assert found[b"site/c.py"].sha256 == GOOD
    assert told[0].startswith("RECORD line 1 is not CSV")


def test_the_normal_form_of_what_is_no_csv_is_what_it_is() -> None:
    assert normal.record(LONG.encode()) == LONG.encode()
    assert normal.record(f"b,{STATED},4\r\na,,\r\n".encode()) == f"a,,\nb,{STATED},4\n".encode()


@pytest.mark.parametrize("stated", ODD_HASHES)
def test_what_is_no_sha256_is_none_for_every_reader(tmp_path: pathlib.Path, stated: str) -> None:
    assert recordfile.sha256(stated) is None
    path = wheel(tmp_path / "w.whl", f"a.py,{stated},1\nb.py,{STATED},4\n")
    assert list(store._recorded(path)) == [("b.py", GOOD)]
    assert dict(overlaying._wheel_files(path)) == {"a.py": "", "b.py": GOOD.hex()}


def test_a_wheel_whose_record_is_no_csv_is_named(tmp_path: pathlib.Path) -> None:
    path = wheel(tmp_path / "w.whl", f"{LONG}b.py,{STATED},4\n")
    assert list(store._recorded(path)) == [("b.py", GOOD)]
    for read in (lambda: list(overlaying._wheel_files(path)), lambda: wheels.read(path)):
        with pytest.raises(AgentError, match=r"w\.whl.*RECORD line 1 is not CSV"):
            read()
    (tmp_path / "w.whl").write_bytes(b"PK")
    assert list(store._recorded(path)) == []
    with pytest.raises(AgentError, match=r"w\.whl: not a readable wheel"):
        list(overlaying._wheel_files(path))


@pytest.mark.parametrize("line", ["a\0b = m:f", "\0 = m:f", "a/b = m:f", "x" * 300 + " = m:f"])
def test_an_entry_point_that_no_script_can_be_named_after_is_refused_with_its_file(line: str) -> None:
    with pytest.raises(AgentError, match=r"site/demo-1\.dist-info/entry_points\.txt: "):
        scripts.entry_point_scripts({"console_scripts": [line]}, "site/demo-1.dist-info/entry_points.txt")


def test_an_old_python_refuses_a_nul_and_that_is_told_too() -> None:
    python = find_python("3.8")
    if python is None:
        pytest.skip("needs Python 3.8")
    program = 'from hostenv.agent import recordfile as r; print(r.fields(\'"a\\0b",,\\n"c",,\\n\'))'
    folder = str(pathlib.Path(recordfile.__file__).parents[2])
    done = subprocess.run(
        [python, "-c", program], env={"PYTHONPATH": folder}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("([['c', '', '']], ['line 1 is not CSV: ")


@pytest.mark.parametrize(("offset", "value"), [(6, 1), (8, 99)])
def test_a_wheel_that_is_encrypted_or_packed_by_another_method_is_named(
    tmp_path: pathlib.Path, offset: int, value: int
) -> None:
    """APPNOTE 4.3.7, 4.3.12: flags at 6 and method at 8 of a local header, 2 later in the central one."""
    path = pathlib.Path(wheel(tmp_path / "demo-1-py3-none-any.whl", f"a.py,{STATED},4\n"))
    content = bytearray(path.read_bytes())
    for signature, at in ((b"PK\3\4", offset), (b"PK\1\2", offset + 2)):
        content[content.index(signature) + at] = value
    path.write_bytes(content)
    assert list(store._recorded(str(path))) == []
    for read in (recordfile.of_wheel, wheels.read):
        with pytest.raises(AgentError, match=r"none-any\.whl: not a readable wheel"):
            read(str(path))
    with pytest.raises(SupplyError, match=r"none-any\.whl: cannot be read as a wheel"):
        wheel_files(path)
    with pytest.raises(SupplyError, match=r"none-any\.whl: demo-1\.dist-info/RECORD: cannot be read"):
        PristineWheel(path, dist="demo", version="1")
    kept = store.Store(str(tmp_path / "store"))
    kept.prepare()
    assert not kept.take(store.Place(str(path), "demo-1.dist-info/RECORD"), "0" * 64, 4)
