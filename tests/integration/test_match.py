"""Two hosts on this machine: equal where nothing differs, and every difference named with its cause."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hostenv import commands
from hostenv.agent import statcache
from hostenv.errors import HostenvError
from kit.repository import DEMO_PATCH, PROJECT, listing, repository_in
from kit.schema import violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kit.repository import Repository

SCHEMA = json.loads((PROJECT / "docs/schema/match.schema.json").read_text())


@dataclass(frozen=True)
class Matched:
    """What a match ended with."""

    failure: str | None
    error: HostenvError | None
    document: dict[str, Any]

    @property
    def target(self) -> dict[str, Any]:
        (only,) = self.document["targets"]
        found: dict[str, Any] = only
        return found

    @property
    def causes(self) -> Mapping[str, str]:
        """The path, below site-packages where it is, of everything that differs → its cause."""
        return {
            each["path"].partition("site-packages/")[2] or each["path"]: each["cause"]
            for group in self.target["distributions"]
            for each in group["differing"]
        }


@dataclass(frozen=True)
class Pair:
    """A repository with the hosts ``local`` and ``other``, both on this machine."""

    repository: Repository

    @property
    def other_root(self) -> pathlib.Path:
        return self.repository.folder / "other-root"

    def spec(self, *requires: str, more: str = "", env: str = "") -> None:
        """Write the spec of ``other``."""
        self.repository.spec(*requires, more=more, env=env)
        local = self.repository.path / "envspecs/local.toml"
        text = local.read_text()
        (self.repository.path / "envspecs/other.toml").write_text(
            text.replace(json.dumps(str(self.repository.root)), json.dumps(str(self.other_root)))
        )

    def build(self, host: str) -> pathlib.Path:
        """Build on a host and return its current build."""
        failure = commands.run("build_env", [host], self.repository.path)
        assert failure is None
        root = self.repository.root if host == "local" else self.other_root
        return (root / "current/env").resolve()

    def match(self, *words: str) -> Matched:
        written = self.repository.folder / "match.json"
        written.unlink(missing_ok=True)
        failure = error = None
        try:
            failure = commands.run("match", [*words, "--json", str(written)], self.repository.path)
        except HostenvError as raised:
            error = raised
        document = json.loads(written.read_text()) if written.exists() else {}
        assert violations(document, SCHEMA) == []
        return Matched(failure=failure, error=error, document=document)


@pytest.fixture
def pair(repository: Repository) -> Pair:
    """Return two hosts with one spec and nothing built."""
    made = Pair(repository)
    made.spec("demo==1.0")
    repository.spec("demo==1.0")
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Return a root in which demo 1.0 is built and current: made once, for it takes seconds."""
    with repository_in(tmp_path_factory.mktemp("made")) as repository, pytest.MonkeyPatch.context() as patch:
        for name, value in repository.environment.items():
            patch.setenv(name, value)
        repository.build()
        yield repository.root


@pytest.fixture
def built(pair: Pair, made: pathlib.Path) -> Pair:
    """Return two hosts with the same build."""
    for root in (pair.repository.root, pair.other_root):
        shutil.copytree(made, root, symlinks=True)
    return pair


def site(build: pathlib.Path) -> pathlib.Path:
    (found,) = build.glob("lib/python3*/site-packages")
    return found


def other(pair: Pair) -> pathlib.Path:
    return site((pair.other_root / "current/env").resolve())


def test_two_builds_of_one_spec_are_equal_and_nothing_is_written(built: Pair) -> None:
    before = listing(built.repository.root), listing(built.other_root)
    found = built.match("local", "other")
    assert (found.failure, found.error) == (None, None)
    assert found.document["equal"] is True
    assert found.target["outcome"] == "equal"
    assert found.target["environment"]["fingerprint"] == found.document["reference"]["fingerprint"]
    assert (listing(built.repository.root), listing(built.other_root)) == before


def test_every_kind_of_difference_is_named(built: Pair) -> None:
    where = other(built)
    with (where / "demo/words.txt").open("r+b") as file:
        file.write(b"A")
    (where / "demo/__init__.py").chmod(0o755)
    (where / "helper.py").rename(where / "helper2.py")
    (where / "helper.py").symlink_to("helper2.py")
    (where / "demo/extra.bin").write_bytes(b"\0")
    (where / "demo-1.0.dist-info/METADATA").unlink()

    found = built.match("local", "other")

    assert found.causes == {
        "demo/words.txt": "edited",
        "demo/__init__.py": "mode",
        "helper.py": "symlink",
        "helper2.py": "extra",
        "demo/extra.bin": "extra",
        "demo-1.0.dist-info/METADATA": "missing",
    }
    assert found.failure is not None
    assert "other (different)" in found.failure
    groups = {each["distribution"]: each for each in found.target["distributions"]}
    assert set(groups) == {"demo", "helper", None}
    details = {each["path"].rpartition("/")[2]: each for each in groups["demo"]["differing"]}
    assert details["words.txt"]["detail"] == "on the target"
    assert details["extra.bin"]["detail"] == "owned by nobody"
    assert (details["__init__.py"]["reference"]["mode"], details["__init__.py"]["target"]["mode"]) == (
        "644",
        "755",
    )


