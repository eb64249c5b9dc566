"""Overlays from end to end: taken from a reference, laid over a build, refused where they cannot work."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from hostenv.spec.fleet import load_fleet
from hostenv.workflows.suggest import inherited_overlays
from kit.elf import needs_gcc, shared
from kit.trio import Trio, digests

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Repository

USE = '[[overlays]]\nname = "ours"\n'


@pytest.fixture
def trio(repository: Repository) -> Trio:
    """Hosts whose index has ``demo`` 1.0 and ``kernel`` 1.0, which ``ref`` has built, ``kernel`` by hand."""
    made = Trio(repository=repository)
    repository.wheel(
        "kernel",
        "1.0",
        {
            "kernel/__init__.py": "WHOSE = 'index'\n\n\ndef main():\n    print(WHOSE)\n",
            "kernel/sm/ops.py": "OPS = 1\n",
            "kernel-1.0.data/scripts/kernel-tool": "#!python\nimport kernel\nprint('tool', kernel.WHOSE)\n",
            "kernel-1.0.data/data/share/kernel.json": "{}\n",
        },
        entry_points="[console_scripts]\nkernel = kernel:main\n",
    )
    made.specs("demo==1.0", "kernel==1.0")
    made.done("build_env", "ref")
    site = made.site("ref")
    (site / "kernel/__init__.py").write_text("WHOSE = 'ours'\n\n\ndef main():\n    print(WHOSE)\n")
    (site / "kernel/extra.bin").write_bytes(bytes(range(256)) * 40)
    (site / "kernel/sm/latest.py").symlink_to("ops.py")
    (site / "kernel/sm/ops.py").chmod(0o755)
    return made


def test_an_overlay_is_taken_reviewed_and_laid_instead_of_the_wheel(trio: Trio) -> None:
    before = digests(trio.current("ref"))
    ran = trio.done("overlay", "ref", "ours", "kernel", "--why", "our own build")
    assert "1 distribution, " in ran.host["headline"]
    folder = trio.repository.path / "overlays"
    assert 'why = "our own build"' in (folder / "ours.toml").read_text()
    listed = (folder / "ours.files").read_text()
    assert "[kernel]" in listed
    assert "link kernel/sm/latest.py => ops.py" in listed
    assert "{prefix}/share/kernel.json" in listed
    assert "{prefix}/bin/kernel-tool" in listed
    assert "{prefix}/bin/kernel\n" not in listed
    assert digests(trio.current("ref")) == before

    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    built = trio.done("build_env", "one").host

    findings = [(each["rule"], each["object"]) for each in built["checks"]["findings"]]
    assert findings == []
    site, reference = trio.site("one"), trio.site("ref")
    for path in ("kernel/__init__.py", "kernel/extra.bin", "kernel/sm/ops.py"):
        assert (site / path).read_bytes() == (reference / path).read_bytes()
        assert (site / path).stat().st_mode == (reference / path).stat().st_mode
    assert str((site / "kernel/sm/latest.py").readlink()) == "ops.py"
    for script, said in (("kernel", "ours"), ("kernel-tool", "tool ours")):
        done = subprocess.run(
            [trio.current("one") / "bin" / script],
            env={},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == said
    inputs = json.loads((trio.current("one") / ".hostenv/inputs.json").read_text())
    assert [name for name, *_ in inputs["wheels"]] == ["demo", "helper"]
    assert len(inputs["overlays"]) == 1
    assert not list((trio.root("one") / "wheelhouse").glob("*/kernel*"))


def test_a_second_build_does_nothing_and_another_overlay_is_another_build(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    first = trio.done("build_env", "one").host
    assert trio.done("build_env", "one").host["headline"] == "nothing to do"
    assert "nothing to do" in trio.done("overlay", "ref", "ours", "kernel").host["headline"]
    (trio.site("ref") / "kernel/extra.bin").write_bytes(b"another")
    trio.done("overlay", "ref", "ours", "kernel")
    assert trio.done("build_env", "one").host["build"] != first["build"]
    assert (trio.site("one") / "kernel/extra.bin").read_bytes() == b"another"


def test_the_record_that_is_laid_is_one_that_uv_can_uninstall_by(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    trio.done("build_env", "one")
    record = (trio.site("one") / "kernel-1.0.dist-info/RECORD").read_text().splitlines()
    paths = [line.split(",")[0] for line in record]
    assert len(paths) == len(set(paths))
    assert {"../../../bin/kernel", "../../../bin/kernel-tool", "kernel-1.0.dist-info/INSTALLER"} <= set(paths)
    for path in paths:
        assert (trio.site("one") / path).exists(), path


def test_an_editable_or_unknown_distribution_is_refused(trio: Trio) -> None:
    ran = trio.run("overlay", "ref", "ours", "kernels")
    assert "no distribution matches 'kernels'" in ran.message
    origin = {"url": "file:///src/kernel", "dir_info": {"editable": True}}
    (trio.site("ref") / "kernel-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    ran = trio.run("overlay", "ref", "ours", "kernel")
    assert "editable" in ran.message
    assert not (trio.repository.path / "overlays").exists()


def test_a_wheel_that_owns_one_path_with_other_bytes_is_refused(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.repository.wheel("renamed", "1.0", {"kernel/__init__.py": "WHOSE = 'renamed'\n"})
    trio.specs("demo==1.0", "renamed==1.0", more=USE, hosts=("one",))
    ran = trio.run("build_env", "one")
    assert "own one path with different bytes" in ran.message
    assert "kernel/__init__.py: overlay ours and renamed 1.0" in ran.message
    assert not (trio.root("one") / "current").exists()

    trio.repository.wheel("below", "1.0", {"kernel/extra.bin/a.py": "A = 1\n"})
    trio.repository.wheel("above", "1.0", {"kernel/sm": "no folder\n"})
    trio.specs("demo==1.0", "below==1.0", "above==1.0", more=USE, hosts=("one",))
    ran = trio.run("build_env", "one")
    assert "kernel/extra.bin: no folder in overlay ours, a folder in below 1.0" in ran.message
    assert "kernel/sm: a folder in overlay ours, a file in above 1.0" in ran.message


def test_two_overlays_of_one_distribution_are_refused(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.done("overlay", "ref", "again", "ker*")
    trio.specs("demo==1.0", more=USE + '[[overlays]]\nname = "again"\n', hosts=("one",))
    assert "both bring kernel" in trio.run("build_env", "one").message


OVER = """\
Description: Change what the overlay brings, and add to it
Origin: written for this test
Forwarded: not-needed

