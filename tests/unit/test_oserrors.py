"""What the operating system refuses, told as what, where and what now; the errors are the kernel's own."""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.oserrors import words
from hostenv.errors import HostError
from hostenv.machine import bulk
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    import pathlib


def refused(path: pathlib.Path | str, flags: int = os.O_RDONLY) -> OSError:
    with pytest.raises(OSError, match="Errno") as raised:
        os.close(os.open(path, flags))
    return raised.value


def test_a_path_that_the_error_names_is_told(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "no\udcff"
    assert words(refused(missing), "/elsewhere").message == f"{missing}: No such file or directory"


def test_an_error_without_a_path_is_told_of_where_it_happened() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space") as raised:  # noqa: PTH123
        full.write(b"x")
    told = words(raised.value, "/srv/hostenv")
    assert told.message == "/srv/hostenv: No space left on device"
    assert "make room there" in str(told.hint)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EDQUOT, "quota is used up"),
        (errno.EACCES, "lacks the right"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "the disk fails"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "ulimit -v"),
        (errno.ELOOP, "None"),
    ],
)
def test_what_can_be_done_about_it_is_told(number: int, hint: str) -> None:
    told = words(OSError(number, os.strerror(number)), "/srv")
    assert told.message == f"/srv: {os.strerror(number)}"
    assert hint in str(told.hint)


def test_a_transfer_that_may_not_write_says_where_and_leaves_the_old_file(tmp_path: pathlib.Path) -> None:
    """A limit on the size of files: what a quota does to one file, without a quota."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\nulimit -f 1024\ntrap "" XFSZ\nexec {sys.executable} "$@"\n'  # 512 bytes, or 1024 each
    )
    python.chmod(0o755)
    source, there = tmp_path / "source", tmp_path / "there"
    source.mkdir()
    there.mkdir()
    (source / "big").write_bytes(os.urandom(4 << 20))
    (there / "big").write_text("old")
    with (
        agent_on(LocalTransport("here"), python=str(python)) as agent,
        pytest.raises(HostError, match=f"here: {there}: File too large") as raised,
    ):
        bulk.send_files([agent], source, str(there), [bulk.File(path="big", size=4 << 20)])
    assert "ulimit -f" in str(raised.value)
    assert (there / "big").read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_text("")
    (tmp_path / "secret").chmod(0)
    with (
        agent_on(LocalTransport("here"), python=sys.executable) as agent,
        pytest.raises(HostError, match=f"{tmp_path}/secret: Permission denied"),
    ):
        bulk.receive_files([agent], str(tmp_path), tmp_path / "d", [bulk.File(path="secret", size=0)])
