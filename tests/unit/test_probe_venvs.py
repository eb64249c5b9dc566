"""Environments found within bounds, and what of the serving stack each holds."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.agent.probe import venvs
from hostenv.agent.probe.distributions import Budget, stack
from hostenv.agent.probe.tree import Tree

if TYPE_CHECKING:
    import pathlib

HERE = Tree()
LONG = 60.0
"""Seconds that a search or hashing may take: more than any of these does on a slow machine."""


def make_venv(folder: pathlib.Path) -> pathlib.Path:
    site = folder / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to("/bin/sh")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.3\nuv = 0.13.9\n")
    return site


def install(site: pathlib.Path, name: str, version: str, files: dict[str, str]) -> pathlib.Path:
    rows = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text)}\n")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("".join(rows) + f"{info.name}/RECORD,,\n../../../bin/x,sha256=abc,1\n")
    return info


@pytest.fixture
def site(tmp_path: pathlib.Path) -> pathlib.Path:
    return make_venv(tmp_path / "venv")


def test_the_stack_with_versions(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    install(site, "sglang", "0.5.15.post1", {"sglang/__init__.py": "a = 1\n"})
    install(site, "sglang_kernel", "0.4.4", {"sgl_kernel/__init__.py": "\n"})
    install(site, "Unrelated", "1.0", {"unrelated.py": "\n"})
    told = venvs.describe(HERE, str(tmp_path / "venv"), Budget(LONG))
    assert (told["python"], told["home"], told["made_by_uv"]) == ("3.12.3", "/usr/bin", "0.13.9")
    assert told["interpreter_works"] is True
    assert [(each["name"], each["version"]) for each in told["stack"]] == [
        ("sglang", "0.5.15.post1"),
        ("sglang-kernel", "0.4.4"),
    ]


def test_changed_files_are_counted(site: pathlib.Path) -> None:
    install(site, "sglang", "1", {f"sglang/m{number}.py": f"x = {number}\n" for number in range(5)})
    assert stack(HERE, str(site), Budget(LONG))[0]["changed"]["value"] == {
        "files": 5,
        "changed": 0,
        "first": [],
    }
    (site / "sglang" / "m1.py").write_text("x = 9\n")  # same size
    (site / "sglang" / "m3.py").unlink()
    assert stack(HERE, str(site), Budget(LONG))[0]["changed"]["value"] == {
        "files": 5,
        "changed": 2,
        "first": ["sglang/m1.py", "sglang/m3.py"],
    }


def test_without_time_whether_files_changed_is_unknown(site: pathlib.Path) -> None:
    install(site, "sglang", "1", {"sglang/__init__.py": "\n"})
    assert "used up" in stack(HERE, str(site), Budget(0.0))[0]["changed"]["unknown"]


def test_a_record_does_not_lead_out(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    info = install(site, "sglang", "1", {"sglang/__init__.py": "\n"})
    (tmp_path / "outside.py").write_text("secret")
    (info / "RECORD").write_text(f"../../../../outside.py,sha256=x,6\n{tmp_path}/outside.py,sha256=x,6\n")
    assert "no Python file" in stack(HERE, str(site), Budget(LONG))[0]["changed"]["unknown"]


def test_an_editable_install_and_its_source_without_credentials(site: pathlib.Path) -> None:
    info = install(site, "sglang", "1", {})
    url = {"url": "file:///root/sglang", "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    told = stack(HERE, str(site), Budget(LONG))[0]
    assert (told["editable"], told["source"]) == (True, "file:///root/sglang")
    assert told["changed"]["unknown"].startswith("editable")
    git = {"url": "https://me:token@host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    (info / "direct_url.json").write_text(json.dumps(git))
    assert stack(HERE, str(site), Budget(LONG))[0]["source"] == "https://host/x.git@abc"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ("cuda = '12.8'\n", "12.8"),
        ("cuda: Optional[str] = None\n", None),
    ],
)
def test_torchs_cuda(site: pathlib.Path, text: str, told: str | None) -> None:
    install(site, "torch", "2.11.0", {"torch/version.py": text})
    assert stack(HERE, str(site), Budget(LONG))[0]["cuda"]["value"] == told


def test_torch_without_its_version_file(site: pathlib.Path) -> None:
    install(site, "torch", "2.11.0", {})
    assert "No such file" in stack(HERE, str(site), Budget(LONG))[0]["cuda"]["unknown"]


def test_what_is_no_environment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "_PLACES", ())
    told = venvs.read(HERE, [str(tmp_path), "/nowhere/at/all"], [], LONG, Budget(LONG))
    assert [each["unknown"] for each in told["found"]] == ["is no virtual environment", "does not exist"]


def test_an_environment_whose_interpreter_is_gone(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    del site
    (tmp_path / "venv" / "bin" / "python").unlink()
    (tmp_path / "venv" / "bin" / "python").symlink_to("/nowhere/python3.12")
    assert venvs.describe(HERE, str(tmp_path / "venv"), Budget(LONG))["interpreter_works"] is False


def test_the_search_finds_each_once_and_enters_no_environment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venvs, "_PLACES", (str(tmp_path),))
    inner = make_venv(tmp_path / "a" / "b" / ".venv") / "nested"
    make_venv(inner)
    make_venv(tmp_path / "one" / "two" / "three" / "four" / "five")  # too deep
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / ".venv")
    told = venvs.read(HERE, [str(tmp_path / "a/b/.venv")], [], LONG, Budget(LONG))
    assert [each["value"]["path"] for each in told["found"]] == [str(tmp_path / "a/b/.venv")]
    assert told["complete"] is True


def test_the_search_ends_in_time_and_stays_off_remote_mounts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venvs, "_PLACES", (str(tmp_path),))
    make_venv(tmp_path / "nfs" / "venv")
    told = venvs.read(HERE, [], [str(tmp_path / "nfs")], LONG, Budget(LONG))
    assert (told["found"], told["complete"]) == ([], True)
    told = venvs.read(HERE, [], [], 0.0, Budget(LONG))
    assert (told["found"], told["complete"]) == ([], False)


def test_hundreds_of_folders_are_quick(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "_PLACES", (str(tmp_path),))
    for number in range(500):
        (tmp_path / f"d{number}" / "x" / "y").mkdir(parents=True)
    begun = time.monotonic()
    venvs.read(HERE, [], [], LONG, Budget(LONG))
    assert time.monotonic() - begun < LONG / 2


def test_a_system_python_that_holds_the_stack(site: pathlib.Path) -> None:
    install(site, "vllm", "0.9.0", {"vllm/__init__.py": "\n"})
    interpreter = {"prefix": "/usr", "version": "3.12.3", "path": "/usr/bin/python3", "sites": [str(site)]}
    found = venvs.bases(HERE, [{"value": interpreter, "how": ""}, {"unknown": "x", "how": ""}], Budget(LONG))
    assert [(each["value"]["kind"], each["value"]["path"]) for each in found] == [("base", "/usr")]
    assert [each["name"] for each in found[0]["value"]["stack"]] == ["vllm"]
