"""Interpreters out of archives: nothing leaves the folder, nothing half-made stays."""

from __future__ import annotations

import hashlib
import io
import pathlib
import platform
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.interpreter_archive import unpack
from hostenv.agent.wire import AgentError
from kit.environment import SilentWire

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = platform.python_version()
MINOR = ".".join(VERSION.split(".")[:2])
WHO = {"by": "a test", "session": "tests"}
PROGRAM = f'#!/bin/sh\nexec {pathlib.Path(sys.executable).resolve()} "$@"\n'.encode()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.linkname = link
    made.mode = mode
    return made


def add(packed: tarfile.TarFile, info: tarfile.TarInfo, content: bytes = b"") -> None:
    info.size = len(content)
    packed.addfile(info, io.BytesIO(content))


def archive(folder: pathlib.Path, more: Callable[[tarfile.TarFile], None] = lambda _: None) -> pathlib.Path:
    path = folder / "cpython.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        add(packed, member("python/bin", tarfile.DIRTYPE, mode=0o755))
        add(packed, member(f"python/bin/python{MINOR}", mode=0o755), PROGRAM)
        add(packed, member("python/bin/python3", tarfile.SYMTYPE, f"python{MINOR}"))
        more(packed)
    return path


def unpacked(folder: pathlib.Path, path: pathlib.Path, **changes: str) -> dict[str, str]:
    given = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "version": VERSION, **changes}
    return unpack(SilentWire(), root=str(folder / "root"), who=WHO, archive=str(path), **given)


def test_an_interpreter_lies_under_its_hash_and_a_second_time_nothing_is_read(tmp_path: pathlib.Path) -> None:
    path = archive(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = unpacked(tmp_path, path)
    assert found == {
        "path": str(tmp_path / "root/pythons" / digest[:16] / f"python/bin/python{MINOR}"),
        "version": VERSION,
    }
    assert pathlib.Path(found["path"]).read_bytes() == PROGRAM
    path.unlink()
    assert (
        unpack(
            SilentWire(), root=str(tmp_path / "root"), who=WHO, archive="gone", sha256=digest, version=VERSION
        )
        == found
    )


ESCAPES: dict[str, tuple[tarfile.TarInfo, ...]] = {
    "a name with ..": (member("python/../../outside"),),
    "an absolute name": (member("/outside"),),
    "another top folder": (member("outside"),),
    "a link to the outside": (member("python/lib", tarfile.SYMTYPE, "../../outside"),),
    "an absolute link": (member("python/lib", tarfile.SYMTYPE, "/etc"),),
    "through a link": (member("python/lib", tarfile.SYMTYPE, "bin"), member("python/lib/outside")),
    "over a link": (member("python/lib", tarfile.SYMTYPE, "bin"), member("python/lib")),
    "a hard link to the outside": (member("python/lib", tarfile.LNKTYPE, "../outside"),),
    "a device": (member("python/lib", tarfile.CHRTYPE),),
    "a pipe": (member("python/lib", tarfile.FIFOTYPE),),
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES.keys())
def test_what_leaves_the_folder_is_refused(
    tmp_path: pathlib.Path, members: tuple[tarfile.TarInfo, ...]
) -> None:
    def more(packed: tarfile.TarFile) -> None:
        for each in members:
            add(packed, each)

    with pytest.raises(AgentError, match="leads out of the archive's folder"):
        unpacked(tmp_path, archive(tmp_path, more))
    assert not list(tmp_path.rglob("outside*"))
    assert not [path for path in (tmp_path / "root/pythons").iterdir() if not path.name.startswith(".tmp-")]


def test_what_a_refusal_left_is_swept_by_the_next(tmp_path: pathlib.Path) -> None:
    bad = archive(tmp_path, lambda packed: add(packed, member("outside")))
    with pytest.raises(AgentError):
        unpacked(tmp_path, bad)
    found = unpacked(tmp_path, archive(tmp_path))
    assert [path.name for path in (tmp_path / "root/pythons").iterdir()] == [
        pathlib.Path(found["path"]).parents[2].name
    ]


def test_other_bytes_than_the_spec_names_are_refused_before_they_are_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AgentError, match="the spec says 0000"):
        unpacked(tmp_path, archive(tmp_path), sha256="0" * 64)
    assert list((tmp_path / "root/pythons").iterdir()) == []


def test_an_interpreter_of_another_version_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AgentError, match=f"is cpython {VERSION}, supply.python says cpython {MINOR}.99"):
        unpacked(tmp_path, archive(tmp_path), version=f"{MINOR}.99")


def test_a_damaged_archive_is_refused(tmp_path: pathlib.Path) -> None:
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(AgentError, match="cannot be unpacked"):
        unpacked(tmp_path, path)
