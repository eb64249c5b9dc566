"""Every kind of fault of a shared object, built small, and its sound twin, by the loader's simulation."""

from __future__ import annotations

import datetime as dt
import json
import lzma
import pathlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import objects
from hostenv.checks import objects as rules
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, judge
from hostenv.facts.objects import LoadFacts
from kit.elf import needs_gcc, shared, wrote
from kit.sites import an_object, loads
from kit.venv import distribution, environment, extension

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostenv.checks.finding import Finding

pytestmark = needs_gcc

C10 = "torch/lib/libc10.so"
CUDA = "torch/lib/libtorch_cuda.so"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a sound environment, to be copied."""
    root = tmp_path_factory.mktemp("base") / "venv"
    site = environment(root)
    distribution(site, "flash-attn", "2.8.0", ["flash_attn/a.so"])
    return root


def copied(base: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    """Return the ``site-packages`` of a copy."""
    shutil.copytree(base, root, symlinks=True)
    return next(root.glob("lib/python3*/site-packages"))


def calling(symbol: str) -> str:
    return f"int {symbol}(void); int call(void){{return {symbol}();}}"


def torch_symbol(symbol: str, place: str = "flash_attn/a.so") -> Callable[..., None]:
    """Return what builds an object that needs a symbol of torch's, which torch has in the twin."""

    def build(site: pathlib.Path, *, fault: bool) -> None:
        source = "int _ZN3c103newEv(void){return 1;}"
        if not fault:
            source += f" int {symbol}(void){{return 1;}}"
        shared(site / "torch/lib", "libc10.so", source, "-Wl,-soname,libc10.so")
        extension(site, place, calling(symbol), C10)

    return build


def symbol_of(library: str, symbol: str, place: str = "a.so") -> Callable[..., None]:
    """Return what builds an object that needs a symbol of a library, which that has in the twin."""

    def build(site: pathlib.Path, *, fault: bool) -> None:
        name = library.rpartition("/")[2]
        has = "old" if fault else symbol
        extension(site, library, f"int {has}(void){{return 1;}}", f"-Wl,-soname,{name}")
        origin = f"$ORIGIN/{'../' * place.count('/')}{library.rpartition('/')[0]}"
        extension(site, place, calling(symbol), library, f"-Wl,-rpath,{origin}")

    return build


def missing(library: str) -> Callable[..., None]:
    """Return what builds an object whose library is not there, or lies beside it in the twin."""

    def build(site: pathlib.Path, *, fault: bool) -> None:
        made = shared(site / "x", library, "int there(void){return 1;}", f"-Wl,-soname,{library}")
        extension(site, "x/a.so", "", f"x/{library}", "-Wl,-rpath,$ORIGIN")
        if fault:
            made.unlink()

    return build


def too_old(library: str, versions: tuple[str, str]) -> Callable[..., None]:
    """Return what builds an object that needs the second of a library's versions; it has the first alone."""

    def build(site: pathlib.Path, *, fault: bool) -> None:
        def provider(folder: str, version: str) -> None:
            wrote(site / folder, "map", f"{version} {{ global: thing; }};")
            flags = (f"-Wl,-soname,{library}", "-Wl,--version-script,map")
            shared(site / folder, library, "int thing;", *flags)

        provider("made", versions[1])
        provider("libs", versions[0] if fault else versions[1])
        source = "extern int thing; int *p(void){return &thing;}"
        extension(site, "a.so", source, f"made/{library}", "-Wl,-rpath,$ORIGIN/libs")

    return build


def damaged(site: pathlib.Path, *, fault: bool) -> None:
    dependency = extension(site, "x/b.so", "int there(void){return 1;}", "-Wl,-soname,b.so")
    extension(site, "x/a.so", "", "x/b.so", "-Wl,-rpath,$ORIGIN")
    if fault:
        dependency.write_bytes(dependency.read_bytes()[:40])


def another_machine(site: pathlib.Path, *, fault: bool) -> None:
    path = extension(site, "a.so", "int there(void){return 1;}")
    if fault:
        content = bytearray(path.read_bytes())
        content[18:20] = (183 if content[18] == 62 else 62).to_bytes(2, "little")  # e_machine
        path.write_bytes(content)


