"""What Python itself would find: each fault made of files, and a sound twin that stays silent."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hostenv.checks import python_rules
from hostenv.checks.finding import Finding, Severity
from hostenv.checks.record import Applied
from hostenv.facts.site import LiveFacts
from hostenv.facts.surroundings import ServiceSettings
from kit.environment import SITE, distribution, make_environment, put
from kit.sites import found, looked

if TYPE_CHECKING:
    import pathlib

    from hostenv.checks.judge import Facts

EXTENSION = "{}.cpython-310-x86_64-linux-gnu.so"


def said(facts: Facts, rule: str) -> list[Finding]:
    return found(facts, python_rules.RULES, rule)


def wheel(tmp_path: pathlib.Path, *files: str, tag: str = "cp310-abi3-linux_x86_64") -> Facts:
    contents: dict[str, str | bytes] = dict.fromkeys(files, b"\x7fELF")
    return looked(make_environment(tmp_path / "venv", distribution("k", "1.0", contents, tags=[tag])))


def test_an_extension_for_one_python_in_an_abi3_wheel_is_told(tmp_path: pathlib.Path) -> None:
    """sgl-project/sglang#37640: infllm_ops of sglang-kernel 0.4.10."""
    (finding,) = said(
        wheel(tmp_path, EXTENSION.format("k/infllm_ops"), "k/common_ops.abi3.so"), "extension-mislabelled"
    )
    assert (finding.kind, finding.severity) == ("K46", Severity.WARNING)
    assert finding.object == EXTENSION.format("k/infllm_ops")


@pytest.mark.parametrize("stand_in", ["k/a.abi3.so", "k/a.cpython-312-x86_64-linux-gnu.so"])
def test_an_extension_with_a_stand_in_for_this_python_is_none(tmp_path: pathlib.Path, stand_in: str) -> None:
    assert said(wheel(tmp_path, EXTENSION.format("k/a"), stand_in), "extension-mislabelled") == []


def test_a_leftover_extension_hides_the_patched_source(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", {"pkg/mod.py": "x = 1\n"}))
    assert said(looked(venv), "module-shadowed") == []
    put(venv / SITE / f"pkg/mod.cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu.so", b"")
    (finding,) = said(looked(venv), "module-shadowed")
    assert (finding.object, finding.severity) == ("pkg/mod.py", Severity.WARNING)
    (finding,) = said(looked(venv, Applied(files={"pkg/mod.py": "0" * 64})), "module-shadowed")
    assert finding.severity is Severity.ERROR
    # importlib agrees: of the two it takes the extension
    finder = importlib.machinery.FileFinder(
        str(venv / SITE / "pkg"),
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES),
    )
    spec = finder.find_spec("mod")
    assert spec
    assert str(spec.origin).endswith(".so")


def test_a_distribution_that_ships_both_is_no_fault(tmp_path: pathlib.Path) -> None:
    files: dict[str, str | bytes] = {"pkg/mod.py": "", EXTENSION.format("pkg/mod").replace("310", "312"): b""}
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", files))
    assert said(looked(venv), "module-shadowed") == []


def editable(tmp_path: pathlib.Path, *, copy: bool) -> pathlib.Path:
    source = put(tmp_path / "checkout/python/sglang/__init__.py", "").parents[1]
    files = {"sglang/__init__.py": ""} if copy else {}
    venv = make_environment(tmp_path / "venv", distribution("sglang", "0.5.23", files))
    put(venv / SITE / "__editable__.sglang.pth", f"{source}\n")
    return venv


def test_a_package_both_installed_and_editable_is_told(tmp_path: pathlib.Path) -> None:
    """THUDM/slime#1455, pypa/setuptools#3557: the edit of the checkout has no effect. Python's own answer."""
    venv = editable(tmp_path, copy=True)
    (finding,) = said(looked(venv), "source-tree-twice")
    assert (finding.object, finding.kind) == ("sglang", "K48")
    program = f"import site; site.addsitedir({str(venv / SITE)!r}); import sglang; print(sglang.__file__)"
    done = subprocess.run(
        (sys.executable, "-I", "-S", "-c", program), capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(venv / SITE))


def test_a_package_that_is_editable_only_is_no_fault(tmp_path: pathlib.Path) -> None:
    assert said(looked(editable(tmp_path, copy=False)), "source-tree-twice") == []