--- a/kernel/__init__.py
+++ b/kernel/__init__.py
@@ -1 +1 @@
-WHOSE = 'ours'
+WHOSE = 'ours, patched'
--- /dev/null
+++ b/kernel/added.py
@@ -0,0 +1 @@
+ADDED = 1
"""


def series_over_the_overlay(trio: Trio, *hosts: str) -> pathlib.Path:
    """Take the overlay, and let hosts have it with a series on it that names no digest yet."""
    trio.done("overlay", "ref", "ours", "kernel")
    trio.repository.series("kernel-1.0", OVER)
    trio.specs("demo==1.0", "kernel==1.0", env='patches = ["kernel-1.0"]', more=USE, hosts=hosts)
    return trio.repository.path / "patches/kernel-1.0"


def test_a_series_on_an_overlaid_distribution_names_the_digest_of_the_overlay(trio: Trio) -> None:
    folder = series_over_the_overlay(trio, "one")
    refused = trio.run("build_env", "one").message
    (digest,) = re.findall(r"must hold the digest ([0-9a-f]{64})", refused)
    (folder / "overlay").write_text("0" * 64 + "\n")
    refused = trio.run("build_env", "one").message
    assert "0" * 64 in refused
    assert digest in refused
    (folder / "overlay").write_text("soon\n")
    assert "patches/kernel-1.0/overlay: holds 'soon'" in trio.run("build_env", "one").message
    assert not trio.root("one").exists()

    (folder / "overlay").write_text(f"{digest}\n")
    first = trio.done("build_env", "one").host
    assert (trio.site("one") / "kernel/__init__.py").read_text().startswith("WHOSE = 'ours, patched'")
    assert (trio.site("one") / "kernel/added.py").read_text() == "ADDED = 1\n"
    assert (trio.site("one") / "kernel/extra.bin").stat().st_size == 10_240
    assert first["checks"]["findings"] == []
    kept = trio.current("one") / ".hostenv/series/kernel-1.0/overlay"
    assert kept.read_text() == f"{digest}\n"
    assert trio.done("build_env", "one").host["headline"] == "nothing to do"

    (trio.site("ref") / "kernel/extra.bin").write_bytes(b"of a later build")
    notes = " ".join(trio.done("overlay", "ref", "ours", "kernel").host["notes"])
    assert "patches/kernel-1.0 is for the overlay as it was" in notes
    assert re.search(
        r"digest [0-9a-f]{64}: a series over it names it in patches/<dist>-<version>/overlay", notes
    )
    assert digest in trio.run("build_env", "one").message

    trio.specs("demo==1.0", "kernel==1.0", env='patches = ["kernel-1.0"]', hosts=("one",))
    assert "none of the spec's brings kernel: remove the file" in trio.run("build_env", "one").message


def test_a_series_on_an_overlay_goes_to_targets_and_leaves_them_when_it_is_withdrawn(trio: Trio) -> None:
    folder = series_over_the_overlay(trio, "ref", "one")
    (digest,) = re.findall(r"must hold the digest ([0-9a-f]{64})", trio.run("build_env", "ref").message)
    (folder / "overlay").write_text(f"{digest}\n")
    trio.done("build_env", "ref")
    subprocess.run(["rm", "-r", trio.repository.folder / "home/.cache/hostenv/store"], check=True)

    synced = trio.done("sync_patches", "ref", "one").host

    assert any("equal to ref in every file" in note for note in synced["notes"])
    assert trio.done("match", "ref", "one").failure is None
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("ref", "one"))
    trio.done("build_env", "ref")
    differ = trio.run("match", "ref", "one").document["targets"][0]["distributions"]
    assert {each["cause"] for group in differ for each in group["differing"]} == {"patched"}
    trio.done("sync_patches", "ref", "one")
    assert (trio.site("one") / "kernel/__init__.py").read_text().startswith("WHOSE = 'ours'\n")
    assert not (trio.site("one") / "kernel/added.py").exists()


def test_what_the_target_has_in_a_wheel_is_not_sent_again(trio: Trio) -> None:
    trio.done("build_env", "one")
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    store = trio.repository.folder / "home/.cache/hostenv/store"
    shared = [path for path in store.glob("*/*") if path.read_bytes() in (b"OPS = 1\n", b"{}\n")]
    assert len(shared) == 2
    for path in shared:
        path.unlink()
    trio.done("build_env", "one")
    assert (trio.site("one") / "kernel/sm/ops.py").read_text() == "OPS = 1\n"


def test_what_the_target_has_in_its_store_or_in_a_build_is_not_sent_again(
    trio: Trio, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    capsys.readouterr()
    trio.done("build_env", "one")
    first = sent(capsys)
    store = trio.repository.folder / "home/.cache/hostenv/store"
    store.rename(store.with_name("elsewhere"))
    another_build(trio, "1.0")
    trio.done("build_env", "one")
    assert "of overlays" not in capsys.readouterr().err, "the target's store has it all"
    store.with_name("elsewhere").rename(store)
    shutil.rmtree(trio.root("one") / "store")
    another_build(trio, "2.0")
    trio.done("build_env", "one")
    again = sent(capsys)
    assert first["send"] > 5
    assert again["reuse"] > 5, "builds have what was laid as it came"
    assert again["send"] + again["reuse"] == first["send"] + first.get("reuse", 0)


def another_build(trio: Trio, version: str) -> None:
    """Let the host want one more distribution."""
    trio.repository.wheel("extra", version, {"extra.py": f"X = {version}\n"})
    trio.specs("demo==1.0", "kernel==1.0", f"extra=={version}", more=USE, hosts=("one",))


def sent(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Return how many contents of overlays a plan sends, and how many it takes from what is there."""
    said = re.findall(r"(send|reuse) +(\d+) files?, [0-9.]+ \w+ of overlays", capsys.readouterr().err)
    return {word: int(count) for word, count in said}


