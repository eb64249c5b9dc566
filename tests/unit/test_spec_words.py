"""How single values of a spec are written, and what is refused."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.document import DocumentError, Reader, parsed, read
from hostenv.spec import words
from hostenv.spec.environment import Platform, SeriesName
from hostenv.spec.rules import Command

if TYPE_CHECKING:
    from pathlib import Path

series = parsed(SeriesName.parse, "series")
command = parsed(Command.parse, "command")


@pytest.mark.parametrize(
    ("reader", "written", "value"),
    [
        (words.size, "30GiB", 32_212_254_720),
        (words.size, "1.5 MiB", 1_572_864),
        (words.size, "500MB", 500_000_000),
        (words.size, 4096, 4096),
        (words.span, "90m", dt.timedelta(seconds=5400)),
        (words.span, "4w", dt.timedelta(days=28)),
        (words.glibc, "2.34", (2, 34)),
        (words.host_path, "/srv/./wheels//x", PurePosixPath("/srv/wheels/x")),
        (words.host_path, "~/env", PurePosixPath("~/env")),
        (words.alias, "ct-200.example", "ct-200.example"),
        (words.alias, "::1", "::1"),
        (words.distribution, "Foo_Bar.baz", "foo-bar-baz"),
        (words.relative_path, "python/", "python/"),
        (words.soname, "libstdc++.so.6", "libstdc++.so.6"),
        (words.template(), "{root}/x/{id}", "{root}/x/{id}"),
        (words.template(), '{"a": {}}', '{"a": {}}'),
        (words.unit, "sglang@1.service", "sglang@1.service"),
    ],
)
def test_a_good_value_is_read(reader: Reader[Any], written: object, value: object) -> None:
    assert read(written, reader, document="a") == value


@pytest.mark.parametrize(
    ("reader", "written", "message"),
    [
        (words.size, "30GIB", 'must be a size like "30GiB", is "30GIB"'),
        (words.size, "thirty", 'must be a size like "30GiB", is "thirty"'),
        (words.size, -1, "must not be negative, is -1"),
        (words.size, True, "must be a string, is true or false"),
        (words.span, "soon", 'must be a length of time like "12h" or "30d", is "soon"'),
        (words.glibc, "2", 'must be a glibc version like "2.34", is "2"'),
        (words.host_path, "wheels", 'must be an absolute path, or one that starts with "~/", is "wheels"'),
        (words.host_path, "~root/x", 'must be an absolute path, or one that starts with "~/", is "~root/x"'),
        (words.host_path, "~", 'must be an absolute path, or one that starts with "~/", is "~"'),
        (words.host_path, "/srv/../etc", 'must not contain "..", is "/srv/../etc"'),
        (words.host_path, "/", "must not be the root of the file system"),
        (words.host_path, "//", "must not be the root of the file system"),
        (words.host_path, "/a\nb", "has a line break or a control character"),
        (words.alias, "root@ct200", "must be an SSH alias without a user (that is host.user), is"),
        (words.alias, "-oProxyCommand=x", 'must be an SSH alias, is "-oProxyCommand=x"'),
        (words.alias, "a b", 'must be an SSH alias, is "a b"'),
        (words.line, " ", "must not be empty"),
        (words.name, "../x", "must be a name of letters, digits, dots, dashes and underscores, is"),
        (words.tag, "all", 'must be a tag of small letters, digits and dashes ("all" is taken), is "all"'),
        (words.relative_path, "/etc", 'must be a relative path without "..", is "/etc"'),
        (words.relative_path, "a/../b", 'must be a relative path without "..", is "a/../b"'),
        (words.requirement, "torch=2.11", 'bad requirement "torch=2.11": '),
        (words.requirement, "torch==2..11", 'bad requirement "torch==2..11": '),
        (words.requirement, "a @ https://x.example/a.whl", '"a" must not name a URL: take the wheel from'),
        (words.distribution, "a b", 'bad name of a distribution "a b": '),
        (words.version, "580.x", 'bad version "580.x": '),
        (words.pythons, "3", 'must be a Python like "3.12", or a range like ">=3.11,<3.14", is "3"'),
        (words.soname, "/usr/lib/libnuma.so.1", 'must be a SONAME like "libnuma.so.1", is'),
        (words.template(), "{biuld}/bin", 'unknown placeholder "{biuld}", did you mean "build"?'),
        (words.template(("build",)), "{port}", 'unknown placeholder "{port}" (known: {build})'),
        (words.machine_id, "ABC", "must be the 32 hexadecimal digits of /etc/machine-id, is"),
        (words.host_key, "MD5:00:11", 'must be a fingerprint as "ssh-keygen -l" prints it, SHA256:…, is'),
        (words.gpu_uuid, "GPU-1", "must be a GPU's UUID as nvidia-smi -L prints it, is"),
        (words.sha256, "0" * 63, "must be a sha256 of 64 small hexadecimal digits, is"),
        (series, "sglang", 'bad series "sglang": must be DISTRIBUTION-VERSION'),
        (series, "../sglang-1", 'bad series "../sglang-1": must be the name of a folder in patches/'),
        (series, "sglang-x", 'bad series "sglang-x": Invalid version'),
        (command, "nvcc>=x", 'bad command "nvcc>=x": Invalid specifier'),
        (command, "/bin/sh", 'bad command "/bin/sh": must be a program'),
    ],
)
def test_a_bad_value_says_what_it_must_be(reader: Reader[Any], written: object, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(written, reader, document="a")
    assert caught.value.message.startswith(f"a: {message}")


@given(st.text())
def test_no_text_makes_a_path_that_climbs_or_depends_on_the_folder(written: str) -> None:
    try:
        path = read(written, words.host_path, document="a")
    except DocumentError:
        return
    home = PurePosixPath("/home/someone")
    resolved = words.at_home(path, home)
    assert resolved.is_absolute()
    assert ".." not in resolved.parts
    assert written.startswith("/") or resolved.is_relative_to(home)


@pytest.mark.parametrize(
    ("written", "minor", "fits", "fits_not"),
    [
        ("3.12", "3.12", ["3.12.0", "3.12.11"], ["3.11.9", "3.13.0"]),
        (">=3.11,<3.14", None, ["3.11.0", "3.13.5"], ["3.10.9", "3.14.0"]),
        ("==3.12.4", None, ["3.12.4"], ["3.12.5"]),
    ],
)
def test_a_python_is_a_minor_version_or_a_range(
    written: str, minor: str | None, fits: list[str], fits_not: list[str]
) -> None:
    python = read(written, words.pythons, document="a")
    assert Platform(python=python).python_minor == minor
    assert list(python.filter([*fits, *fits_not])) == fits


def test_a_real_host_key_and_what_ssh_keygen_says_of_it_agree(tmp_path: Path) -> None:
    key = tmp_path / "key"
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    printed = subprocess.run(["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True)
    fingerprint = printed.stdout.split()[1]
    assert read(fingerprint, words.host_key, document="a") == fingerprint


def test_a_name_and_a_version_make_a_series() -> None:
    assert SeriesName.parse("Sglang_Kernel-0.4.4").distribution == "sglang-kernel"
    assert str(SeriesName.parse("sglang-0.5.15.post1").version) == "0.5.15.post1"


def test_filling_leaves_other_braces_alone() -> None:
    assert words.fill('{"a": {port}, "b": {}}', {"port": "1"}) == '{"a": 1, "b": {}}'