def test_a_finder_of_setuptools_is_read(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv", distribution("sglang", "1.0", {"sglang/__init__.py": ""}))
    put(
        venv / SITE / "__editable___sglang_1_0_finder.py",
        "MAPPING: dict[str, str] = {'sglang': '/src/sglang'}\n",
    )
    (finding,) = said(looked(venv), "source-tree-twice")
    assert "/src/sglang" in finding.message


def test_a_path_file_to_nothing_is_told(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv")
    put(venv / SITE / "a.pth", "/nonexistent/checkout\n")
    (finding,) = said(looked(venv), "source-tree-twice")
    assert finding.object == "a.pth"


def test_a_folder_that_an_uninstall_left_is_told(tmp_path: pathlib.Path) -> None:
    """flashinfer-ai/flashinfer#3044: a namespace package of leftovers."""
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", {"pkg/__init__.py": ""}))
    assert said(looked(venv), "folder-orphaned") == []
    put(venv / SITE / "flashinfer/old/a.py", "")
    (finding,) = said(looked(venv), "folder-orphaned")
    assert (finding.object, finding.severity) == ("flashinfer", Severity.WARNING)


def test_a_dead_interpreter_is_an_error(tmp_path: pathlib.Path) -> None:
    """astral-sh/uv#11168: the venv was copied, its Python was not."""
    venv = make_environment(tmp_path / "venv")
    assert said(looked(venv), "interpreter-dead") == []
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("/root/.local/share/uv/python/cpython-3.12.99/bin/python3.12")
    (finding,) = said(looked(venv), "interpreter-dead")
    assert "cpython-3.12.99" in finding.message


def test_another_python_than_the_packages_is_an_error(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv")
    put(venv / "pyvenv.cfg", "home = /usr/bin\nversion_info = 3.11.4\n")
    (finding,) = said(looked(venv), "interpreter-dead")
    assert "3.11.4" in finding.message


@pytest.mark.parametrize(
    ("interpreter", "severity"),
    [("/gone/venv/bin/python", Severity.ERROR), (sys.executable, Severity.WARNING)],
)
def test_scripts_of_a_moved_environment_are_told(
    tmp_path: pathlib.Path, interpreter: str, severity: Severity
) -> None:
    """astral-sh/uv#4265: bad interpreter, or the one it was copied from."""
    venv = make_environment(tmp_path / "venv")
    put(venv / "bin/good", f"#!{venv}/bin/python\n")
    assert said(looked(venv), "script-of-another-place") == []
    put(venv / "bin/tool", f"#!{interpreter}\n")
    (finding,) = said(looked(venv), "script-of-another-place")
    assert (finding.severity, finding.object) == (severity, "bin/tool")


def test_an_activate_for_another_place_is_told(tmp_path: pathlib.Path) -> None:
    venv = make_environment(tmp_path / "venv")
    put(venv / "bin/activate", f"VIRTUAL_ENV='{venv}'\n")
    assert said(looked(venv), "activate-of-another-place") == []
    put(venv / "bin/activate", "VIRTUAL_ENV='/root/venv'\n")
    assert len(said(looked(venv), "activate-of-another-place")) == 1


def test_the_systems_packages_and_the_services_variables_leak(tmp_path: pathlib.Path) -> None:
    """lemonade-sdk/vllm-rocm#15."""
    venv = make_environment(tmp_path / "venv")
    assert said(looked(venv, ServiceSettings()), "path-leaks") == []
    put(venv / "pyvenv.cfg", "home = /usr/bin\nversion_info = 3.12.1\ninclude-system-site-packages = true\n")
    facts = looked(venv, ServiceSettings(env={"PYTHONPATH": "/opt/ros/lib", "HOME": "/root"}))
    assert {each.object for each in said(facts, "path-leaks")} == {"pyvenv.cfg", "service.env.PYTHONPATH"}


def test_code_at_start_that_nobody_owns_is_told(tmp_path: pathlib.Path) -> None:
    owned = distribution("hook", "1.0", {"hook.pth": "import os\n"})
    venv = make_environment(tmp_path / "venv", owned)
    assert said(looked(venv), "code-at-start") == []
    put(venv / SITE / "mine.pth", "import os; os.environ['X'] = '1'\n")
    put(venv / SITE / "sitecustomize.py", "")
    assert {each.object for each in said(looked(venv), "code-at-start")} == {"mine.pth", "sitecustomize.py"}


def compiled(tmp_path: pathlib.Path, mode: py_compile.PycInvalidationMode) -> pathlib.Path:
    venv = make_environment(tmp_path / "venv", distribution("pkg", "1.0", {"pkg/a.py": "VALUE = 1\n"}))
    py_compile.compile(str(venv / SITE / "pkg/a.py"), doraise=True, invalidation_mode=mode)
    return venv


def run(venv: pathlib.Path) -> str:
    """Return what Python says the module's value is: the oracle."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); from pkg.a import VALUE; print(VALUE)"
    argv = (sys.executable, "-I", "-S", "-B", "-c", program, str(venv / SITE))
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_bytecode_that_hides_a_patch_is_an_error(tmp_path: pathlib.Path) -> None:
    """python/cpython#121376: unchecked bytecode runs the old code."""
    venv = compiled(tmp_path, py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert said(looked(venv), "bytecode-stale") == []
    assert len(said(looked(venv), "bytecode-unchecked")) == 1
    put(venv / SITE / "pkg/a.py", "VALUE = 2\n")
    assert run(venv) == "1"
    (finding,) = said(looked(venv), "bytecode-stale")
    assert (finding.severity, finding.kind) == (Severity.ERROR, "K52")


def test_checked_bytecode_never_hides_a_patch(tmp_path: pathlib.Path) -> None:
    venv = compiled(tmp_path, py_compile.PycInvalidationMode.CHECKED_HASH)
    put(venv / SITE / "pkg/a.py", "VALUE = 2\n")
    assert run(venv) == "2"
    assert said(looked(venv), "bytecode-stale") == said(looked(venv), "bytecode-unchecked") == []


def test_a_look_changes_nothing_and_knows_when_nothing_changed(tmp_path: pathlib.Path) -> None:
    venv = compiled(tmp_path, py_compile.PycInvalidationMode.CHECKED_HASH)
    before = {path: path.lstat().st_mtime_ns for path in venv.rglob("*")}
    facts = looked(venv, full=True)
    assert {path: path.lstat().st_mtime_ns for path in venv.rglob("*")} == before
    assert facts[LiveFacts].interpreter.program == os.path.realpath("/bin/sh")
    assert replace(facts[LiveFacts], noexec=True).noexec
