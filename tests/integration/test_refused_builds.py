"""What is wrong, and what an operator is told: nothing current changes, nothing half-made stays."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kit.registry import Fault
from kit.repository import DEMO_PATCH, listing

if TYPE_CHECKING:
    from kit.repository import Repository

DEMO_WHEEL = "demo-1.0-py3-none-any.whl"


@pytest.fixture
def built(repository: Repository) -> Repository:
    """Return a repository whose host has ``helper`` current; the spec then wants ``demo``."""
    repository.spec("helper")
    repository.build()
    repository.spec("demo==1.0")
    return repository


def stays(repository: Repository) -> None:
    """Check that the old environment is whole and that no unfinished build is left."""
    assert repository.python("import helper; print(helper.ONE)") == "1"
    assert (repository.root / "current").readlink() == pathlib.Path("generations/1")
    assert not list((repository.root / "builds").glob(".*"))


def sha256sum(path: pathlib.Path) -> str:
    done = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def locked(repository: Repository) -> None:
    """Lock without building."""
    assert repository.run("lock").failure is None


def wheel_of(repository: Repository, filename: str) -> pathlib.Path:
    (found,) = (repository.root / "wheelhouse").glob(f"*/{filename}")
    return found


def test_other_bytes_than_the_locks_are_refused_with_both_hashes(built: Repository) -> None:
    locked(built)
    true = sha256sum(built.registry.folder / DEMO_WHEEL)
    other = b"x" * (built.registry.folder / DEMO_WHEEL).stat().st_size
    built.registry.lasting[DEMO_WHEEL] = Fault(body=other)

    ran = built.run("build_env")

    assert ran.failure
    false = subprocess.run(["sha256sum"], input=other, capture_output=True, check=True).stdout.split()[0]
    for told in (DEMO_WHEEL, true, false.decode()):
        assert told in ran.message
    assert len(list((built.root / "builds").iterdir())) == 1
    stays(built)


def test_a_wheel_that_was_tampered_with_after_the_fetch_is_fetched_again(built: Repository) -> None:
    assert built.run("fetch").failure is None
    wheel = wheel_of(built, DEMO_WHEEL)
    content = bytearray(wheel.read_bytes())
    content[100] ^= 0xFF
    wheel.write_bytes(content)

    built.build()

    assert sha256sum(wheel_of(built, DEMO_WHEEL)) == sha256sum(built.registry.folder / DEMO_WHEEL)
    assert built.python("import demo; print(demo.VERSION)") == "1.0"


def test_a_tampered_wheel_without_an_index_is_an_error(
    built: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built.run("fetch").failure is None
    wheel = wheel_of(built, DEMO_WHEEL)
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert built.run("build_env").failure
    stays(built)


def test_a_truncated_wheel_is_refused_before_anything_is_made(built: Repository) -> None:
    cut = built.registry.folder / DEMO_WHEEL
    cut.write_bytes(cut.read_bytes()[:-60])
    ran = built.run("build_env")
    assert ran.failure
    assert DEMO_WHEEL in ran.message
    stays(built)


def test_a_wheel_that_does_not_match_its_own_record_is_built_and_not_activated(built: Repository) -> None:
    built.wheel("demo", "3.0", {"demo.py": "X = 1\n", "ok.py": ""}, record={"demo.py": "sha256=" + "A" * 43})
    built.spec("demo==3.0")
    for _ in range(2):
        ran = built.run("build_env")
        assert ran.document["outcome"] == "checks"
        (finding,) = ran.host["checks"]["findings"]
        assert (finding["rule"], finding["severity"], finding["object"]) == (
            "record-integrity",
            "error",
            "demo",
        )
        assert any("demo.py" in line for line in finding["evidence"])
        stays(built)
    assert pathlib.Path(ran.host["path"]).is_dir()
    assert built.run("switch").document["outcome"] == "refused"
    assert built.run("switch", "--build", ran.host["build"]).document["outcome"] == "refused"
    stays(built)


def test_a_waived_finding_passes_and_stands_in_the_receipt(built: Repository) -> None:
    built.wheel("demo", "3.0", {"demo.py": "X = 1\n"}, record={"demo.py": "sha256=" + "A" * 43})
    waiver = '{ rule = "record-integrity", object = "demo", reason = "known", until = 2099-12-31 }'
    built.spec("demo==3.0", more=f"[checks]\nallow = [{waiver}]")
    built.build()
    receipt = json.loads((built.root / "current/receipt.json").read_text())
    assert receipt["waived"] == [{"rule": "record-integrity", "object": "demo", "until": "2099-12-31"}]


def test_a_waiver_that_runs_out_is_an_error_though_nothing_else_changed(built: Repository) -> None:
    built.wheel("demo", "3.0", {"demo.py": "X = 1\n"}, record={"demo.py": "sha256=" + "A" * 43})
    waiver = (
        '[checks]\nallow = [{{ rule = "record-integrity", object = "demo", reason = "known", until = {} }}]'
    )
    built.spec("demo==3.0", more=waiver.format("2099-12-31"))
    built.build()
    assert built.build().host["headline"] == "nothing to do"
    built.spec("demo==3.0", more=waiver.format("2020-01-01"))
    ran = built.run("build_env")
    assert (ran.document["outcome"], ran.host["checks"]["passed"]) == ("checks", False)


def test_a_wheel_that_cannot_be_verified_is_not_activated(built: Repository) -> None:
    built.wheel("demo", "3.0", {"demo.py": "X = 1\n"}, record={"demo.py": "sha512=" + "A" * 86})
    built.spec("demo==3.0")
    assert built.run("build_env").document["outcome"] == "checks"
    stays(built)


def test_a_wheel_that_lacks_files_of_its_record_is_told(built: Repository) -> None:
    """uv writes RECORD anew from what it installed: only the wheel itself shows it."""
    record = f"demo.py,,\ngone.py,sha256={'A' * 43},5\ndemo-4.0.dist-info/RECORD,,\n"
    built.wheel("demo", "4.0", {"demo.py": "X = 1\n", "demo-4.0.dist-info/RECORD": record})
    built.spec("demo==4.0")
    (finding,) = [
        each for each in built.build().host["checks"]["findings"] if each["rule"] == "wheel-incomplete"
    ]
    assert (finding["object"], finding["severity"]) == ("demo", "warning")
    assert any("gone.py" in line for line in finding["evidence"])


@pytest.mark.parametrize("member", ["../out.py", "/abs/out.py", "demo/../../out.py"])
def test_a_member_that_leads_out_of_the_environment_is_refused(built: Repository, member: str) -> None:
    built.wheel("demo", "4.0", {"demo.py": "X = 1\n", member: "X = 2\n"})
    built.spec("demo==4.0")
    assert "leads out of the environment" in built.run("build_env").message
    stays(built)


def test_an_unmet_dependency_is_not_activated(built: Repository) -> None:
    locked(built)
    (lock,) = (built.path / "envspecs/locks").iterdir()
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("helper===")]
    lock.write_text("\n".join(lines).replace("# packages: 2", "# packages: 1") + "\n")

    ran = built.run("build_env")

    assert ran.document["outcome"] == "checks"
    (finding,) = ran.host["checks"]["findings"]
    assert (finding["severity"], finding["object"]) == ("error", "helper")
    assert any("demo" in line for line in finding["evidence"])
    stays(built)


def test_a_requirement_that_cannot_be_met_is_explained(built: Repository) -> None:
    built.spec("demo==9.9")
    ran = built.run("build_env")
    assert "demo==9.9" in ran.message
    assert len(ran.host["error"]["message"].splitlines()) == 1
    stays(built)


def test_without_a_fitting_python_it_says_what_is_there(built: Repository) -> None:
    built.spec("demo==1.0", more='python = "3.19"')
    before = listing(built.root)
    ran = built.run("build_env")
    assert "CPython 3.19" in ran.message
    assert ".".join(map(str, sys.version_info[:3])) in ran.message
    assert listing(built.root) == before


def test_a_range_that_no_python_fits_says_what_is_there(built: Repository) -> None:
    built.spec("demo==1.0", more='python = ">=3.19"')
    ran = built.run("build_env")
    assert ">=3.19" in ran.message
    assert ".".join(map(str, sys.version_info[:3])) in ran.message


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_too_little_space_is_seen_before_any_download(built: Repository, dry: tuple[str, ...]) -> None:
    locked(built)
    built.registry.requests.clear()
    built.spec("demo==1.0", more='[build]\nmin-free = "900TiB"')
    ran = built.run("build_env", *dry)
    assert ran.document["outcome"] == "refused"
    assert "GB needed" in ran.message
    assert "GB free" in ran.message
    assert built.registry.requests == []
    stays(built)


def test_a_patch_that_does_not_fit_names_file_hunk_and_lines(built: Repository) -> None:
    built.series("demo-1.0", DEMO_PATCH.replace('-VERSION = "1.0"', '-VERSION = "0.9"'))
    built.spec("demo==1.0", env='patches = ["demo-1.0"]')
    ran = built.run("build_env")
    for told in ("demo/__init__.py", 'VERSION = "0.9"', 'VERSION = "1.0"', "hunk"):
        assert told in ran.message
    assert len(list((built.root / "builds").iterdir())) == 1
    stays(built)


def test_a_dry_run_tells_of_a_patch_that_does_not_fit_where_the_wheel_is_here(built: Repository) -> None:
    built.build()
    built.series("demo-1.0", DEMO_PATCH.replace('-VERSION = "1.0"', '-VERSION = "0.9"'))
    built.spec("demo==1.0", env='patches = ["demo-1.0"]')
    assert "hunk 1" in built.run("build_env", "--dry-run").message


def test_a_series_for_another_release_is_refused_before_anything(built: Repository) -> None:
    built.wheel("demo", "1.1", {"demo/__init__.py": 'VERSION = "1.1"\n'})
    built.series("demo-1.0", DEMO_PATCH)
    built.spec("demo", env='patches = ["demo-1.0"]')
    before = listing(built.root)
    ran = built.run("build_env")
    assert "patches/demo-1.0 is for 1.0" in ran.message
    assert "demo 1.1" in ran.message
    assert listing(built.root) == before


def test_a_typo_in_a_spec_is_named_with_a_suggestion(built: Repository) -> None:
    built.spec("demo==1.0", host='mdoe = "manage"', env='requres = ["x"]')
    ran = built.run("build_env")
    assert ran.document["outcome"] == "input"
    for told in ('envspecs/local.toml: host.mdoe: unknown key, did you mean "mode"?', "env.requres"):
        assert told in ran.message
    stays(built)


def test_an_unknown_host_or_option_is_named(built: Repository) -> None:
    assert 'did you mean "local"' in built.run("build_env", "lokal").message
    assert "--stag" in built.run("build_env", "--stag").message


def test_observe_refuses_every_writing_session(built: Repository) -> None:
    built.spec("demo==1.0", host='mode = "observe"')
    before = listing(built.root)
    for session in ("build_env", "switch", "rollback", "fetch"):
        assert built.run(session).document["outcome"] == "refused", session
    assert listing(built.root) == before


def test_another_machine_is_refused(built: Repository) -> None:
    built.spec("demo==1.0", more=f'[identity]\nmachine-id = "{"ab" * 16}"')
    before = listing(built.root)
    ran = built.run("build_env")
    assert ran.document["outcome"] == "refused"
    assert "ab" * 16 in ran.message
    assert listing(built.root) == before


def test_the_second_of_two_builds_says_who_holds_the_lock(built: Repository) -> None:
    program = (
        "import fcntl, json, os, sys, time\n"
        f"f = open({str(built.root / 'lock')!r}, 'w')\n"
        "fcntl.flock(f, fcntl.LOCK_EX)\n"
        "json.dump({'by': 'kim@desk', 'session': 'build_env', 'pid': os.getpid(), 'since': time.time()}, f)\n"
        "f.flush(); print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        ran = built.run("build_env")
        assert ran.document["outcome"] == "refused"
        assert f"build_env by kim@desk, pid {holder.pid}" in ran.message
        holder.kill()
    stays(built)
    built.build()


def test_two_builds_at_once_end_with_one_whole_build(built: Repository) -> None:
    both = [built.nox("build_env"), built.nox("build_env")]
    said = [process.communicate(timeout=120)[0] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes, said
    for code, text in zip(codes, said, strict=True):
        # told who is there, or, having waited for the lock, that the other one has switched meanwhile
        assert code == 0 or "is in use: build_env by" in text or "plans from what is there now" in text
    assert built.build().host["headline"] == "nothing to do"
    assert built.python("import demo; print(demo.VERSION)") == "1.0"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: see the mounted case")
def test_a_root_that_may_not_be_written_is_refused(repository: Repository) -> None:
    repository.root.mkdir(mode=0o555)
    ran = repository.run("build_env")
    assert ran.document["outcome"] == "refused"
    assert str(repository.root) in ran.message


def may_mount() -> bool:
    """Tell whether this process may mount in a namespace of its own."""
    try:
        done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


needs_mounts = pytest.mark.skipif(
    not may_mount(), reason="needs to be allowed to mount: root, and unshare(1)"
)


def on_tmpfs(repository: Repository, options: str, script: str) -> str:
    """Run ``script`` where ``$1`` is a new tmpfs that nobody else sees and ``"$@"`` is ``nox -s build_env``.

    The host's root is a folder of that tmpfs. Returns what was printed, errors included.
    """
    folder = repository.folder / "mounted"
    folder.mkdir()
    for spec in (repository.path / "envspecs").glob("local.toml*"):
        spec.write_text(spec.read_text().replace(str(repository.root), str(folder / "root")))
    whole = f'mount -t tmpfs -o {options} none "$1" || exit; root=$1/root; shift; {script}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", whole, "sh", folder, *repository.command("build_env")],
        cwd=repository.path,
        env=repository.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@needs_mounts
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("noexec,size=64m", "is mounted noexec"),
        ("ro,size=64m", "cannot be written"),
        ("size=3m", "MB needed .*, 3.1 MB free"),
    ],
)
def test_ground_that_cannot_hold_a_build_is_refused_before_any_download(
    built: Repository, options: str, told: str
) -> None:
    if options == "size=3m":
        built.spec("demo==1.0", more='[build]\nmin-free = "8MiB"')
    locked(built)
    built.registry.requests.clear()

    said = on_tmpfs(built, options, '"$@"; echo "exit $?"; ls -A "${root%/*}"')

    assert re.search(told, said)
    assert said.endswith("exit 1\n"), "and nothing was written"
    assert built.registry.requests == []


@needs_mounts
def test_a_disk_that_fills_up_in_the_middle_leaves_the_old_environment(built: Repository) -> None:
    """The wheel fits, what it unpacks to does not: many small files, a page each."""
    files = {f"demo/f{number}.py": "#" for number in range(4000)}
    built.wheel("demo", "4.0", {**files, "demo/__init__.py": "X = 4\n"})
    built.spec("demo==4.0")
    spec = built.path / "envspecs/local.toml"
    spec.rename(spec.with_name("local.toml.later"))
    built.spec("helper")
    script = """
        "$@" || exit
        mv envspecs/local.toml.later envspecs/local.toml
        "$@"; echo "exit $?"
        readlink "$root/current"
        "$root/current/env/bin/python" -c "import helper; print(helper.ONE)"
        mount -o remount,size=200m "${root%/*}"
        "$@" >/dev/null 2>&1
        ls -A "$root/builds" | wc -w
        "$root/current/env/bin/python" -c "import demo; print(demo.X)"
    """

    said = on_tmpfs(built, "size=24m", script)

    assert "No space left" in said
    assert said.endswith("exit 1\ngenerations/1\n1\n2\n4\n"), said


def test_a_series_takes_away_no_file_of_another_distribution(repository: Repository) -> None:
    """By rule the bytes at a contested path are those of the distribution that sorts last."""
    repository.wheel("aaa", "1.0", {"aaa.py": "", "shared/x.py": "of aaa\n"})
    repository.wheel("zzz", "1.0", {"shared/x.py": "of zzz\n"})
    header = "Description: Take x away\nOrigin: this test\nForwarded: not-needed\n\n"
    repository.series("aaa-1.0", f"{header}--- a/shared/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-of aaa\n")
    repository.spec("aaa==1.0", "zzz==1.0", env='patches = ["aaa-1.0"]')
    ran = repository.run("build_env")
    assert "shared/x.py: the series expects" in ran.message
    assert not (repository.root / "current").exists()