CASES: dict[str, tuple[str, Callable[..., None], str]] = {
    "K02": ("extension-for-another-torch", torch_symbol("_ZN3c104cuda9SetDeviceEi"), "SetDevice(int)"),
    "K02, two S in a name": ("extension-for-another-torch", torch_symbol("_ZN3c103SSEEv"), "c10::SSE()"),
    "K03": (
        "extension-old-string-abi",
        torch_symbol("_ZN5torch3jit17parseSchemaOrNameERKSsb"),
        "_GLIBCXX_USE_CXX11_ABI=0",
    ),
    "K08": ("torch-library-missing", missing("libtorch_cuda.so"), "torch should bring it"),
    "K09": (
        "nccl-too-old",
        symbol_of("nvidia/nccl/lib/libnccl.so.2", "ncclCommResume", CUDA),
        "libnccl is too old",
    ),
    "K12": ("library-shadowed", too_old("libnvJitLink.so.12", ("LIB_12_2", "LIB_12_4")), "LIB_12_4"),
    "K15": ("libstdcxx-too-old", too_old("libstdc++.so.6", ("GLIBCXX_3.4.1", "GLIBCXX_9.9")), "GLIBCXX_9.9"),
    "K18": ("system-library-missing", missing("libnotthere.so.1"), "no libnotthere.so.1"),
    "K19": ("nvidia-library-missing", missing("libcusparseLt.so.99"), "NVIDIA's wheel for cusparseLt"),
    "K28": ("driver-symbol-missing", symbol_of("x/libdriver.so", "cuGreenCtxStreamCreate"), "libcuda has no"),
    "K46": ("extension-for-another-python", symbol_of("x/libpy.so", "PyUnicode_Gone"), "another Python"),
    "K53": ("object-damaged", damaged, "file too short"),
    "K56": ("object-for-another-machine", another_machine, "this interpreter is not"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_fault_is_told_and_its_sound_twin_is_silent(
    base: pathlib.Path, tmp_path: pathlib.Path, case: str
) -> None:
    rule, build, words = CASES[case]
    for fault in (True, False):
        site = copied(base, tmp_path / f"{fault}")
        build(site, fault=fault)
        errors = [each for each in judged(site) if each.severity is Severity.ERROR]
        rules_found = {(each.rule, each.kind) for each in errors if each.rule != "object-malformed"}
        assert rules_found == ({(rule, case[:3])} if fault else set()), errors
        assert not fault or words in " ".join(each.message for each in errors)


def test_a_library_path_with_an_older_copy_shadows(base: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Catalogue K12 as users make it: RUNPATH comes after LD_LIBRARY_PATH."""
    site = copied(base, tmp_path / "venv")
    too_old("libnvJitLink.so.12", ("LIB_12_2", "LIB_12_4"))(site, fault=False)
    too_old("libnvJitLink.so.12", ("LIB_12_2", "LIB_12_4"))(copied(base, tmp_path / "other"), fault=True)
    (older,) = (tmp_path / "other").glob("lib/python3*/site-packages/libs")
    assert [each for each in judged(site) if each.severity is Severity.ERROR] == []
    (error,) = judged(site, environment={"LD_LIBRARY_PATH": str(older)})
    assert (error.rule, error.object) == ("library-shadowed", "a.so")


def test_an_executable_stack_is_refused_from_glibc_2_41_on(
    base: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Catalogue K16, for the machine of saved facts: its libraries, with either glibc."""
    data = pathlib.Path(__file__).parents[1] / "data/h200/facts.json.xz"
    saved = json.loads(lzma.decompress(data.read_bytes()))
    site = copied(base, tmp_path / "venv")
    extension(site, "a.so", "int f(void){return 1;}", "-Wl,-z,execstack")
    for glibc, expected in (((2, 40), []), ((2, 41), [("executable-stack", "K16", "a.so")])):
        host = {"libraries": saved["libraries"], "glibc": glibc}
        errors = [each for each in judged(site, host=host) if each.severity is Severity.ERROR]
        assert [(each.rule, each.kind, each.object) for each in errors] == expected


def test_a_library_of_the_driver_that_is_missing_is_told() -> None:
    """Catalogue K27; facts, since a machine with a driver has it."""
    gone = {"library": "libcuda.so.1", "text": "libcuda.so.1: cannot open shared object file"}
    facts = loads(an_object("sgl_kernel/a.so", "libcuda.so.1", loads=False, **gone))
    (found,) = judge(Facts(facts), rules.RULES, today=dt.date(2026, 12, 1)).findings
    assert (found.rule, found.kind) == ("driver-library-missing", "K27")
    assert "the NVIDIA driver should bring it" in found.message
    sound = loads(an_object("sgl_kernel/a.so", "libcuda.so.1"))
    assert judge(Facts(sound), rules.RULES, today=dt.date(2026, 12, 1)).findings == ()


def judged(site: pathlib.Path, **arguments: Any) -> tuple[Finding, ...]:
    answer = objects.objects(None, venv=str(site.parents[2]), gpu=False, **arguments)  # type: ignore[arg-type]
    facts = LoadFacts.from_dict(json.loads(json.dumps(answer)))
    return judge(Facts(facts), rules.RULES, today=dt.date(2026, 12, 1)).findings
