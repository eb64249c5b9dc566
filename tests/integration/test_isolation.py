"""What one build holds depends on its inputs alone, and no edit of it reaches anything else."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from hostenv.steps.make import HostPython
from hostenv.workflows import supply
from kit.repository import DEMO, Repository, repository_in

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

SCRIPT = "[console_scripts]\ncommon = {module}:main\n"
SOURCE = 'def main() -> None:\n    print("{name}")\n'


def inodes(folder: pathlib.Path) -> set[int]:
    """Return the inodes of all files below a folder."""
    found = (path.lstat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {status.st_ino for status in found}


def test_builds_and_cache_share_no_inode(repository: Repository) -> None:
    one = pathlib.Path(repository.build().host["path"])
    repository.spec("demo==1.0", more='[build]\nbytecode = "compile"')
    two = pathlib.Path(repository.build().host["path"])
    cache, house = repository.root / "cache", repository.root / "wheelhouse"

    assert len(inodes(one)) > 10
    for a, b in ((one, two), (one, cache), (two, cache), (one, house), (one, repository.folder / "uv-cache")):
        assert not inodes(a) & inodes(b)
    assert all(path.lstat().st_nlink == 1 for path in one.rglob("*") if path.is_file())

    edited = repository.site(one) / "demo/__init__.py"
    with edited.open("r+") as file:
        file.write('VERSION = "bad"')
    assert (repository.site(two) / "demo/__init__.py").read_text() == DEMO
    repository.series("helper-1.0", HELPER_PATCH)
    repository.spec("demo==1.0", env='patches = ["helper-1.0"]')
    third = repository.build().host
    assert repository.python("import demo; print(demo.VERSION)") == "1.0", "the cache still has the true file"
    assert third["checks"]["findings"] == []


HELPER_PATCH = """\
Description: Two
Origin: written for this test
Forwarded: not-needed

--- a/helper.py
+++ b/helper.py
@@ -1 +1 @@
-ONE = 1
+ONE = 2
"""


def test_hard_links_are_shared_where_they_were_asked_for(repository: Repository) -> None:
    """The test above can fail: this is what it would see."""
    repository.spec("demo==1.0", more='[build]\nlink-mode = "hardlink"')
    build = pathlib.Path(repository.build().host["path"])
    assert inodes(build) & inodes(repository.root / "cache")


@pytest.fixture
def disputed(repository: Repository) -> Repository:
    """Three distributions that share paths and a script, chained: each wins one path and loses another.

    By rule the last in order of name wins; "three-x" comes after "three" although "-" sorts before "=".
    """
    for name, shared in (("One", "ab"), ("three", "bcd"), ("three-x", "acd")):
        module = name.replace("-", "_").lower()
        files = {f"{module}.py": SOURCE.format(name=name)}
        files |= {f"shared/{letter}.py": f"OWNER = {name!r}\n" for letter in shared}
        entry = SCRIPT.format(module=module)
        repository.wheel(name, "1.0", files, entry_points=entry)
    repository.spec("one", "three", "three-x")
    return repository


WINNERS = {"a": "three-x", "b": "three", "c": "three-x", "d": "three-x"}


def test_a_path_of_two_owners_has_the_rules_winner_whatever_uv_did(disputed: Repository) -> None:
    fingerprints = set()
    for round_ in range(3):
        disputed.spec(
            "one", "three", "three-x", more=f'[build]\nbytecode = "{["none", "compile"][round_ % 2]}"'
        )
        path = disputed.root / "builds"
        for old in path.glob("*"):
            subprocess.run(["rm", "-r", old], check=True)
        ran = disputed.build()
        for letter, owner in WINNERS.items():
            text = (disputed.site() / f"shared/{letter}.py").read_text()
            assert text == f"OWNER = {owner!r}\n", (letter, round_)
        script = subprocess.run([disputed.current / "bin/common"], capture_output=True, text=True, check=True)
        assert script.stdout == "three-x\n"
        fingerprints.add(ran.host["fingerprint"])
        rules = {finding["rule"] for finding in ran.host["checks"]["findings"]}
        assert rules == {"record-conflict"}
    assert len(fingerprints) == 1


def test_the_conflict_is_reported_with_both_owners(disputed: Repository) -> None:
    findings = disputed.build().host["checks"]["findings"]
    messages = " ".join(finding["message"] for finding in findings)
    for name in ("One==1.0", "three==1.0", "three-x==1.0"):
        assert name.lower() in messages.lower()
    evidence = " ".join(line for finding in findings for line in finding["evidence"])
    assert "shared/a.py" in evidence
    assert "bin/common" in evidence


def pythons_3_11() -> list[str]:
    """Return one interpreter of every patch level of 3.11 that is here."""
    roots = [pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"]
    roots += [pathlib.Path("~/.local/share/uv/python").expanduser()]
    paths = [path for root in roots for path in root.glob("*3.11.*/bin/python3.11")]
    by_version: dict[str, str] = {}
    for path in (*paths, pathlib.Path("/usr/bin/python3.11"), pathlib.Path("/usr/local/bin/python3.11")):
        if path.exists():
            asked = (str(path), "-c", "import sys; print(sys.version.split()[0])")
            answer = subprocess.run(asked, capture_output=True, text=True, check=False)
            by_version.setdefault(answer.stdout.strip(), str(path))
    by_version.pop("", None)
    return [*by_version.values()]


PYTHONS = pythons_3_11()
"""Found before a test sets another home."""


@pytest.mark.usefixtures("repository")  # for its environment
@pytest.mark.skipif(len(PYTHONS) < 2, reason="needs two patch levels of Python 3.11")
@pytest.mark.parametrize("bytecode", ["none", "compile"])
def test_two_folders_and_two_patch_levels_have_one_id_and_one_fingerprint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, bytecode: str
) -> None:
    seen = []
    more = f'python = "3.11"\n[build]\nbytecode = "{bytecode}"'
    for index, python in enumerate(PYTHONS[:2]):
        with another(tmp_path / f"elsewhere/{index}" / ("x" * 30 * index)) as other:
            monkeypatch.setenv("UV_DEFAULT_INDEX", other.registry.simple)
            other.spec("demo==1.0", more=more)
            chosen = HostPython(path=python, version="3.11")
            monkeypatch.setattr(supply, "choose", lambda *_, chosen=chosen: chosen)
            seen.append(other.build().host)
            assert other.python("import demo; print(demo.VERSION)") == "1.0"
    one, two = seen
    assert one["interpreter"] != two["interpreter"]
    assert one["path"] != two["path"]
    assert (one["build"], one["fingerprint"]) == (two["build"], two["fingerprint"])


def another(folder: pathlib.Path) -> AbstractContextManager[Repository]:
    folder.mkdir(parents=True)
    return repository_in(folder)
