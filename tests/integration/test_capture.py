"""``capture``: what nobody described becomes pins, series and an overlay, and goes to targets."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hostenv.errors import HostError
from hostenv.machine import uv
from hostenv.spec.fleet import load_fleet
from hostenv.workflows.environment import Environment
from kit.changing import changing
from kit.repository import DEMO, DEMO_PATCH, listing
from kit.trio import Trio, digests
from kit.wheels import build_wheel

if TYPE_CHECKING:
    from hostenv.facts.manifest import Manifest
    from hostenv.workflows.events import Listener
    from kit.repository import Repository


@pytest.fixture
def trio(repository: Repository) -> Trio:
    """A venv that uv made by hand: ``demo`` patched, ``own`` from a file, ``kernel`` with another binary."""
    made = Trio(repository=repository)
    repository.wheel(
        "kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'index'\n", "kernel/ops.bin": b"\0index"}
    )
    venv = handmade(made)
    build_wheel(repository.folder / "own", "own", "3.0+ours", {"own.py": "OWN = 3\n"})
    (own,) = (repository.folder / "own").glob("*.whl")
    run_uv(
        made, "pip", "install", "-q", "--python", f"{venv}/bin/python", "demo==1.0", "kernel==1.0", str(own)
    )
    (site,) = venv.glob("lib/python3*/site-packages")
    for path in site.rglob("*"):  # uv links files to its cache: an edit must not reach it
        if path.is_file():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
    (site / "demo/__init__.py").write_text(DEMO.replace("1.0", "1.0, by hand"))
    (site / "demo/extra.py").write_text("EXTRA = True\n")
    (site / "demo/words.txt").unlink()
    (site / "kernel/ops.bin").write_bytes(b"\0ours" * 100)
    (site / "loose.py").write_text("LOOSE = 1\n")
    for path in site.rglob("*.py"):  # as a login with umask 002 leaves them
        path.chmod(path.stat().st_mode | 0o020)
    return made


def handmade(trio: Trio) -> pathlib.Path:
    """Make an empty venv and the spec of its host, which may only be observed."""
    venv = trio.repository.folder / "hand-made"
    run_uv(trio, "venv", "-q", "--python", sys.executable, str(venv))
    write_spec(trio, venv)
    return venv


def write_spec(trio: Trio, venv: pathlib.Path, head: str = "", more: str = "") -> None:
    (trio.repository.path / "envspecs/ref.toml").write_text(
        f'{head}\n[host]\ntransport = "local"\nroot = {json.dumps(str(trio.root("ref")))}\nmode = "observe"\n'
        f"[capture]\nvenv = {json.dumps(str(venv))}\n{more}"
    )


@pytest.mark.parametrize("name", ["demo/__init__.py", "kernel/ops.bin"])
def test_a_file_that_changes_while_it_is_read_is_not_taken_for_gone(trio: Trio, name: str) -> None:
    """A file of 8 MB, hashed in far more time than two changes are apart, as text and as a binary."""
    (path,) = (trio.repository.folder / "hand-made").glob(f"lib/python3*/site-packages/{name}")
    with path.open("ab") as file:
        file.write(b"# more\n" * (8 << 20 >> 3))
    before = listing(trio.repository.path)
    with changing(path, os.utime):
        ran = trio.run("capture", "ref")
    assert "what cannot be captured" in ran.message
    assert f"{name} changed while it was read" in ran.message
    assert listing(trio.repository.path) == before


def run_uv(trio: Trio, *words: str) -> None:
    subprocess.run([str(uv.binary()), *words], check=True, env=trio.repository.environment, cwd="/")


def test_what_works_by_hand_is_described_proven_and_brought_to_two_targets(trio: Trio) -> None:
    venv = trio.repository.folder / "hand-made"
    before = listing(venv)

    ran = trio.done("capture", "ref")

    assert listing(venv) == before
    assert not trio.root("ref").exists()
    assert "all of" in ran.host["headline"]
    text = (trio.repository.path / "envspecs/classes/ref-captured.toml").read_text()
    assert '"demo==1.0"' in text
    assert "own==" not in text
    patches = trio.repository.path / "patches/demo-1.0"
    assert sorted(path.name for path in patches.iterdir()) == ["01-demo.patch", "series"]
    overlay = (trio.repository.path / "overlays/ref-captured.toml").read_text()
    assert 'name = "own"' in overlay
    assert 'name = "kernel"' in overlay
    assert "kernel/ops.bin is binary and was changed" in overlay
    assert "[-]" in (trio.repository.path / "overlays/ref-captured.files").read_text()

    write_spec(trio, venv, 'extends = "classes/ref-captured"')
    extends = 'extends = "classes/ref-captured"\n'
    for host in ("one", "two"):
        (trio.repository.path / f"envspecs/{host}.toml").write_text(
            f'{extends}[host]\ntransport = "local"\nroot = {json.dumps(str(trio.root(host)))}\n'
            '[build]\nmin-free = "1MiB"\n[reference]\nhost = "ref"\nmay-differ = ["*.dist-info/*"]\n'
        )
    done = trio.done("sync_patches", "ref", "one", "two")
    assert trio.headlines(done) == {"one": "built, checked and current", "two": "built, checked and current"}
    (site,) = venv.glob("lib/python3*/site-packages")
    for host in ("one", "two"):
        wanted, found = digests(site), digests(trio.site(host))
        paths = [path for path in wanted if ".dist-info/" not in path]
        assert {path: found[path][1] for path in paths} == {path: wanted[path][1] for path in paths}
    again = trio.done("sync_patches", "ref", "one", "two")
    assert set(trio.headlines(again).values()) == {"nothing to do"}


def test_a_dry_run_says_what_would_be_written(trio: Trio, capsys: pytest.CaptureFixture[str]) -> None:
    trio.done("capture", "ref", "--dry-run")
    shown = capsys.readouterr().err
    assert "series   patches/demo-1.0: 3 files in 1 patch" in shown
    assert "no index serves" in shown or "was installed from file" in shown
    assert not (trio.repository.path / "overlays").exists()
    assert not (trio.repository.path / "envspecs/classes").exists()


def test_what_cannot_be_explained_is_named_and_the_session_fails(trio: Trio) -> None:
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    (site / "orphan").mkdir()
    (site / "orphan/__init__.py").write_text("")
    ran = trio.run("capture", "ref")
    assert "site-packages/orphan/__init__.py" in ran.message


def test_stale_bytecode_is_told_of_and_bytecode_that_python_runs_is_not_let_pass(trio: Trio) -> None:
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    source = site / "demo/__init__.py"
    compile_to(source, "TIMESTAMP")
    source.write_text(DEMO.replace("1.0", "edited after it was compiled"))
    ran = trio.done("capture", "ref")
    assert any("bytecode" in note for note in ran.host["notes"])
    compile_to(source, "UNCHECKED_HASH")
    ran = trio.run("capture", "ref")
    assert "site-packages/demo/__pycache__/__init__.cpython" in ran.message


def compile_to(source: pathlib.Path, mode: str) -> pathlib.Path:
    """Compile a module in a process of its own, and return the bytecode."""
    program = (
        "import sys, py_compile as c\n"
        "print(c.compile(sys.argv[1], doraise=True, invalidation_mode=c.PycInvalidationMode[sys.argv[2]]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, source, mode], check=True, capture_output=True, text=True
    )
    return pathlib.Path(ran.stdout.strip())


@pytest.mark.parametrize("mode", ["TIMESTAMP", "CHECKED_HASH"])
def test_bytecode_that_python_compiles_anew_stops_neither_sync_nor_match(trio: Trio, mode: str) -> None:
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    source = site / "demo/__init__.py"
    stale = compile_to(source, mode)
    source.write_text(DEMO.replace("1.0", "edited after it was compiled"))
    trio.done("capture", "ref")
    target(trio, "one")

    trio.done("sync_patches", "ref", "one")

    assert trio.done("sync_patches", "ref", "one").host["headline"] == "nothing to do"
    assert trio.done("match", "ref", "one").document["equal"] is True
    manifest = trio.repository.path / "envspecs/manifests/ref.json"
    assert trio.done("match", "one", "--manifest", str(manifest)).document["equal"] is True
    other = trio.repository.folder / "hand-made-too"
    venv = trio.repository.folder / "hand-made"
    shutil.copytree(venv, other, symlinks=True)
    script = other / "bin/demo"
    script.write_text(script.read_text().replace(str(venv), str(other)))
    (other / stale.relative_to(venv)).unlink()
    assert trio.done("match", "ref", f"ref:{other}").document["equal"] is True
    assert trio.done("match", f"ref:{other}", "--manifest", str(manifest)).document["equal"] is True

    compile_to(source, "UNCHECKED_HASH")
    ran = trio.run("match", "ref", "one", f"ref:{other}")
    assert ran.failure is not None
    for each in ran.document["targets"]:
        (found,) = [one["path"] for group in each["distributions"] for one in group["differing"]]
        assert found.endswith(f"site-packages/demo/__pycache__/{stale.name}")


def target(trio: Trio, host: str) -> None:
    """Write the spec of a target that takes what was captured."""
    (trio.repository.path / f"envspecs/{host}.toml").write_text(
        'extends = "classes/ref-captured"\n[host]\ntransport = "local"\n'
        f'root = {json.dumps(str(trio.root(host)))}\n[build]\nmin-free = "1MiB"\n'
    )


def test_editable_installations_are_refused_by_name(trio: Trio) -> None:
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    origin = {"url": "file:///src/demo", "dir_info": {"editable": True}}
    (site / "demo-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    ran = trio.run("capture", "ref")
    assert "demo 1.0: file:///src/demo" in ran.message


def test_a_second_capture_says_the_same(trio: Trio) -> None:
    trio.done("capture", "ref")
    before = listing(trio.repository.path)
    trio.done("capture", "ref")
    after = listing(trio.repository.path)
    anew = {"envspecs/locks"}
    assert {path for path in before | after if before.get(path) != after.get(path)} <= anew


def test_a_stub_takes_what_was_captured_and_a_written_spec_is_left_as_it_is(trio: Trio) -> None:
    path = trio.repository.path / "envspecs/ref.toml"
    stub = path.read_text()
    notes = trio.done("capture", "ref").host["notes"]
    text = path.read_text()
    assert text.replace('extends = "classes/ref-captured"\n\n', "") == stub
    assert any("envspecs/ref.toml has it" in note for note in notes)
    spec = load_fleet(trio.repository.path / "envspecs").specs["ref"]
    assert {str(each) for each in spec.env.requires} == {"demo==1.0", "helper==1.0"}
    assert [each.name for each in spec.overlays] == ["ref-captured"]

    written = f"{stub}[env]\nrequires = ['demo==1.0']\n"
    path.write_text(written)
    notes = trio.done("capture", "ref").host["notes"]
    assert path.read_text() == written
    assert any("was left as it is" in note and "classes/ref-captured" in note for note in notes)


def test_a_target_is_held_against_the_manifest_when_the_reference_is_gone(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = trio.repository.folder / "hand-made"
    trio.done("capture", "ref")
    manifest = trio.repository.path / "envspecs/manifests/ref.json"
    (trio.repository.path / "envspecs/one.toml").write_text(
        'extends = "classes/ref-captured"\n[host]\ntransport = "local"\n'
        f'root = {json.dumps(str(trio.root("one")))}\n[build]\nmin-free = "1MiB"\n[reference]\nhost = "ref"\n'
    )
    trio.done("sync_patches", "ref", "one")
    trio.done("match", "ref", "one")
    shutil.rmtree(venv)

    assert trio.done("match", "one", "--manifest", str(manifest)).document["equal"] is True

    (trio.site("one") / "demo/extra.py").write_text("EXTRA = False\n")
    (trio.site("one") / "kernel/ops.bin").chmod(0o755)
    (trio.current("one") / "bin/ninja").write_bytes(b"\x7fELF")
    ran = trio.run("match", "one", "--manifest", str(manifest))
    found = {
        each["path"].rpartition("site-packages/")[2]: each["cause"]
        for group in ran.document["targets"][0]["distributions"]
        for each in group["differing"]
    }
    assert found == {"demo/extra.py": "edited", "kernel/ops.bin": "mode", "bin/ninja": "extra"}

    real = Environment.manifest

    def fails(environment: Environment, listener: Listener) -> Manifest:
        if environment.place.label == "one":
            raise HostError("one: its manifest is damaged")
        return real(environment, listener)

    with monkeypatch.context() as patch:
        patch.setattr(Environment, "manifest", fails)
        ran = trio.run("match", "one", f"one:{trio.current('one')}", "--manifest", str(manifest))
    assert [each["outcome"] for each in ran.document["targets"]] == ["failed", "different"]

    manifest.write_text(manifest.read_text().replace('"0644"', '"0666"', 1))
    assert "it was changed" in trio.run("match", "one", "--manifest", str(manifest)).message


def git(folder: pathlib.Path, *words: str) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder.parent),
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in WHO.items()},
    }
    subprocess.run(["git", *words], cwd=folder, check=True, env=environment, capture_output=True)


WHO = {"NAME": "Ops", "EMAIL": "ops@example.invalid", "DATE": "2026-12-01T00:00:00Z"}


def checkout(trio: Trio) -> pathlib.Path:
    """Make a checkout whose ``python/`` is demo 1.0 at ``v1.0``, with two commits on a branch."""
    folder = trio.repository.folder / "checkout"
    (folder / "python/demo").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "python/demo/__init__.py").write_text(DEMO)
    (folder / "python/demo/words.txt").write_text("a b c\n")
    (folder / "README").write_text("x\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Release 1.0")
    git(folder, "tag", "v1.0")
    git(folder, "checkout", "-q", "-b", "ours")
    (folder / "python/demo/__init__.py").write_text(DEMO.replace('"1.0"', '"1.0, from git"'))
    git(folder, "commit", "-q", "-a", "-m", "Say where it comes from\n\nIn two paragraphs.\n\nOf text.")
    (folder / "README").write_text("not installed\n")
    git(folder, "commit", "-q", "-a", "-m", "Only the README")
    (folder / "python/demo/added.py").write_text("ADDED = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Add a module")
    return folder


def test_commits_of_a_checkout_become_a_series_of_an_editable_installation(trio: Trio) -> None:
    folder = checkout(trio)
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    origin = {"url": f"file://{folder}/python", "dir_info": {"editable": True}}
    (site / "demo-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    (site / "demo-1.0.dist-info/RECORD").write_text(
        "__editable__.demo.pth,,\ndemo-1.0.dist-info/METADATA,,\n"
    )
    (site / "__editable__.demo.pth").write_text(f"{folder}/python\n")
    subprocess.run(["rm", "-r", site / "demo"], check=True)
    before = listing(folder)

    words = ("--from-git", str(folder), "v1.0..ours", "--strip", "python/")
    trio.done("capture", "ref", *words)

    assert listing(folder) == before
    patches = trio.repository.path / "patches/demo-1.0"
    names = (patches / "series").read_text().splitlines()
    assert names == ["0001-Say-where-it-comes-from.patch", "0002-Add-a-module.patch"]
    first = (patches / names[0]).read_text()
    assert "Author: Ops <ops@example.invalid>" in first
    assert "In two paragraphs." in first
    trio.spec("one", more="")
    (trio.repository.path / "envspecs/one.toml").write_text(
        'extends = "classes/ref-captured"\n[host]\ntransport = "local"\n'
        f'root = {json.dumps(str(trio.root("one")))}\n[build]\nmin-free = "1MiB"\n'
    )
    trio.done("build_env", "one")
    installed, checked_out = trio.site("one") / "demo", folder / "python/demo"
    assert {name: each for name, each in digests(installed).items() if "__pycache__" not in name} == digests(
        checked_out
    )


def test_a_checkout_with_changes_that_nobody_committed_is_refused(trio: Trio) -> None:
    folder = checkout(trio)
    (folder / "python/demo/words.txt").write_text("edited\n")
    ran = trio.run("capture", "ref", "--from-git", str(folder), "v1.0..ours", "--strip", "python/")
    assert "not committed" in ran.message
    assert "words.txt" in ran.message


def test_a_reference_that_drifted_is_captured_first_where_that_is_asked_for(trio: Trio) -> None:
    trio.done("capture", "ref")
    venv = trio.repository.folder / "hand-made"
    write_spec(trio, venv, 'extends = "classes/ref-captured"')
    (trio.repository.path / "envspecs/one.toml").write_text(
        'extends = "classes/ref-captured"\n[host]\ntransport = "local"\n'
        f'root = {json.dumps(str(trio.root("one")))}\n[build]\nmin-free = "1MiB"\n'
    )
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "kernel/ops.bin").write_bytes(b"\0newer" * 100)
    ran = trio.run("sync_patches", "ref", "one")
    assert "kernel/ops.bin" in ran.message
    ran = trio.run("sync_patches", "ref", "one", "--from-drift")
    assert "captured: all of" in ran.message
    assert not trio.root("one").exists()
    trio.done("sync_patches", "ref", "one")
    assert (trio.site("one") / "kernel/ops.bin").read_bytes() == (site / "kernel/ops.bin").read_bytes()


def orphan(trio: Trio) -> pathlib.Path:
    """Lay a folder that nobody owns into the environment; return the environment."""
    venv = trio.repository.folder / "hand-made"
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "orphan").mkdir()
    (site / "orphan/__init__.py").write_text("")
    return venv


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_printed_can_be_pasted_into_ignore(trio: Trio, folder: bool) -> None:  # noqa: FBT001
    venv = orphan(trio)
    lines = str(trio.run("capture", "ref").host["error"]["message"]).splitlines()
    (path,) = [line.removeprefix("nobody's ") for line in lines if line.startswith("nobody's ")]
    pattern = f"{path.rpartition('/')[0]}/**" if folder else path
    text = (trio.repository.path / "envspecs/ref.toml").read_text()
    (trio.repository.path / "envspecs/ref.toml").write_text(f"{text}ignore = [{json.dumps(pattern)}]\n")
    assert not any("fits nothing" in note for note in trio.done("capture", "ref").host["notes"])
    write_spec(trio, venv, more='ignore = ["orphan/**"]\n')
    ran = trio.run("capture", "ref")
    assert any('"orphan/**" fits nothing there' in note for note in ran.host["notes"])


def test_the_hint_takes_loose_files_and_a_capture_keeps_what_took_them(trio: Trio) -> None:
    venv = orphan(trio)
    spec = trio.repository.path / "envspecs/ref.toml"
    spec.write_text(spec.read_text().partition("[capture]")[0])
    hint = str(trio.run("capture", "ref", "--venv", str(venv)).host["error"]["hint"])
    command = hint.partition("nox -s overlay -- ")[2].partition(", and let")[0]
    trio.done("overlay", *shlex.split(command))
    written = trio.repository.path / "envspecs/classes/ref-captured.toml"
    written.write_text(f'{written.read_text()}\n[[overlays]]\nname = "ref-loose"\n')
    before = written.read_text()
    trio.done("capture", "ref")
    assert written.read_text() == before


def test_a_dry_run_fails_where_the_run_would(trio: Trio) -> None:
    orphan(trio)
    before = listing(trio.repository.path)
    assert "site-packages/orphan/__init__.py" in trio.run("capture", "ref", "--dry-run").message
    trio.repository.series("demo-1.0", DEMO_PATCH)
    before = listing(trio.repository.path)
    assert "says something else" in trio.run("capture", "ref", "--dry-run").message
    assert listing(trio.repository.path) == before


def test_a_second_edit_replaces_what_capture_wrote_and_nothing_of_anybody_else(
    trio: Trio, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.done("capture", "ref")
    target(trio, "one")
    (site,) = (trio.repository.folder / "hand-made").glob("lib/python3*/site-packages")
    (site / "demo/extra.py").write_text("EXTRA = 'again'\n")
    ran = trio.run("sync_patches", "ref", "one")
    assert "--from-drift" in ran.message
    assert "captured: all of" in trio.run("sync_patches", "ref", "one", "--from-drift").message
    assert "replaces patches/demo-1.0" in capsys.readouterr().err
    trio.done("sync_patches", "ref", "one")
    assert (trio.site("one") / "demo/extra.py").read_text() == "EXTRA = 'again'\n"

    (site / "demo/extra.py").write_text("EXTRA = 'and again'\n")
    (patch,) = (trio.repository.path / "patches/demo-1.0").glob("*.patch")
    patch.write_text(patch.read_text().replace("Description: ", "Description: Ours. "))
    before = listing(trio.repository.path)
    assert "somebody wrote or edited it" in str(trio.run("capture", "ref").host["error"])
    assert listing(trio.repository.path) == before


@pytest.mark.parametrize("edit", ["by hand", "another environment"])
def test_a_class_is_replaced_only_where_capture_wrote_it_of_the_same_environment(
    trio: Trio, edit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.done("capture", "ref")
    written = trio.repository.path / "envspecs/classes/ref-captured.toml"
    words = ["ref"]
    if edit == "by hand":
        written.write_text(written.read_text().replace('"helper==1.0"', '"helper==1.1"'))
    else:
        other = trio.repository.folder / "other"
        run_uv(trio, "venv", "-q", "--python", sys.executable, str(other))
        run_uv(trio, "pip", "install", "-q", "--python", f"{other}/bin/python", "helper==1.0")
        words += ["--venv", str(other)]
    before = listing(trio.repository.path)
    capsys.readouterr()

    ran = trio.run("capture", *words)

    assert "replaces envspecs/classes/ref-captured.toml: " in capsys.readouterr().err
    assert "--replace" in str(ran.host["error"]["hint"])
    assert listing(trio.repository.path) == before
    trio.done("capture", *words, "--replace")
    assert "helper==1.1" not in written.read_text()
