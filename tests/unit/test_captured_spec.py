"""The spec and the manifest that a capture writes: a stub is completed, a decision stays as it is."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import InputError
from hostenv.facts.manifest import Entry, Manifest, TreeFacts
from hostenv.facts.manifest_saved import SavedManifest
from hostenv.steps.capturedspec import Left, NewHost, completed
from kit.facts import INTERPRETER

if TYPE_CHECKING:
    import pathlib

STUB = """\
# Our reference.

tags = ["a6000"]   # two of them

[host]
root = "/srv/hostenv"
mode = "observe"
"""


def test_a_stub_keeps_every_line_and_takes_class_and_environment() -> None:
    made = completed(STUB, "ref-captured", "/opt/venv")
    assert isinstance(made, str)
    assert made.startswith('# Our reference.\n\nextends = "classes/ref-captured"\n\ntags = ')
    assert set(STUB.splitlines()) <= set(made.splitlines())
    values = tomllib.loads(made)
    assert values.pop("extends") == "classes/ref-captured"
    assert values.pop("capture") == {"venv": "/opt/venv"}
    assert values == tomllib.loads(STUB)


def test_an_environment_that_is_named_stays_and_one_joins_what_is_said_of_the_capture() -> None:
    named = f'{STUB}[capture]\nvenv = "/root/ml-env"\n'
    assert completed(named, "c", "/opt/venv") == named.replace("\ntags", '\nextends = "classes/c"\n\ntags', 1)
    ignoring = f'{STUB}[capture]   # mine\nignore = ["*.log"]\n[checks]\n'
    assert captured(completed(ignoring, "c", "/opt/venv")) == {"venv": "/opt/venv", "ignore": ["*.log"]}


@pytest.mark.parametrize("head", ["[ capture ]", "  [capture]  # mine", "[\tcapture]"])
def test_a_table_is_completed_however_its_head_is_spelled(head: str) -> None:
    said = f"{STUB}\n{head}\nignore = []\n"
    assert captured(completed(said, "c", "/opt/venv")) == {"venv": "/opt/venv", "ignore": []}
    assert captured(completed(f"{STUB}{head}", "c", "/opt/venv")) == {"venv": "/opt/venv"}


def captured(made: str | Left) -> object:
    assert isinstance(made, str)
    return tomllib.loads(made)["capture"]


@pytest.mark.parametrize("said", ["[env]\n", "[[overlays]]\nname = 'x'\n", "[platform]\n", "[reference]\n"])
def test_a_file_that_says_what_is_built_is_not_touched(said: str) -> None:
    assert completed(STUB + said, "c", "/opt/venv") is Left.DECIDED


def test_a_second_time_changes_nothing_and_another_class_is_a_decision() -> None:
    once = completed(STUB, "c", "/opt/venv")
    assert isinstance(once, str)
    assert completed(once, "c", "/opt/venv") == once
    assert completed(once, "another", "/opt/venv") is Left.DECIDED


@pytest.mark.parametrize(
    "said", ["[checks]\n", '["capture"]\nignore = []\n', 'capture.ignore = ["x"]\n', "capture = { }\n"]
)
def test_what_no_added_line_completes_is_left_and_not_called_a_decision(said: str) -> None:
    text = f"{said}{STUB}" if said.startswith("capture") else f"{STUB}{said}"
    made = completed(text, "c", "/opt/venv")
    if "capture" in said:
        assert made is Left.FORM
        assert completed(text, "c", None) != Left.FORM  # nothing to add to it
    else:
        assert captured(made) == {"venv": "/opt/venv"}


def test_a_host_that_no_file_names_is_only_observed_until_somebody_says_otherwise() -> None:
    new = NewHost(address="ct129", machine_id="0" * 32, host_key="SHA256:" + "A" * 43)
    values = tomllib.loads(new.render("/root/ml-env"))
    assert values["host"] == {"address": "ct129", "root": "~/hostenv", "mode": "observe"}
    assert values["identity"] == {"machine-id": "0" * 32, "host-key": "SHA256:" + "A" * 43}
    assert values["capture"] == {"venv": "/root/ml-env"}


ENTRIES = {
    "lib/b.py": Entry(0o644, 1, hashlib.sha256(b"x").hexdigest()),
    "lib/a\udcff \n.py": Entry(0o755, 0, hashlib.sha256(b"").hexdigest()),
    "lib/l": Entry(0, 0, "", "b.py"),
}
CANONICAL = b"hostenv manifest 1\0" + b"".join(
    (
        b"f 755 0 %s lib/a\xff \n.py\0" % hashlib.sha256(b"").hexdigest().encode(),
        b"f 644 1 %s lib/b.py\0" % hashlib.sha256(b"x").hexdigest().encode(),
        b"l lib/l\0b.py\0",
    )
)


def saved(fingerprint: str | None) -> SavedManifest:
    return SavedManifest(
        host="ref",
        venv="/opt/venv",
        build=None,
        taken=dt.date(2026, 12, 1),
        tree=TreeFacts(
            fingerprint=fingerprint,
            interpreter=INTERPRETER,
            files=2,
            links=1,
            bytes=1,
            left_out=0,
            read=0,
            problems=(),
        ),
        manifest=Manifest.from_entries(ENTRIES),
        stale=frozenset({"lib/x.pyc"}),
    )


def test_a_manifest_is_the_same_after_it_was_kept(tmp_path: pathlib.Path) -> None:
    fingerprint = hashlib.sha256(CANONICAL).hexdigest()
    wanted = saved(fingerprint)
    assert wanted.manifest.canonical == CANONICAL
    path = tmp_path / "ref.json"
    path.write_text(wanted.render())
    found = SavedManifest.load(path)
    assert found.manifest.entries == ENTRIES
    assert found.manifest.fingerprint == fingerprint
    assert (found.host, found.taken, found.tree, found.stale) == (
        "ref",
        wanted.taken,
        wanted.tree,
        wanted.stale,
    )
    assert found.render() == wanted.render()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["a\ud800", "0644", 1, "a" * 64], "surrogate"),
        (["a", "b\ud800"], "surrogate"),
        (["a", "0644", -1, "a" * 64], "must not be negative"),
        (["a", "0644", True, "a" * 64], "must be"),
        (["a\0b", "0644", 1, "a" * 64], "no file name"),
        (["a", ""], "no file name"),
        (["../a", "0644", 1, "a" * 64], "no path below"),
        (["a//b", "0644", 1, "a" * 64], "no path below"),
        (["/etc/passwd", "0644", 1, "a" * 64], "no path below"),
    ],
)
def test_a_line_that_no_capture_writes_is_refused(
    tmp_path: pathlib.Path, line: list[object], said: str
) -> None:
    path = tmp_path / "ref.json"
    document = json.loads(saved(None).render())
    path.write_text(json.dumps({**document, "files": [line]}))
    with pytest.raises(InputError, match=said):
        SavedManifest.load(path)


def test_a_path_that_is_there_twice_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ref.json"
    document = json.loads(saved(None).render())
    path.write_text(json.dumps({**document, "files": [document["files"][0]] * 2}))
    with pytest.raises(InputError, match="more than once"):
        SavedManifest.load(path)


def test_a_manifest_that_was_changed_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ref.json"
    document = json.loads(saved(hashlib.sha256(CANONICAL).hexdigest()).render())
    for damage, said in (
        ({"files": document["files"][:-1]}, "it was changed"),
        ({"files": [["a", "0999", 1, "0" * 64]]}, "must be"),
        ({"version": 2}, "version"),
        ({"host": None}, "host"),
    ):
        path.write_text(json.dumps({**document, **damage}))
        with pytest.raises(InputError, match=said):
            SavedManifest.load(path)
    path.write_text("{")
    with pytest.raises(InputError, match="is no manifest"):
        SavedManifest.load(path)
    with pytest.raises(InputError, match="No such file"):
        SavedManifest.load(tmp_path / "none.json")
