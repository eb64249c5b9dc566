"""Whose files they are and whether they are whole: each fault made of files, and a sound twin."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import mapped
from hostenv.checks import integrity_rules
from hostenv.checks.finding import Severity
from hostenv.checks.metadata import Wanted
from hostenv.facts.site import LiveFacts, StaleProcess
from kit import hostfacts
from kit.environment import SITE, distribution, make_environment, put
from kit.sites import found, looked

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts

NCCL = "nvidia/nccl/lib/libnccl.so.2"


def said(facts: Facts, rule: str) -> list[Finding]:
    return found(facts, integrity_rules.RULES, rule)


def two_owners(tmp_path: pathlib.Path, on_disk: str) -> pathlib.Path:
    """torch requires nvidia-nccl-cu13; -cu12 is there, too; the bytes of one of them lie there."""
    files: dict[str, str | bytes] = {
        **distribution("torch", "2.11.0", {"torch/a.py": ""}, requires=["nvidia-nccl-cu13==2.28.9"]),
        **distribution("nvidia-nccl-cu12", "2.27.5", {NCCL: "NCCL for CUDA 12"}),
        **distribution("nvidia-nccl-cu13", "2.28.9", {NCCL: "NCCL for CUDA 13"}),
    }
    return make_environment(tmp_path / "venv", {**files, NCCL: on_disk})


def test_the_loser_of_two_owners_of_libnccl_is_named(tmp_path: pathlib.Path) -> None:
    """vllm-project/vllm#42354, catalogue K09: the required NCCL was overwritten by the other CUDA's."""
    (finding,) = said(looked(two_owners(tmp_path, "NCCL for CUDA 12")), "library-of-wrong-owner")
    assert (finding.severity, finding.kind, finding.object) == (Severity.ERROR, "K09", NCCL)
    assert "has the bytes of nvidia-nccl-cu12 2.27.5" in finding.message
    assert "torch 2.11.0 requires nvidia-nccl-cu13==2.28.9" in finding.evidence
    assert "uninstall nvidia-nccl-cu12" in (finding.fix or "")
    assert "build_env" not in (finding.fix or ""), "hostenv did not make it"
    own = looked(two_owners(tmp_path / "own", "NCCL for CUDA 12"), Wanted())
    (finding,) = said(own, "library-of-wrong-owner")
    assert (finding.fix or "").startswith("nox -s build_env -- HOST --remake makes the build anew")


def test_the_required_owner_on_disk_is_no_fault(tmp_path: pathlib.Path) -> None:
    assert said(looked(two_owners(tmp_path, "NCCL for CUDA 13")), "library-of-wrong-owner") == []


def kernels(tmp_path: pathlib.Path, on_disk: Mapping[str, str], requires: str = "") -> pathlib.Path:
    files: dict[str, str | bytes] = {
        **distribution("sgl-kernel", "0.3.21", {f"sgl_kernel/{name}": "old" for name in on_disk}),
        **distribution("sglang-kernel", "0.4.10", {f"sgl_kernel/{name}": "new" for name in on_disk}),
    }
    files |= {f"sgl_kernel/{name}": content for name, content in on_disk.items()}
    if requires:
        files |= distribution("sglang", "0.5.23", {"sglang/a.py": ""}, requires=[requires])
    return make_environment(tmp_path / "venv", files)


def test_a_renamed_package_that_won_over_the_required_one_is_an_error(tmp_path: pathlib.Path) -> None:
    """sgl-project/sglang#26598: sgl-kernel stayed beside sglang-kernel."""
    venv = kernels(tmp_path, {"a.so": "old", "b.so": "new"}, "sglang-kernel==0.4.10")
    (finding,) = said(looked(venv), "package-of-wrong-owner")
    assert (finding.kind, finding.object) == ("K10", "sgl_kernel/a.so")
    assert "sgl-kernel 0.3.21" in finding.message


def test_a_mixture_of_two_that_nobody_requires_is_an_error(tmp_path: pathlib.Path) -> None:
    (finding,) = said(looked(kernels(tmp_path, {"a.so": "old", "b.so": "new"})), "package-of-wrong-owner")
    assert (finding.object, finding.severity) == ("sgl_kernel", Severity.ERROR)


def test_whole_files_of_one_owner_are_no_mixture(tmp_path: pathlib.Path) -> None:
    assert said(looked(kernels(tmp_path, {"a.so": "new", "b.so": "new"})), "package-of-wrong-owner") == []


def patched(tmp_path: pathlib.Path, *, in_place: bool) -> pathlib.Path:
    """A file of a distribution is a hard link to uv's cache, and is then patched."""
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", {"pkg/a.py": "a = 1\n"}))
    file = venv / SITE / "pkg/a.py"
    os.link(file, tmp_path / "cached.py")
    if not in_place:
        file.unlink()
    file.write_text("a = 22\n")
    return venv


def test_an_edit_in_place_of_a_hard_link_poisons_the_cache(tmp_path: pathlib.Path) -> None:
    """astral-sh/uv#10579."""
    venv = patched(tmp_path, in_place=True)
    assert (tmp_path / "cached.py").read_text() == "a = 22\n"
    (finding,) = said(looked(venv), "hard-link-edited")
    assert (finding.severity, finding.object) == (Severity.ERROR, "pkg/a.py")
    (note,) = said(looked(venv), "hard-links")
    assert note.severity is Severity.NOTE


