"""Judging a whole (small) environment: verdicts as the real loader has them, and faults from them."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import objects
from hostenv.agent.wire import AgentError
from hostenv.checks import objects as rules
from hostenv.checks.demangle import demangle, shown
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Facts, judge
from hostenv.checks.object_tables import object_tables, provider_of
from hostenv.facts.gpu_code import DottedPair, GpuTargets, TargetGpu
from hostenv.facts.objects import LoadFacts, described
from hostenv.workflows.oracle import compare
from kit.elf import needs_gcc, shared, wrote
from kit.venv import distribution, environment, extension

if TYPE_CHECKING:
    import pathlib
    from typing import Any

    from hostenv.checks.finding import Finding

pytestmark = needs_gcc

C10 = "torch/lib/libc10.so"
NEW = "int _ZN3c103newEv(void); int call(void){return _ZN3c103newEv();}"
OLD = "int _ZN3c103oldEi(int); int call(void){return _ZN3c103oldEi(1);}"


@pytest.fixture
def site(tmp_path: pathlib.Path) -> pathlib.Path:
    """A sound environment: torch, a kernel without RPATH, and alternatives that need not load."""
    place = environment(tmp_path / "venv")
    extension(place, "sgl_kernel/sm90/common_ops.abi3.so", NEW, C10)
    extension(place, "sgl_kernel/sm100/common_ops.abi3.so", NEW, C10)
    distribution(
        place,
        "sglang-kernel",
        "0.4.10",
        [f"sgl_kernel/sm{n}/common_ops.abi3.so" for n in (90, 100)],
        ("torch==2.14.1",),
    )
    return place


def test_the_verdicts_are_the_loaders(site: pathlib.Path) -> None:
    extension(site, "broken.so", OLD, C10)
    extension(site, "plain.so", "int x;")
    (site / "empty.so").write_bytes(b"")
    found = compare(str(site.parents[2]))
    assert found.objects == 8
    assert found.failing == {"alone": 3, "after import": 1}
    assert not found.disagreements, "\n".join(map(str, found.disagreements))


def test_an_import_that_fails_is_told(site: pathlib.Path) -> None:
    (site / C10).unlink()
    found = compare(str(site.parents[2]))
    assert not found.disagreements
    assert _only(_findings(site), "torch-library-missing").object == "sgl_kernel/sm100/common_ops.abi3.so"


def test_a_sound_environment_has_no_errors(site: pathlib.Path) -> None:
    for number in (4, 5):
        name = f"libavutil.so.{50 + number}"
        gone = shared(site / "gone", name, "", f"-Wl,-soname,{name}")
        extension(site, f"torchcodec/libtorchcodec_core{number}.so", "", f"gone/{name}")
        gone.unlink()
    (site / "gone").rmdir()
    extension(site, "torch_c_dlpack_ext/libtorch_c_dlpack_addon_torch24-cpu.so", OLD, C10)
    extension(site, "torch_c_dlpack_ext/libtorch_c_dlpack_addon_torch214-cpu.so", NEW, C10)
    extension(site, "old.cpython-310-x86_64-linux-gnu.so", OLD)
    extension(site, "triton/plugins/libTest.so", "int no(void); int f(void){return no();}")
    assert [each for each in _findings(site) if each.severity is not Severity.NOTE] == []


def test_parts_of_a_gpu_host_that_nobody_there_uses_are_no_fault(site: pathlib.Path) -> None:
    """Seen on a host with an H200 (torch 2.11.0+cu130), on which torch worked."""
    names = {
        "cupy_backends/cuda/libs/cutensor.abi3.so": "libcutensor.so.2",
        "mpi4py/MPI.mpich.abi3.so": "libmpi.so.12",
        "somebody/else.abi3.so": "libelse.so.1",
    }
    for path, name in names.items():
        gone = shared(site / "gone", name, "", f"-Wl,-soname,{name}")
        extension(site, path, "", f"gone/{name}")
        gone.unlink()
    (site / "gone").rmdir()
    extension(site, "mpi4py/MPI.openmpi.abi3.so", "")
    missing = "int pmix_value_load(void); int f(void){return pmix_value_load();}"
    extension(site, "nvidia/nvshmem/lib/nvshmem_bootstrap_pmix.so.3", missing)
    assert _only(_findings(site), "system-library-missing").object == "somebody/else.abi3.so"


def test_a_kernel_for_another_torch(site: pathlib.Path) -> None:
    for folder in ("sm90", "sm100"):
        extension(site, f"sgl_kernel/{folder}/common_ops.abi3.so", OLD, C10)
    finding = _only(_findings(site), "kernel-for-another-torch")
    assert finding.kind == "K01"
    assert "built for torch 2.14.1" in finding.message
    assert "c10::old(int) [_ZN3c103oldEi]" in finding.message
    assert finding.also == ("sgl_kernel/sm90/common_ops.abi3.so",)


def test_only_the_variant_of_this_gpu_is_judged(site: pathlib.Path) -> None:
    extension(site, "sgl_kernel/sm100/common_ops.abi3.so", OLD, C10)
    assert _findings(site, _gpu("9.0")) == ()
    assert [each.object for each in _findings(site, _gpu("12.0"))] == ["sgl_kernel/sm100/common_ops.abi3.so"]


def test_a_library_of_the_other_cuda(site: pathlib.Path) -> None:
    gone = shared(site, "libcudart.so.12", "", "-Wl,-soname,libcudart.so.12")
    extension(site, "mooncake/engine.so", "", "libcudart.so.12")
    distribution(site, "mooncake", "1.0", ["mooncake/engine.so"])
    gone.unlink()
    finding = _only(_findings(site), "cuda-library-other-major")
    assert (finding.kind, finding.object) == ("K05", "mooncake/engine.so")
    assert "CUDA 12" in finding.message
    assert "mooncake-1.0 fails" in finding.message


def test_one_missing_library_is_one_finding(site: pathlib.Path) -> None:
    gone = shared(site, "libnothere.so.1", "", "-Wl,-soname,libnothere.so.1")
    for name in ("a.so", "b.so", "c.so"):
        extension(site, name, "", "libnothere.so.1")
    gone.unlink()
    finding = _only(_findings(site), "system-library-missing")
    assert (finding.object, finding.also) == ("a.so", ("b.so", "c.so"))


def test_a_glibc_that_is_too_old(site: pathlib.Path) -> None:
    wrote(site, "map", "GLIBC_9.9 { global: future; };")
    stub = shared(site, "libc.so.6", "int future;", "-Wl,-soname,libc.so.6", "-Wl,--version-script,map")
    extension(site, "new.so", "extern int future; int *p(void){return &future;}", "libc.so.6")
    stub.unlink()
    finding = _only(_findings(site), "glibc-too-old")
    assert finding.kind == "K14"
    assert "GLIBC_9.9" in finding.message


def test_a_library_that_loads_where_it_is_needed(site: pathlib.Path) -> None:
    shared(site / "a.libs", "libdeep.so", "int deep;", "-Wl,-soname,libdeep.so")
    extension(
        site,
        "a.libs/libmid.so",
        "extern int deep; int *q(void){return &deep;}",
        "a.libs/libdeep.so",
        "-Wl,-soname,libmid.so",
    )
    extension(
        site,
        "a/ext.so",
        "",
        "a.libs/libdeep.so",
        "a.libs/libmid.so",
        "-Wl,-rpath,$ORIGIN/../a.libs",
        "-Wl,--disable-new-dtags",
    )
    assert [each.rule for each in _findings(site)] == ["object-not-used-here"]
    (site / "a" / "ext.so").unlink()
    assert "system-library-missing" in [each.rule for each in _findings(site)]


def test_a_file_that_is_no_object(site: pathlib.Path) -> None:
    (site / "script.so").write_text("GROUP ( libc.so.6 )" * 9)
    (site / "empty.so.1").write_bytes(b"")
    (site / "notes.some").write_text("not a shared object's name")
    finding = _only(_findings(site), "object-malformed")
    assert (finding.object, finding.also) == ("empty.so.1", ("script.so",))


def test_an_object_that_is_cut_short_and_loads(site: pathlib.Path) -> None:
    path = extension(site, "a.so", "char big[1 << 20] = {1};", "-s")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert _facts(site).objects[0].after.loads is True
    assert _only(_findings(site), "object-malformed").object == "a.so"


def test_what_was_not_saved_is_unknown(site: pathlib.Path) -> None:
    gone = shared(site, "libfar.so.1", "int far;", "-Wl,-soname,libfar.so.1")
    extension(site, "a.so", "extern int far; int *p(void){return &far;}", "libfar.so.1")
    gone.unlink()
    libc = {"name": "libc.so.6", "path": "/lib/libc.so.6", "soname": "libc.so.6"}
    present = [["libfar.so.1", "/lib/libfar.so.1"], ["libm.so.6", "/lib/libm.so.6"]]
    present += [[name, f"/lib/{name}"] for name in ("libpthread.so.0", "libdl.so.2", "libutil.so.1")]
    libraries = {"read": [{"how": "test", "value": libc}], "present": present}
    host = {"glibc": [2, 39], "libraries": libraries}
    facts = _facts(site, host=host)
    loads = {item.path: item.after.loads for item in facts.objects}
    assert loads["a.so"] is None
    assert loads["sgl_kernel/sm90/common_ops.abi3.so"] is True
    finding = next(each for each in _judged(facts) if each.object == "a.so")
    assert finding.severity is Severity.UNKNOWN


def test_nothing_of_the_environment_is_run(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    trap = tmp_path / "sprung"
    source = f"""
    int open(const char *, int, int);
    __attribute__((constructor)) void spring(void){{open("{trap}", 65, 420);}}
    """
    extension(site, "trap.so", source, "-lc")
    (site / "trap.pth").write_text(f"import pathlib; pathlib.Path({str(trap)!r}).touch()\n")
    (site / "sitecustomize.py").write_text(f"import pathlib; pathlib.Path({str(trap)!r}).touch()\n")
    _facts(site)
    assert not trap.exists()


def test_links_and_folders_in_circles_end(site: pathlib.Path) -> None:
    (site / "circle").symlink_to(site)
    (site / "self.so").symlink_to("self.so")
    (site / "folder.so").mkdir()
    (site / "alias.so").symlink_to("sgl_kernel/sm90/common_ops.abi3.so")
    assert "alias.so" in {item.path for item in _facts(site).objects}


def test_an_answer_is_kept_until_something_changes(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cache = str(tmp_path / "kept" / "objects.json")
    extension(site, "a.so", NEW, C10)
    time.sleep(0.1)
    first = _answer(site, cache=cache)
    again = _answer(site, cache=cache)
    assert (first["cached"], again["cached"]) == (False, True)
    assert [first[key] for key in ("objects", "owners")] == [again[key] for key in ("objects", "owners")]
    os.utime(site / "a.so", (1, 1))
    time.sleep(0.1)
    assert not _answer(site, cache=cache)["cached"]
    extension(site, "new/b.so", NEW, C10)
    time.sleep(0.1)
    assert not _answer(site, cache=cache)["cached"]
    assert _answer(site, cache=cache)["cached"]
    assert not _answer(site, cache=cache, environment={"LD_LIBRARY_PATH": "/x"})["cached"]


def test_a_damaged_cache_is_no_answer(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cache = tmp_path / "objects.json"
    for content in ("", "[]", "{}", '{"key": 1, "states": [], "answer": {}}', "\xff"):
        cache.write_text(content)
        assert _answer(site, cache=str(cache))["objects"]


def test_two_processes_find_what_one_finds(site: pathlib.Path) -> None:
    for number in range(70):
        extension(site, f"many/{number}.so", NEW if number % 7 else OLD, C10)
    alone, shared_work = (_answer(site, helpers=helpers) for helpers in (False, True))
    assert alone["objects"] == shared_work["objects"]


def test_an_environment_without_its_interpreter(site: pathlib.Path) -> None:
    python = site.parents[2] / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.99")
    with pytest.raises(AgentError, match="not there"):
        _answer(site)
    with pytest.raises(AgentError, match="site-packages"):
        objects.objects(None, venv=str(site))  # type: ignore[arg-type]


def test_the_json_of_an_object(site: pathlib.Path) -> None:
    entry = described(
        next(item for item in _facts(site).objects if item.path.endswith("sm90/common_ops.abi3.so"))
    )
    assert entry["loads_alone"] is False
    assert entry["loads_after_preload"] is True
    assert entry["missing_library"] is None
    assert entry["alone"]["missing_library"] == "libc10.so"  # type: ignore[index]
    json.dumps(entry)


def test_symbols_are_shown_in_both_forms() -> None:
    assert demangle("_ZNK3c106SymInt6sym_neERKS0_") == "c10::SymInt::sym_ne(c10::SymInt const&) const"
    assert shown("cuInit") == "cuInit"
    assert shown("_Znonsense") == "_Znonsense"


def test_reviewed_data_is_sound() -> None:
    assert object_tables().group_of("torchcodec/libtorchcodec_core7.so") is not None
    known = provider_of("libcublasLt.so.13")
    assert known is not None
    assert known[0] == "K05"
    assert provider_of("libsomething.so.1") is None


def _answer(site: pathlib.Path, **arguments: Any) -> dict[str, Any]:
    return objects.objects(None, venv=str(site.parents[2]), gpu=False, **arguments)  # type: ignore[arg-type]


def _facts(site: pathlib.Path, **arguments: Any) -> LoadFacts:
    return LoadFacts.from_dict(json.loads(json.dumps(_answer(site, **arguments))))


def _judged(facts: LoadFacts, *known: object) -> tuple[Finding, ...]:
    return judge(Facts(facts, *known), rules.RULES, today=dt.date(2026, 12, 1)).findings


def _findings(site: pathlib.Path, *known: object) -> tuple[Finding, ...]:
    return _judged(_facts(site), *known)


def _only(findings: tuple[Finding, ...], rule: str) -> Finding:
    errors = [each for each in findings if each.severity is Severity.ERROR]
    assert [each.rule for each in errors] == [rule], errors
    return errors[0]


def _gpu(capability: str) -> GpuTargets:
    gpu = TargetGpu(name="GPU 0", compute_capability=DottedPair.parse(capability))
    return GpuTargets(gpus=(gpu,), driver=None, cuda=None)
