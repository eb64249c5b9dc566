"""The lock's text is read back as written, read by pip and uv too, and every fault is told with its line."""

from __future__ import annotations

import datetime as dt
import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st
from packaging import tags
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hostenv.document import DocumentError
from hostenv.spec.environment import Env, Prereleases
from hostenv.spec.inputs import changes, digest_of, input_lines
from hostenv.spec.lock import Lock, LockEntry
from hostenv.spec.lockplatform import UV_GLIBC_MINORS, LockPlatform
from kit.wheels import build_wheel

if TYPE_CHECKING:
    import pathlib

PLATFORM = LockPlatform(python="3.12", arch="x86_64", glibc="2.34")
INPUTS = ("env.requires: demo", "platform.python: 3.12")
SHA = "0123456789abcdef" * 4


def entry(name: str = "demo", version: str = "1.0", tag: str = "py3-none-any") -> LockEntry:
    stem = name.replace("-", "_")
    return LockEntry(name=name, version=version, sha256=SHA, filename=f"{stem}-{version}-{tag}.whl", size=7)


def lock(*entries: LockEntry) -> Lock:
    return Lock(name="local", platform=PLATFORM, inputs=INPUTS, entries=entries)


def env(**fields: Any) -> Env:
    return Env(**fields)


TEXT = lock(entry("a"), entry("b-c", "2.0+cu130", "cp312-abi3-manylinux_2_28_x86_64")).render()


def problems(text: str) -> str:
    with pytest.raises(DocumentError) as caught:
        Lock.parse(text, document="envspecs/locks/x.txt")
    return str(caught.value)


def test_the_text_is_what_the_documentation_shows() -> None:
    digest = hashlib.sha256(b"env.requires: demo\nplatform.python: 3.12\n").hexdigest()
    assert (
        "# hostenv lock 1, made by `nox -s lock`; do not edit\n"
        "# name: local\n"
        "# platform: cp312 x86_64 glibc 2.34\n"
        "# input: env.requires: demo\n"
        "# input: platform.python: 3.12\n"
        f"# inputs: sha256:{digest}\n"
        "# packages: 2\n"
        f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 7\n"
        f"b-c===2.0+cu130 --hash=sha256:{SHA}  # b_c-2.0+cu130-cp312-abi3-manylinux_2_28_x86_64.whl, 7\n"
    ) == TEXT


def test_what_is_written_is_read_back() -> None:
    read = Lock.parse(TEXT, document="x")

    assert read == lock(entry("a"), entry("b-c", "2.0+cu130", "cp312-abi3-manylinux_2_28_x86_64"))
    assert read.size == 14
    assert read.render() == TEXT


def test_the_order_of_entries_does_not_matter_to_the_text() -> None:
    assert lock(entry("b"), entry("a")).render() == lock(entry("a"), entry("b")).render()