def test_a_damaged_store_is_noticed_and_the_next_run_mends_it(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    trio.done("build_env", "one")
    big = bytes(range(256)) * 40
    for path in (trio.root("one") / "store").glob("*/*"):
        if path.read_bytes() == big:
            path.write_bytes(big[:-1] + b"!")
    trio.repository.wheel("extra", "1.0", {"extra.py": "X = 1\n"})
    trio.specs("demo==1.0", "kernel==1.0", "extra==1.0", more=USE, hosts=("one",))
    ran = trio.run("build_env", "one")
    assert "expected" in ran.message
    assert "run again" in ran.message
    trio.done("build_env", "one")
    assert (trio.site("one") / "kernel/extra.bin").read_bytes() == big


def test_contents_that_nobody_has_are_named(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    subprocess.run(["rm", "-r", trio.repository.folder / "home/.cache/hostenv/store"], check=True)
    ran = trio.run("build_env", "one")
    assert "kernel/extra.bin" in ran.message
    assert "nox -s sync_patches -- ref HOST" in ran.message


BINARY = """
[[binaries]]
path = "kernel/ops.so"
machine = "{machine}"
glibc = "{glibc}"
gpu = [
    "module sm_80 sm_86 x12",
]
"""


@pytest.mark.parametrize(
    ("machine", "glibc", "arch", "said"),
    [
        ("other", "2.17", [], f"kernel/ops.so is for other, the host is {platform.machine()} (K56)"),
        (platform.machine(), "9.99", [], "kernel/ops.so needs glibc 9.99"),
        (platform.machine(), "2.17", ["12.0"], "kernel/ops.so"),
        (platform.machine(), "2.17", ["9.0", "8.6"], "kernel/ops.so"),
    ],
)
def test_what_cannot_work_on_the_target_is_refused_before_a_byte_is_copied(
    trio: Trio, machine: str, glibc: str, arch: list[str], said: str
) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    description = trio.repository.path / "overlays/ours.toml"
    description.write_text(description.read_text() + BINARY.format(machine=machine, glibc=glibc))
    more = f"{USE}require-arch = {json.dumps(arch)}\n"
    trio.specs("demo==1.0", "kernel==1.0", more=more, hosts=("one",))
    ran = trio.run("build_env", "one")
    assert "nothing was copied" in ran.message
    assert said in ran.message
    assert not trio.root("one").exists()


def test_gpu_code_that_fits_is_let_through(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    description = trio.repository.path / "overlays/ours.toml"
    description.write_text(description.read_text() + BINARY.format(machine=platform.machine(), glibc="2.17"))
    more = f'{USE}require-arch = ["8.6", "8.9"]\n'
    trio.specs("demo==1.0", "kernel==1.0", more=more, hosts=("one",))
    trio.done("build_env", "one")


def test_a_real_shared_object_is_described_as_readelf_sees_it(trio: Trio) -> None:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    source = trio.repository.folder / "ops.c"
    source.write_text(
        '#include <math.h>\n#include <stdlib.h>\ndouble f(double x){ return sin(x) + atof("1"); }\n'
    )
    library = trio.site("ref") / "kernel/ops.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    trio.done("overlay", "ref", "ours", "kernel")
    said = tomllib.loads((trio.repository.path / "overlays/ours.toml").read_text())["binaries"]
    (binary,) = [each for each in said if each["path"] == "kernel/ops.so"]
    shown = subprocess.run(["readelf", "-VdW", library], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", shown)
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", shown)]
    assert binary["needed"] == needed
    assert tuple(map(int, binary["glibc"].split("."))) == max(versions)
    assert binary["machine"] == platform.machine()


@needs_gcc
def test_a_library_that_the_target_would_lack_is_refused_before_a_byte_is_copied(trio: Trio) -> None:
    folder = trio.repository.folder / "native"
    source, named = "int nobody(void) { return 7; }", "-Wl,-soname,libnobody.so.7"
    library = shared(folder / "vendor", "libnobody.so.7", source, named)
    calls = "int nobody(void); int kernel(void) { return nobody(); }"
    flags = (str(library), "-Wl,-rpath,$ORIGIN/../vendor")
    (trio.site("ref") / "kernel/ops.so").write_bytes(shared(folder, "ops.so", calls, *flags).read_bytes())
    trio.done("overlay", "ref", "ours", "kernel")
    said = tomllib.loads((trio.repository.path / "overlays/ours.toml").read_text())["binaries"]
    assert "libnobody.so.7" in next(each["needed"] for each in said if each["path"] == "kernel/ops.so")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))

    ran = trio.run("build_env", "one")

    assert "nothing was copied" in ran.message
    assert "kernel/ops.so needs libnobody.so.7, which no wheel or overlay" in ran.message
    assert not (trio.root("one") / "store").exists()
    assert not (trio.root("one") / "builds").exists()

    trio.repository.wheel("vendor", "1.0", {"vendor/libnobody.so.7": library.read_bytes()})
    trio.specs("demo==1.0", "kernel==1.0", "vendor==1.0", more=USE, hosts=("one",))
    trio.done("build_env", "one")
    program = f"import ctypes; print(ctypes.CDLL('{trio.site('one')}/kernel/ops.so').kernel())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "7\n", "the real loader finds it, too"


def test_prune_announces_and_removes_contents_that_no_build_names(
    trio: Trio, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE + "[reference]\nhost = 'ref'\n", hosts=("one",))
    trio.done("build_env", "one")
    store = trio.root("one") / "store"
    (store / "ab").mkdir(exist_ok=True)
    stray = store / "ab" / ("ab" * 32)
    stray.write_bytes(b"of an overlay that was withdrawn")
    there = digests(store)
    capsys.readouterr()
    trio.done("prune", "one", "--despite-unknown", "--dry-run")
    said = f"remove   1 content of overlays: {stray.stat().st_size} bytes, no build's, in {store}"
    assert said in capsys.readouterr().err
    assert stray.exists()
    trio.done("prune", "one", "--despite-unknown")
    assert not stray.exists()
    assert trio.done("prune", "one", "--despite-unknown").host["headline"] == "nothing to remove"
    assert digests(store) == {path: each for path, each in there.items() if path != f"ab/{'ab' * 32}"}


def test_loose_files_are_taken_by_path_and_no_distribution_is_cut_in_pieces(trio: Trio) -> None:
    (trio.site("ref") / "orphan/deep").mkdir(parents=True)
    (trio.site("ref") / "orphan/__init__.py").write_text("")
    (trio.site("ref") / "orphan/deep/data.bin").write_bytes(b"1\0")
    (trio.site("ref") / "single.py").write_text("S = 1\n")
    assert "is a file of kernel==1.0" in trio.run("overlay", "ref", "ours", "./kernel/sm/ops.py").message
    assert "no file there" in trio.run("overlay", "ref", "ours", "./nothing.py").message
    trio.done("overlay", "ref", "ours", "./orphan/", "./single.py")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    built = trio.done("build_env", "one").host
    findings = [(each["rule"], each["object"]) for each in built["checks"]["findings"]]
    assert findings == [("folder-orphaned", "orphan")]
    for path in ("orphan/__init__.py", "orphan/deep/data.bin", "single.py"):
        assert (trio.site("one") / path).read_bytes() == (trio.site("ref") / path).read_bytes()
    assert (trio.site("one") / "kernel/__init__.py").read_text().startswith("WHOSE = 'index'")


def test_a_script_of_any_size_is_laid_whole_and_only_its_head_names_another_python(trio: Trio) -> None:
    script = trio.current("ref") / "bin/kernel-large"
    rest = b"# x\n" * 600_000 + b"print('end')\n"
    script.write_bytes(f"#!{trio.current('ref')}/bin/python\n".encode() + rest)
    script.chmod(0o755)
    record = trio.site("ref") / "kernel-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "../../../bin/kernel-large,,\n")
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE, hosts=("one",))
    assert trio.done("build_env", "one").host["checks"]["findings"] == []

    laid = trio.current("one") / "bin/kernel-large"
    head, _, laid_rest = laid.read_bytes().partition(b"' '''\n")
    assert laid_rest == rest
    assert b"/bin/python" not in head
    assert laid.stat().st_mode == script.stat().st_mode
    shutil.rmtree(trio.root("ref"))
    done = subprocess.run([laid], env={"PATH": "/usr/bin:/bin"}, cwd="/", capture_output=True, check=True)
    assert done.stdout == b"end\n"


def test_a_distribution_that_does_not_say_what_is_its_own_is_not_taken(trio: Trio) -> None:
    info = trio.site("ref") / "kernel-1.0.dist-info"
    record, sound = info / "RECORD", (info / "RECORD").read_text()
    rows = sound.splitlines(keepends=True)
    long = '"' + "x" * 140_000 + '",,\n'
    undescribed = "".join(row for row in rows if ".dist-info/" not in row)
    for text, said in (
        (None, "kernel-1.0.dist-info: has no RECORD"),
        (sound + long, f"kernel-1.0.dist-info: RECORD line {len(rows) + 1} is not CSV"),
        (undescribed, "RECORD does not name"),
        (sound + "../../../../../../../../../../../x,,\n", "leaves the environment"),
        (sound + "../../../pyvenv.cfg,,\n", "'{prefix}/pyvenv.cfg' lies where only the environment itself"),
    ):
        record.unlink()
        if text is not None:
            record.write_text(text)
        ran = trio.run("overlay", "ref", "ours", "kernel")
        assert said in ran.message
        assert not (trio.repository.path / "overlays").exists()
        record.write_text(sound)
    assert "at most 100" in trio.run("overlay", "ref", "o" * 300, "kernel").message
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 2.0"))
    assert "kernel is 2.0 here, kernel-1.0" in trio.run("overlay", "ref", "ours", "kernel").message


def test_a_broken_overlay_is_taken_anew_and_keeps_what_it_says_of_why(trio: Trio) -> None:
    trio.done("overlay", "ref", "ours", "kernel", "--why", "our own build")
    folder = trio.repository.path / "overlays"
    sound = {path: path.read_text() for path in folder.iterdir()}
    listed, description = folder / "ours.files", folder / "ours.toml"
    for path, text in (
        (listed, sound[listed] + "nonsense\n"),
        (listed, None),
        (description, "[["),
        (description, sound[description].replace('"1.0"', '"2.0"')),
    ):
        path.unlink()
        if text is not None:
            path.write_text(text)
        assert trio.done("overlay", "ref", "ours", "kernel").host["changed"]
        why = "as it works on ref" if text == "[[" else "our own build"
        assert description.read_text() == sound[description].replace("our own build", why)
        assert listed.read_text() == sound[listed]
        description.write_text(sound[description])


def test_the_plan_says_what_a_list_leaves_out_of_its_class_and_a_proposal_names_all_of_them(
    trio: Trio, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.done("overlay", "ref", "ours", "kernel")
    folder = trio.repository.path / "envspecs"
    (folder / "classes").mkdir(exist_ok=True)
    (folder / "classes/shared.toml").write_text(f'{USE}require-arch = ["9.0", "12.0"]\n')
    path = folder / "one.toml"
    path.write_text(f'extends = "classes/shared"\n{path.read_text()}')
    whole = load_fleet(folder).specs["one"]
    lines = list(inherited_overlays(whole))
    assert lines[0] == "[[overlays]]  # of envspecs/classes/shared.toml, whose list this one replaces"
    assert list(inherited_overlays(load_fleet(folder).specs["two"])) == []
    alone = path.read_text()

    path.write_text("\n".join([alone, *lines, ""]))

    pasted = load_fleet(folder).specs["one"]
    assert pasted.overlays == whole.overlays
    assert list(inherited_overlays(pasted)) == [], "the host has a list of its own now"
    capsys.readouterr()
    path.write_text(f"overlays = []\n{alone}")
    trio.done("build_env", "one", "--dry-run")
    plan = " ".join(capsys.readouterr().err.split())
    assert "class's overlays left out: ours; the list in one.toml replaces its own" in plan


def test_a_damaged_content_of_the_controller_is_removed_and_brought_again(trio: Trio) -> None:
    trio.specs("demo==1.0", "kernel==1.0", hosts=("one", "two"))
    trio.done("build_env", "one", "two")
    trio.done("overlay", "ref", "ours", "kernel")
    trio.specs("demo==1.0", "kernel==1.0", more=USE)
    trio.done("build_env", "ref")
    big = bytes(range(256)) * 40
    store = trio.repository.folder / "home/.cache/hostenv/store"
    (kept,) = (path for path in store.glob("*/*") if path.read_bytes() == big)
    kept.write_bytes(big[:-1] + b"!")
    assert f"kernel/extra.bin (sha256 {kept.name})" in trio.run("build_env", "one").message
    assert not kept.exists()

    kept.write_bytes(big[:-1] + b"!")
    trio.done("sync_patches", "ref", "one", "two")
    for host in ("one", "two"):
        assert (trio.site(host) / "kernel/extra.bin").read_bytes() == big
    assert kept.read_bytes() == big
