"""``build_env`` from a spec to a current environment: real uv, real venvs, an index on loopback."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv import commands
from hostenv.errors import InputError
from kit.repository import DEMO_PATCH, PROJECT, listing
from kit.schema import violations

if TYPE_CHECKING:
    from kit.repository import Repository

SECRETS = {
    "HF_TOKEN": "hf_s3cr3tOfTheHub",
    "UV_INDEX_CORP_USERNAME": "login-of-the-index",
    "UV_INDEX_CORP_PASSWORD": "p4ssw0rd-of-the-index",
}


def test_a_first_build_is_current_and_works(repository: Repository) -> None:
    ran = repository.build()

    assert ran.host["headline"] == "built, checked and current"
    assert ran.host["generation"] == 1
    assert repository.python("import demo, helper; print(demo.VERSION, helper.ONE)") == "1.0 1"
    assert (repository.root / "current").readlink() == pathlib.Path("generations/1")
    assert repository.current == repository.root / "builds" / ran.host["build"]
    receipt = json.loads((repository.root / "current/receipt.json").read_text())
    assert (receipt["generation"], receipt["previous"]) == (1, None)
    assert receipt["build"] == ran.host["build"]
    assert receipt["fingerprint"] == ran.host["fingerprint"]
    assert [name for name, _, _ in receipt["inputs"]["wheels"]] == ["demo", "helper"]


def test_scripts_run_by_the_build_they_belong_to(repository: Repository) -> None:
    repository.build()
    script = repository.current / "bin/demo"
    done = subprocess.run([script], env={}, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "demo 1.0\n"


def test_a_second_run_changes_nothing_and_says_so(repository: Repository) -> None:
    first = repository.build()
    before = listing(repository.root), listing(repository.path)
    asked = len(repository.registry.requests)

    again = repository.build()

    assert (again.host["headline"], again.host["changed"]) == ("nothing to do", False)
    assert (listing(repository.root), listing(repository.path)) == before
    assert len(repository.registry.requests) == asked
    for same in ("build", "generation", "fingerprint", "interpreter"):
        assert again.host[same] == first.host[same]


def test_a_new_port_is_no_new_build(repository: Repository) -> None:
    repository.build()
    before = listing(repository.root)
    repository.spec("demo==1.0", more='[service]\nport = 30001\nargs = ["-m", "demo"]')
    assert repository.build().host["changed"] is False
    assert listing(repository.root) == before


def test_a_changed_requirement_is_locked_and_built_anew_and_the_old_build_stays(
    repository: Repository,
) -> None:
    old = repository.build().host["build"]
    repository.wheel("demo", "2.0", {"demo/__init__.py": 'VERSION = "2.0"\n'})
    repository.spec("demo==2.0")

    new = repository.build().host

    assert new["build"] != old
    assert new["generation"] == 2
    assert repository.python("import demo; print(demo.VERSION)") == "2.0"
    before = repository.root / "builds" / old
    assert repository.python("import demo; print(demo.VERSION)", before) == "1.0"
    (lock,) = (repository.path / "envspecs/locks").iterdir()
    assert "demo===2.0 " in lock.read_text()


def test_a_remade_lock_of_the_same_wheels_is_no_new_build(repository: Repository) -> None:
    old = repository.build().host
    repository.spec("demo==1.0", "helper")
    again = repository.build().host
    assert (again["build"], again["generation"]) == (old["build"], 1)
    assert list((repository.root / "generations").iterdir()) == [repository.root / "generations/1"]


def test_a_series_is_part_of_the_build_and_kept_beside_it(repository: Repository) -> None:
    plain = repository.build().host
    shipped = (repository.site() / "demo-1.0.dist-info/RECORD").read_bytes()
    repository.series("demo-1.0", DEMO_PATCH)
    repository.spec("demo==1.0", env='patches = ["demo-1.0"]')

    patched = repository.build().host

    assert patched["build"] != plain["build"]
    assert patched["fingerprint"] != plain["fingerprint"]
    assert patched["checks"]["findings"] == []
    assert repository.python("import demo; print(demo.VERSION)") == "1.0, patched"
    assert (repository.site() / "demo-1.0.dist-info/RECORD").read_bytes() == shipped
    kept = repository.current / ".hostenv/series/demo-1.0/one.patch"
    assert kept.read_text() == DEMO_PATCH


def test_a_dry_run_writes_nothing_at_all(repository: Repository) -> None:
    ran = repository.build("--dry-run")
    assert ran.host["headline"] == "dry run: nothing was changed"
    assert not repository.root.exists()
    assert not (repository.path / "envspecs/locks").exists()

    repository.build()
    (repository.root / "wheelhouse/.verified").unlink()
    repository.series("demo-1.0", DEMO_PATCH)
    repository.spec("demo==1.0", env='patches = ["demo-1.0"]')
    before = listing(repository.root), listing(repository.path)
    ran = repository.build("--dry-run")
    assert (ran.host["fingerprint"], ran.host["generation"]) == (None, None)
    assert (listing(repository.root), listing(repository.path)) == before


def test_the_wheelhouse_serves_a_build_without_any_index(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.build()
    repository.series("demo-1.0", DEMO_PATCH)
    repository.spec("demo==1.0", env='patches = ["demo-1.0"]')
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    repository.build()
    assert repository.python("import demo; print(demo.VERSION)") == "1.0, patched"


def test_compiled_bytecode_is_checked_by_hash_and_no_part_of_the_fingerprint(repository: Repository) -> None:
    without = repository.build().host
    assert not list(repository.site().rglob("*.pyc"))
    repository.spec("demo==1.0", more='[build]\nbytecode = "compile"')

    compiled = repository.build().host

    assert compiled["build"] != without["build"]
    assert compiled["fingerprint"] == without["fingerprint"]
    names = {path.name.partition(".")[0] for path in repository.site().rglob("*.pyc")}
    assert {"__init__", "helper"} <= names
    for path in repository.site().rglob("*.pyc"):
        assert path.read_bytes()[4:8] == b"\x03\0\0\0", "PEP 552: hash-based, checked"
    program = "import demo, sys; print(demo.VERSION, demo.__cached__, demo.main.__code__.co_filename)"
    version, cached, source = repository.python(program).split()
    assert version == "1.0"
    assert pathlib.Path(cached).is_file()
    assert source == str(repository.site() / "demo/__init__.py")


def test_no_secret_of_the_environment_is_written_or_said(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    scheme, _, rest = repository.registry.simple.partition("//")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{scheme}//kim:u53r1nf0@{rest}")
    repository.build()
    repository.spec("demo==7.0")
    failed = repository.run("build_env")
    assert failed.failure

    secrets = [*SECRETS.values(), "u53r1nf0"]
    said = "".join(capfd.readouterr()) + failed.message + json.dumps(failed.document)
    assert [secret for secret in secrets if secret in said] == []
    written = [path for path in repository.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    ours = [path for path in written if repository.folder / "uv-cache" not in path.parents]
    assert len(ours) > 20
    leaks = [path for path in ours for secret in secrets if secret.encode() in path.read_bytes()]
    assert leaks == []


@pytest.mark.parametrize("case", ["done", "nothing", "failed", "input", "checks"])
def test_the_json_keeps_its_schema(repository: Repository, case: str) -> None:
    schema = json.loads((PROJECT / "docs/schema/results.schema.json").read_text())
    checks = json.loads((PROJECT / "docs/schema/findings.schema.json").read_text())
    outcome = {"nothing": "done"}.get(case, case)
    if case == "nothing":
        repository.build()
    if case == "failed":
        repository.spec("demo==7.0")
    if case == "input":
        repository.spec("demo==1.0", host="rooot = 1")
    if case == "checks":
        repository.wheel("demo", "3.0", {"demo.py": "X = 1\n"}, record={"demo.py": "sha256=" + "A" * 43})
        repository.spec("demo==3.0")

    document = repository.run("build_env").document

    assert violations(document, schema) == []
    assert document["outcome"] == outcome
    for host in document["hosts"]:
        if host["checks"]:
            assert violations(host["checks"], checks) == []
    assert bool(document["hosts"]) is (case != "input")
    assert bool(document["hosts"] and document["hosts"][0]["checks"]) is (case in {"done", "checks"})


def test_the_schema_would_see_a_wrong_document(repository: Repository) -> None:
    schema = json.loads((PROJECT / "docs/schema/results.schema.json").read_text())
    document = repository.build().document
    for wrong in (
        document | {"version": 2},
        document | {"outcome": "fine"},
        document | {"hosts": [document["hosts"][0] | {"changed": "yes"}]},
        document | {"surprise": 1},
    ):
        assert violations(wrong, schema)


def test_the_real_nox_builds_and_then_does_nothing(repository: Repository) -> None:
    first = repository.nox("build_env")
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert "built, checked and current" in said
    assert "Traceback" not in said
    assert "\x1b[" not in said, "colour only on a terminal"
    assert repository.python("import demo; print(demo.VERSION)") == "1.0"
    before = listing(repository.root), listing(repository.path / "envspecs")

    second = repository.nox("build_env")
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 0
    assert "nothing to do" in said
    assert (listing(repository.root), listing(repository.path / "envspecs")) == before


def test_the_real_nox_fails_with_one_line_and_exit_1(repository: Repository) -> None:
    repository.spec("demo==1.0", host='lnk = "/x"')
    ran = repository.nox("build_env")
    said, _ = ran.communicate(timeout=120)
    assert ran.returncode == 1
    assert "envspecs/local.toml: host.lnk" in said
    assert "did you mean" in said
    assert "Traceback" not in said


def test_nox_lists_every_session_without_importing_hostenv(repository: Repository) -> None:
    program = (
        "import sys, nox\nsys.argv = ['nox', '-l']\n"
        "try:\n nox.main()\nexcept SystemExit:\n pass\n"
        "print([name for name in ('hostenv', 'rich', 'requests', 'fabric') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=repository.path,
        env=repository.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "build_env" in done.stdout
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("place", ["nowhere/x.json", "."])
def test_a_json_that_cannot_be_written_is_refused_before_anything_is_done(
    repository: Repository, place: str
) -> None:
    with pytest.raises(InputError, match="--json"):
        commands.run("build_env", ["local", "--json", str(repository.folder / place)], repository.path)
    assert not repository.root.exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_without_the_marks_still_tells_the_result(repository: Repository, encoding: str) -> None:
    ran = repository.nox("build_env", PYTHONIOENCODING=encoding)
    said, _ = ran.communicate(timeout=120)
    assert (ran.returncode, "built, checked and current" in said) == (0, True), said
    assert "Traceback" not in said


def test_an_output_that_is_full_is_one_line_and_the_json_is_whole(repository: Repository) -> None:
    document = repository.folder / "out.json"
    with open("/dev/full", "w") as full:  # noqa: PTH123  a device, not a file of ours
        done = subprocess.run(
            repository.command("build_env", "--json", str(document)),
            cwd=repository.path,
            env=repository.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert "the output cannot be written" in done.stderr
    assert json.loads(document.read_text())["outcome"] == "done"