def test_pip_and_uv_read_it_as_requirements_with_hashes(tmp_path: pathlib.Path) -> None:
    wheel = build_wheel(tmp_path / "wheels", "demo", "1.0", {"demo.py": ""})
    build_wheel(tmp_path / "wheels", "demo", "1.0+cu130", {"demo.py": ""})
    text = lock(
        LockEntry(name="demo", version="1.0", sha256=wheel.sha256, filename=wheel.filename, size=wheel.size)
    ).render()
    (tmp_path / "lock.txt").write_text(text)
    common = ["--no-index", "--find-links", str(tmp_path / "wheels"), "--no-deps", "--require-hashes"]
    common += ["-r", str(tmp_path / "lock.txt")]

    by_uv = [
        uv.find_uv_bin(),
        "pip",
        "install",
        "--no-config",
        "--no-cache",
        "--target",
        str(tmp_path / "uv"),
    ]
    by_pip = [sys.executable, "-m", "pip", "--isolated", "install", "--target", str(tmp_path / "pip")]

    for command in (by_uv, by_pip):
        done = subprocess.run([*command, *common], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "uv/demo-1.0.dist-info").is_dir()
    assert (tmp_path / "pip/demo-1.0.dist-info").is_dir()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"a===1.0 --hash=sha256:{SHA[:-1]}  # a-1.0-py3-none-any.whl, 7", "bad hash"),
        (f"a===1.0 --hash=sha256:{SHA.upper()}  # a-1.0-py3-none-any.whl, 7", "bad hash"),
        (f"a===1.0 --hash=md5:{SHA}  # a-1.0-py3-none-any.whl, 7", "not a line of a lock"),
        (f"a==1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 7", "not a line of a lock"),
        (f"a===1.0 --hash=sha256:{SHA}  # ../a-1.0-py3-none-any.whl, 7", "must be the plain name of a wheel"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any/../../x.whl, 7", "must be the plain name"),
        (f"a===1.0 --hash=sha256:{SHA}  # /a-1.0-py3-none-any.whl, 7", "must be the plain name of a wheel"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0.tar.gz, 7", "must be the plain name of a wheel"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-any.whl, 7", "not a wheel's name"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, -7", 'bad size "-7"'),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 0", "bad size 0"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, {'9' * 5000}", "bad size"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, {2**49}", "bad size"),
        (f"a===1.1 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 7", "is a 1.0, not a 1.1"),
        (f"b===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 7", "is a 1.0, not b 1.0"),
        (f"A_b===1.0 --hash=sha256:{SHA}  # A_b-1.0-py3-none-any.whl, 7", 'normalised form is "a-b"'),
        (f"a===1.00 --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 7", 'bad version "1.00"|is a 1.0'),
        (f"a===one --hash=sha256:{SHA}  # a-1.0-py3-none-any.whl, 7", 'bad version "one"'),
        (
            f"a===1.0 --hash=sha256:{SHA}  # a-1.0-cp311-cp311-linux_x86_64.whl, 7",
            "does not fit cp312 x86_64",
        ),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-manylinux_2_35_x86_64.whl, 7", "does not fit"),
        (f"a===1.0 --hash=sha256:{SHA}  # a-1.0-py3-none-manylinux_2_17_aarch64.whl, 7", "does not fit"),
        ("<<<<<<< HEAD", "not a line of a lock"),
        ("--index-url http://127.0.0.1/simple", "not a line of a lock"),
    ],
)
def test_a_bad_line_is_told_with_its_number(line: str, told: str) -> None:
    good = lock(entry("zz")).render().replace("packages: 1", "packages: 2")

    message = problems(f"{good}{line}\n")

    assert message.startswith("envspecs/locks/x.txt: line 9: ")
    assert any(part in message for part in told.split("|"))


def test_every_problem_is_told_at_once() -> None:
    text = TEXT.replace("a===1.0", "a===1.1").replace(", 7\n", ", x\n").replace("# name: local\n", "")

    message = problems(text)

    assert "line 7: bad size" in message
    assert "line 8: bad size" in message
    assert '"# name: …" is missing' in message


@pytest.mark.parametrize("line", [0, 1, 2, 3, 5, 6, 7, 8])
def test_a_missing_line_is_seen(line: int) -> None:
    lines = TEXT.splitlines(keepends=True)
    problems("".join(lines[:line] + lines[line + 1 :]))


def test_a_name_twice_is_an_error_on_the_second_line() -> None:
    text = TEXT.replace("packages: 2", "packages: 3") + entry("a").line() + "\n"
    assert "line 10: a stands on line 8 already" in problems(text)


def test_a_later_format_says_what_to_do() -> None:
    assert "lock format 2, this hostenv reads 1" in problems(TEXT.replace("hostenv lock 1", "hostenv lock 2"))


@given(st.text(max_size=200), st.integers(0, len(TEXT)))
def test_any_text_is_a_lock_or_problems(piece: str, place: int) -> None:
    try:
        read = Lock.parse(TEXT[:place] + piece + TEXT[place:], document="x")
    except DocumentError:
        return
    assert all("/" not in each.filename and each.size > 0 for each in read.entries)


