"""Distributions held against their files: what differs, is missing, is nobody's, is contested."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import distinfo, record
from hostenv.document import DocumentError
from hostenv.facts.distributions import Installed
from kit.environment import SITE, SilentWire, distribution, make_environment, put

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

ALPHA = distribution("alpha", "1.0", {"alpha/__init__.py": "a = 1\n", "shared.py": "alpha's\n"})
BETA = distribution("Beta.Two", "2.0", {"beta/__init__.py": "b = 1\n", "shared.py": "beta's\n"})


def surveyed(root: pathlib.Path) -> dict[str, Any]:
    return record.survey(SilentWire(), root=str(root))


def installed(root: pathlib.Path) -> Installed:
    return Installed.from_answer(json.loads(json.dumps(surveyed(root))), "host")


def test_a_sound_environment_has_nothing_to_say(tmp_path: pathlib.Path) -> None:
    found = installed(make_environment(tmp_path / "env", ALPHA))
    (alpha,) = found.distributions
    assert (alpha.name, alpha.version, alpha.tags, alpha.installer) == (
        "alpha",
        "1.0",
        ("py3-none-any",),
        "kit",
    )
    assert (alpha.mismatched, alpha.missing, alpha.problems, found.unowned, found.conflicts) == (
        (),
        (),
        (),
        {},
        (),
    )
    assert found.site == SITE


def test_edited_missing_and_stray_files_are_named(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", ALPHA)
    put(root / SITE / "alpha/__init__.py", "a = 2\n")
    (root / SITE / "shared.py").unlink()
    put(root / SITE / "alpha/stray.py", "s")
    put(root / SITE / "alpha/__pycache__/gone.cpython-312.pyc", "no source")
    found = installed(root)
    (alpha,) = found.distributions
    (edited,) = alpha.mismatched
    assert found.within_site(edited.path) == "alpha/__init__.py"
    assert (edited.recorded, edited.found) == (
        hashlib.sha256(b"a = 1\n").hexdigest(),
        hashlib.sha256(b"a = 2\n").hexdigest(),
    )
    assert alpha.missing == (f"{SITE}/shared.py",)
    assert found.unowned == {
        f"{SITE}/alpha/__pycache__/gone.cpython-312.pyc": hashlib.sha256(b"no source").hexdigest(),
        f"{SITE}/alpha/stray.py": hashlib.sha256(b"s").hexdigest(),
    }


def test_a_link_in_the_place_of_a_file_is_a_mismatch(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", ALPHA)
    (root / SITE / "shared.py").unlink()
    (root / SITE / "shared.py").symlink_to("alpha/__init__.py")
    (alpha,) = installed(root).distributions
    assert [(item.path, item.found) for item in alpha.mismatched] == [(f"{SITE}/shared.py", None)]


@pytest.mark.parametrize(("content", "holder"), [("alpha's\n", "alpha==1.0"), ("beta's\n", "beta-two==2.0")])
def test_a_contested_path_names_owners_holder_and_winner(
    tmp_path: pathlib.Path, content: str, holder: str
) -> None:
    root = make_environment(tmp_path / "env", {**ALPHA, **BETA})
    put(root / SITE / "shared.py", content)
    found = installed(root)
    (conflict,) = found.conflicts
    assert conflict.path == f"{SITE}/shared.py"
    assert list(conflict.claims) == ["alpha==1.0", "beta-two==2.0"]
    assert (conflict.holders, conflict.winner) == ((holder,), "beta-two==2.0")
    assert all(not each.mismatched for each in found.distributions)


def test_bytes_that_are_neither_owners_are_a_mismatch_of_both(tmp_path: pathlib.Path) -> None:
    root = make_environment(tmp_path / "env", {**ALPHA, **BETA})
    put(root / SITE / "shared.py", "mine")
    found = installed(root)
    assert [len(each.mismatched) for each in found.distributions] == [1, 1]
    assert found.conflicts[0].holders == ()


def test_the_winner_does_not_depend_on_any_order() -> None:
    claims: Mapping[str, Mapping[bytes, bytes]] = {
        "torch-c-dlpack-ext==0.1": {b"build_backend.py": b"1", b"same": b"0"},
        "sgl-kernel==0.4": {b"k": b"1", b"same": b"0"},
        "flashinfer-python==0.6": {b"build_backend.py": b"2"},
        "sglang-kernel==0.4": {b"k": b"2"},
    }
    backwards = dict(reversed(list(claims.items())))
    assert record.conflicts(claims) == record.conflicts(backwards)
    winners = {path: record.winner(owners) for path, owners in record.conflicts(claims).items()}
    assert winners == {b"build_backend.py": "torch-c-dlpack-ext==0.1", b"k": "sglang-kernel==0.4"}


def test_rows_are_placed_in_the_environment() -> None:
    digest = base64.urlsafe_b64encode(b"\xff" * 32).decode().rstrip("=")
    text = f'a.py,sha256={digest},1\r\n"odd,name",,\n../../../bin/tool,sha512=abc,2\n./b//c,,\n\n'
    rows, problems = distinfo.rows(text, SITE.encode())
    assert problems == []
    assert rows == {
        f"{SITE}/a.py".encode(): distinfo.Row(sha256=b"\xff" * 32, size=1),
        f"{SITE}/odd,name".encode(): distinfo.Row(),
        b"bin/tool": distinfo.Row(other="sha512", size=2),
        f"{SITE}/b/c".encode(): distinfo.Row(),
    }


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("../../../../etc/passwd,,", "leaves the environment"),
        ("/etc/passwd,,", "leaves the environment"),
        ("a.py,sha256=short,1", "is no hash"),
        ("a.py,sha256=" + "*" * 43 + ",1", "is no hash"),
        ("a.py,nonsense,1", "is no hash"),
        ("a.py", "1 fields instead of 3"),
        ('"a.py,,', "is not CSV"),
    ],
)
def test_a_line_that_is_none_is_a_problem_never_an_exception(line: str, problem: str) -> None:
    rows, problems = distinfo.rows(line + "\n", SITE.encode())
    assert rows == {}
    assert problem in problems[0]


def test_metadata_wheel_and_entry_points_are_read(tmp_path: pathlib.Path) -> None:
    files = distribution("alpha", "1.0", {}, requires=["b>=1", 'c; extra == "x"'], tags=["a-b-c", "d-e-f"])
    info = "alpha-1.0.dist-info"
    metadata = str(files[f"{info}/METADATA"]) + "Provides-Extra: x\nSummary: one\n  two\n\nName: not this\n"
    files |= {
        f"{info}/METADATA": metadata,
        f"{info}/entry_points.txt": "[console_scripts]\n# none\ntool = alpha:main\n[g.h]\nn=alpha\n",
        f"{info}/direct_url.json": '{"url": "file:///src", "dir_info": {"editable": true}}',
    }
    (alpha,) = installed(make_environment(tmp_path / "env", files)).distributions
    assert alpha.requires == ("b>=1", 'c; extra == "x"')
    assert (alpha.extras, alpha.tags, alpha.editable) == (("x",), ("a-b-c", "d-e-f"), True)
    assert alpha.entry_points == {"console_scripts": ("tool = alpha:main",), "g.h": ("n=alpha",)}


def test_an_orphaned_dist_info_is_a_problem_of_that_distribution(tmp_path: pathlib.Path) -> None:
    site = {"gone-1.dist-info/INSTALLER": "pip", "old.egg-info/PKG-INFO": "Name: old\nVersion: 3\n"}
    gone, old = installed(make_environment(tmp_path / "env", site)).distributions
    assert (gone.name, gone.version, gone.problems) == (
        "gone",
        "1",
        ("has no METADATA", "has no WHEEL", "has no RECORD"),
    )
    assert (old.version, old.problems) == ("3", ("is installed the legacy way, without RECORD",))


def test_a_damaged_answer_names_the_place() -> None:
    with pytest.raises(DocumentError, match=r"host: distributions: distributions\[0\]\.files"):
        Installed.from_answer({"distributions": [{"files": "3"}]}, "host")
