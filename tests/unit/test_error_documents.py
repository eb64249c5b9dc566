"""``--json`` where a session ends before any host: its error, and never an older session's document."""

from __future__ import annotations

import json
import pathlib

import pytest

from hostenv import commands
from hostenv.errors import InputError
from kit.schema import violations

DOCS = pathlib.Path(__file__).parents[2] / "docs/schema"

SCHEMAS = {
    "status": "status",
    "builds": "builds",
    "probe": "probe",
    "match": "match",
    "verify_abi": "verify_abi",
    "build_env": "results",
    "sync_patches": "results",
}


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "envspecs"
    folder.mkdir()
    text = '[host]\naddress = "a.example"\nroot = "/srv/a"\n[env]\nrequires = ["demo"]\n'
    (folder / "a.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("session", SCHEMAS)
def test_an_unknown_host_is_the_document(
    repository: pathlib.Path, session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = repository / "told.json"
    told.write_text('{"hosts": ["of yesterday"]}')
    with pytest.raises(InputError):
        commands.run(session, ["nobody", "--json", str(told)], repository)
    document = json.loads(told.read_text())
    schema = json.loads((DOCS / f"{SCHEMAS[session]}.schema.json").read_text())
    assert violations(document, schema) == []
    assert "nobody" in json.dumps(document["error"])
    assert not document.get("hosts")

    capsys.readouterr()
    with pytest.raises(InputError):
        commands.run(session, ["nobody", "--json", "-"], repository)
    assert json.loads(capsys.readouterr().out) == document