def test_inputs_that_ask_the_same_are_the_same() -> None:
    one = env(requires=(Requirement("NumPy >=2,<3"), Requirement("a[X_y]")))
    two = env(requires=(Requirement("a[x-y]"), Requirement("numpy<3,>=2")))

    assert input_lines(one, PLATFORM) == input_lines(two, PLATFORM)


def test_every_input_changes_the_digest() -> None:
    plain = env(requires=(Requirement("a"),))
    others = [
        env(requires=(Requirement("a>1"),)),
        env(requires=(Requirement("a"),), constraints=(Requirement("b<2"),)),
        env(requires=(Requirement("a"),), overrides=(Requirement("b<2"),)),
        env(requires=(Requirement("a"),), excludes=(canonicalize_name("b"),)),
        env(requires=(Requirement("a"),), prereleases=Prereleases.ALLOW),
        env(requires=(Requirement("a"),), exclude_newer=dt.datetime(2026, 11, 30, tzinfo=dt.UTC)),
        env(requires=(Requirement("a"),), indexes=("default", "extra")),
        env(requires=(Requirement("a"),), torch_backend="cu130"),
    ]
    platforms = [
        LockPlatform(python="3.11", arch="x86_64", glibc="2.34"),
        LockPlatform(python="3.12", arch="aarch64", glibc="2.34"),
        LockPlatform(python="3.12", arch="x86_64", glibc="2.35"),
    ]

    digests = {digest_of(input_lines(each, PLATFORM)) for each in (plain, *others)}
    digests |= {digest_of(input_lines(plain, platform)) for platform in platforms}

    assert len(digests) == 1 + len(others) + len(platforms)


def test_staleness_says_what_changed() -> None:
    before = input_lines(env(requires=(Requirement("a==1"), Requirement("b"))), PLATFORM)
    after = input_lines(env(requires=(Requirement("a==2"), Requirement("b")), torch_backend="cpu"), PLATFORM)

    assert changes(before, before) == ()
    assert changes(before, after) == ("env.requires: + a==2, - a==1", "env.torch-backend: + cpu")


def test_tags_are_those_that_packaging_finds_on_this_machine() -> None:
    glibc = ".".join(str(part) for part in tags._manylinux._get_glibc_version())  # type: ignore[attr-defined]
    here = LockPlatform(python=f"3.{sys.version_info[1]}", arch="x86_64", glibc=glibc)

    assert sorted(here.tag_ranks, key=here.tag_ranks.__getitem__) == list(tags.sys_tags())


def test_uv_knows_the_glibc_versions_that_are_said_to_be_known() -> None:
    text = subprocess.run(
        [uv.find_uv_bin(), "help", "pip", "compile"], capture_output=True, text=True, check=True
    ).stdout
    known = {int(word.split("_")[-1].rstrip(":`,")) for word in text.split() if "x86_64-manylinux_2_" in word}

    assert known == set(UV_GLIBC_MINORS)


@pytest.mark.parametrize(
    ("glibc", "floor"), [("2.17", 17), ("2.27", 17), ("2.30", 28), ("2.34", 34), ("2.43", 40)]
)
def test_a_glibc_that_uv_does_not_know_is_floored(glibc: str, floor: int) -> None:
    platform = LockPlatform(python="3.12", arch="aarch64", glibc=glibc)
    assert platform.uv_platform == f"aarch64-manylinux_2_{floor}"


@pytest.mark.parametrize(
    "fields",
    [
        {"python": "3.12.1"},
        {"python": "2.7"},
        {"arch": "ppc64le"},
        {"glibc": "2.5"},
        {"glibc": "musl"},
        {"python": "3.12\n"},
    ],
)
def test_a_platform_that_no_lock_can_be_made_for_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"must be|older"):
        LockPlatform(**{"python": "3.12", "arch": "x86_64", "glibc": "2.34", **fields})