def test_a_patch_by_rename_poisons_nothing(tmp_path: pathlib.Path) -> None:
    venv = patched(tmp_path, in_place=False)
    assert (tmp_path / "cached.py").read_text() == "a = 1\n"
    facts = looked(venv)
    assert said(facts, "hard-link-edited") == []
    assert said(facts, "hard-links") == []


def test_a_pointer_of_git_lfs_in_place_of_a_library_is_an_error(tmp_path: pathlib.Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    files: dict[str, str | bytes] = {"pkg/a.cubin": pointer, "pkg/notes.md": pointer, "pkg/b.so": b"\x7fELF"}
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", files))
    assert [each.object for each in said(looked(venv), "lfs-pointer")] == ["pkg/a.cubin"]


def test_lost_x_bits_of_tools_are_errors_and_of_scripts_warnings(tmp_path: pathlib.Path) -> None:
    """pytorch/pytorch#123054: ptxas of triton without its x bit."""
    venv = make_environment(tmp_path / "venv", {"triton/backends/nvidia/bin/ptxas": "#"})
    put(venv / "bin/pip", "#!/bin/sh\n")
    assert {(each.object, each.severity) for each in said(looked(venv), "program-not-executable")} == {
        ("triton/backends/nvidia/bin/ptxas", Severity.ERROR),
        ("bin/pip", Severity.WARNING),
    }
    (venv / SITE / "triton/backends/nvidia/bin/ptxas").chmod(0o755)
    (venv / "bin/pip").chmod(0o755)
    assert said(looked(venv), "program-not-executable") == []


def test_a_link_to_nothing_is_a_warning(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv", {"lib/liba.so.1": b""})
    (venv / SITE / "lib/liba.so").symlink_to("liba.so.1")
    assert said(looked(venv), "link-dangling") == []
    (venv / SITE / "lib/liba.so.1").unlink()
    (finding,) = said(looked(venv), "link-dangling")
    assert finding.object.endswith("lib/liba.so")


@pytest.mark.parametrize("noexec", [True, False])
def test_a_mount_that_forbids_running_is_an_error(tmp_path: pathlib.Path, noexec: bool) -> None:  # noqa: FBT001
    facts = looked(make_environment(tmp_path / "venv"))
    facts = facts.but(replace(facts[LiveFacts], noexec=noexec))
    assert len(said(facts, "mounted-noexec")) == noexec


STRAYS = ("common_ops.abi3.so.bak", "common_ops.abi3.so.orig", "common_ops.cpython-312-x86_64-linux-gnu.so")


@pytest.mark.parametrize("stray", STRAYS)
def test_a_backup_that_the_kernels_glob_takes_is_an_error(tmp_path: pathlib.Path, stray: str) -> None:
    """Catalogue K58, measured on load_utils.py of sglang-kernel 0.4.10."""
    kernel = distribution("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": b"\x7fELF"})
    venv = make_environment(tmp_path / "venv", kernel)
    assert said(looked(venv), "loader-takes-stray") == []
    put(venv / SITE / "sgl_kernel/sm100" / stray, b"\x7fELF")
    (finding,) = said(looked(venv), "loader-takes-stray")
    assert (finding.severity, finding.object) == (Severity.ERROR, f"sgl_kernel/sm100/{stray}")


def test_a_copy_of_an_object_elsewhere_is_a_warning(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", {"pkg/_c.abi3.so": b"\x7fELF"}))
    put(venv / SITE / "pkg/_c.abi3.so.old", b"\x7fELF")
    (finding,) = said(looked(venv), "object-copy-stray")
    assert (finding.severity, finding.object) == (Severity.WARNING, "pkg/_c.abi3.so.old")


def test_a_process_that_maps_a_replaced_file_is_found(tmp_path: pathlib.Path) -> None:
    """vllm-project/vllm#13040: the kernel says so, in its own maps."""
    library = put(tmp_path / "venv/lib/a.so", b"x" * 4096)
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "print(flush=True); sys.stdin.read()"
    )
    argv = (sys.executable, "-c", program, str(library))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        root = str(tmp_path / "venv")
        assert mapped.stale(root)["processes"] == []
        put(tmp_path / "new.so", b"y" * 4096).rename(library)
        (told,) = mapped.stale(root)["processes"]
        assert (told["pid"], told["paths"]) == (child.pid, [str(library)])
        child.communicate()


def test_a_process_that_runs_replaced_files_is_a_warning_and_a_hidden_one_unknown(
    tmp_path: pathlib.Path,
) -> None:
    facts = looked(make_environment(tmp_path / "venv"))
    stale = StaleProcess(pid=4711, name="sglang::scheduler", paths=("/v/common_ops.abi3.so",), count=1)
    shown = facts.but(replace(facts[LiveFacts], processes=(stale,), hidden=2))
    assert {(each.object, each.severity) for each in said(shown, "process-runs-replaced-files")} == {
        ("process 4711", Severity.WARNING),
        ("processes", Severity.UNKNOWN),
    }
    for uid, told in ((0, "root sees all but"), (1000, "run as the service's user, or as root")):
        host = hostfacts.facts({"identity.user": {"uid": uid, "name": "x"}})
        unknown = said(shown.but(host), "process-runs-replaced-files")[0]
        assert (unknown.severity, (unknown.fix or "")[: len(told)]) == (Severity.UNKNOWN, told)
    sound = facts.but(replace(facts[LiveFacts], processes=(), hidden=0))
    assert said(sound, "process-runs-replaced-files") == []