def test_an_edit_on_the_reference_is_told_as_such(built: Pair) -> None:
    (site(built.repository.current) / "demo/words.txt").write_text("edited here")
    found = built.match("local", "other")
    (group,) = found.target["distributions"]
    assert group["differing"][0]["detail"] == "on the reference"


def test_a_patched_file_names_its_series_and_an_edited_patched_one_is_edited(pair: Pair) -> None:
    pair.repository.series("demo-1.0", DEMO_PATCH)
    pair.spec("demo==1.0")
    pair.build("other")
    pair.spec("demo==1.0", env='patches = ["demo-1.0"]')
    local = pair.build("local")

    found = pair.match("local", "other")

    assert found.causes == {"demo/__init__.py": "patched"}
    (group,) = found.target["distributions"]
    assert group["differing"][0]["detail"] == "by demo-1.0 on the reference only"
    pair.build("other")
    assert pair.match("local", "other").document["equal"] is True
    (site(local) / "demo/__init__.py").write_text("VERSION = 'by hand'\n")
    again = pair.match("local", "other")
    assert again.causes == {"demo/__init__.py": "edited"}
    assert again.target["distributions"][0]["differing"][0]["detail"] == "on the reference"


def test_another_version_is_one_cause_for_all_its_files(pair: Pair, made: pathlib.Path) -> None:
    pair.repository.wheel("demo", "2.0", {"demo/__init__.py": 'VERSION = "2.0"\n'}, requires=["helper"])
    pair.spec("demo==2.0")
    pair.build("other")
    shutil.copytree(made, pair.repository.root, symlinks=True)
    found = pair.match("local", "other")
    (group,) = (each for each in found.target["distributions"] if each["distribution"] == "demo")
    assert (group["reference_version"], group["target_version"]) == ("1.0", "2.0")
    assert {each["cause"] for each in group["differing"]} == {"version"}


def test_a_distribution_that_is_not_there_is_one_line(
    pair: Pair, made: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.repository.wheel("many", "1.0", {f"many/m{number}.py": "" for number in range(9)})
    pair.spec("demo==1.0", "many==1.0")
    pair.build("other")
    shutil.copytree(made, pair.repository.root, symlinks=True)
    capsys.readouterr()
    pair.match("other", "local")
    shown = capsys.readouterr().out
    assert "not there on the target: " in shown
    assert "many/m1.py" not in shown
    pair.match("local", "other")
    assert "not there on the reference: " in capsys.readouterr().out


def test_an_edited_build_differs_from_its_own_making(built: Pair) -> None:
    assert built.match("local").document["equal"] is True
    (site(built.repository.current) / "demo/words.txt").write_text("by hand")
    found = built.match("local")
    assert found.causes == {"demo/words.txt": "edited"}
    assert found.document["reference"]["place"] == "local as built"


def test_names_that_are_no_utf8_or_hold_a_newline_are_told(built: Pair) -> None:
    where = other(built)
    for name in (b"odd\nname.py", b"not\xffutf8.py", "é.txt".encode()):
        (pathlib.Path(os.fsdecode(os.fsencode(where) + b"/demo/" + name))).write_bytes(b"x = 1\n")
    found = built.match("local", "other", "--diff")
    assert found.causes == {
        "demo/odd\nname.py": "extra",
        "demo/not\udcffutf8.py": "extra",
        "demo/é.txt": "extra",
    }


def test_the_text_of_a_difference_is_shown_and_a_binary_says_so(
    built: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    (other(built) / "demo/words.txt").write_text("a b c\nd \x1b[31m\n")
    (other(built) / "helper.py").write_bytes(b"\0binary")
    found = built.match("local", "other", "--diff")
    shown = capsys.readouterr().out
    (group, helper) = found.target["distributions"]
    assert group["differing"][0]["diff"][-2:] == [" a b c", "+d \x1b[31m"]
    assert "+d \\x1b[31m" in shown
    assert "\x1b" not in shown
    assert helper["differing"][0]["diff"] is None
    assert "helper.py is binary: 7 bytes" in shown


def test_a_venv_that_hostenv_did_not_build_is_compared_and_nothing_is_written(built: Pair) -> None:
    foreign = built.repository.folder / "foreign"
    shutil.copytree(built.repository.current, foreign, symlinks=True)
    shutil.rmtree(foreign / ".hostenv")
    before = listing(foreign)
    assert built.match("local", f"other:{foreign}").document["equal"] is True
    (site(foreign) / "helper.py").write_text("ONE = 2\n")
    assert built.match("local", f"other:{foreign}").causes == {"helper.py": "edited"}
    (site(foreign) / "helper.py").write_text("ONE = 1\n")
    (site(foreign) / "helper.py").chmod(0o644)
    assert built.match("local", f"other:{foreign}").document["equal"] is True
    assert listing(foreign).keys() == before.keys()


def test_what_is_remembered_is_not_read_again_and_rehash_reads_it(built: Pair) -> None:
    foreign = built.repository.folder / "foreign"
    shutil.copytree(built.repository.current, foreign, symlinks=True)
    shutil.rmtree(foreign / ".hostenv")
    words = ("local", f"other:{foreign}")
    age(foreign)
    assert built.match(*words).target["environment"]["read"] > 0
    assert built.match(*words).target["environment"]["read"] == 0
    assert built.match(*words, "--rehash").target["environment"]["read"] > 0
    path = site(foreign) / "demo/words.txt"
    times = path.stat()
    path.write_text("A b c\n")  # the same size, and the same mtime
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert built.match(*words).causes == {"demo/words.txt": "edited"}
    assert built.match(*words).causes == {"demo/words.txt": "edited"}


def test_an_unreadable_file_is_unknown_and_never_equal(built: Pair) -> None:
    os.mkfifo(other(built) / "demo/pipe")
    found = built.match("local", "other")
    assert found.target["outcome"] == "unknown"
    assert [each["reason"] for each in found.target["unknown"]] == ["is a FIFO"]
    assert found.failure is not None
    again = built.match("other", "local")
    assert again.target["outcome"] == "unknown"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_unknown(built: Pair) -> None:
    (other(built) / "demo/words.txt").chmod(0)
    assert built.match("local", "other").target["outcome"] == "unknown"


def test_a_file_that_changes_while_it_is_read_is_never_equal(built: Pair) -> None:
    path = other(built) / "demo/growing.bin"
    path.write_bytes(bytes(64 << 20))
    shutil.copy(path, site(built.repository.current) / "demo/growing.bin")
    program = (
        "import sys\nwith open(sys.argv[1], 'r+b') as f:\n  while True: f.seek(0); f.write(b'x'); f.flush()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as writer:
        found = built.match("local", "other")
        writer.kill()
    assert found.target["outcome"] in {"unknown", "different"}
    assert found.document["equal"] is False


def test_what_may_differ_is_told_and_not_demanded(pair: Pair, made: pathlib.Path) -> None:
    pair.repository.series("demo-1.0", DEMO_PATCH)
    said = '[reference]\nhost = "local"\nequal = ["lock"]\nmay-differ = ["helper.*"]\n'
    pair.spec("demo==1.0", env='patches = ["demo-1.0"]', more=said)
    pair.repository.spec("demo==1.0")
    pair.build("other")
    shutil.copytree(made, pair.repository.root, symlinks=True)
    (other(pair) / "helper.py").write_text("ONE = 3\n")

    found = pair.match("local", "other")

    assert found.failure is None
    assert found.target["outcome"] == "allowed"
    assert found.causes == {"demo/__init__.py": "patched", "helper.py": "edited"}
    layers = {each["layer"]: (each["state"], each["demanded"]) for each in found.target["layers"]}
    assert layers == {"lock": ("equal", True), "patches": ("different", False), "overlays": ("equal", False)}
    (other(pair) / "demo/words.txt").write_text("not allowed")
    assert pair.match("local", "other").target["outcome"] == "different"


def test_places_that_are_not_there_are_refused_in_words(built: Pair) -> None:
    nowhere = built.match("local", "other:/nowhere")
    assert nowhere.target["outcome"] == "refused"
    assert "/nowhere is not a virtual environment" in nowhere.target["error"]["message"]
    assert nowhere.failure is not None
    missing = built.match("local:0123456789abcdef", "other")
    assert isinstance(missing.error, HostenvError)
    assert missing.document["error"]["outcome"] == "refused"
    twice = built.match("local", "local")
    assert twice.error is not None
    unknown = built.match("local", "othre")
    assert unknown.error is not None
    assert 'did you mean "other"' in unknown.error.message


def age(folder: pathlib.Path) -> None:
    """Wait until everything below a folder is older than the clock's grain."""
    while True:
        keys = [statcache.key(path.lstat()) for path in folder.rglob("*") if path.is_file()]
        if all(statcache.settled(key, time.time_ns()) for key in keys):
            return
        time.sleep(0.01)


def test_a_host_without_a_build_is_told_what_to_type_with_its_own_name(repository: Repository) -> None:
    ran = repository.run("match", hosts=("local",))
    assert "nothing is current under" in ran.message
    assert "nox -s build_env -- local builds one; local:PATH names" in ran.message
