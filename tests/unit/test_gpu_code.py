"""The verdict on GPU code: what a real GPU said, and NVIDIA's rules for GPUs that were not at hand."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hostenv.agent import gpucode
from hostenv.checks.gpu_code import (
    CodeVerdict,
    PtxSupport,
    container_verdict,
    gpu_entry,
    object_verdict,
    ptx_support,
)
from hostenv.checks.gpu_tables import gpu_objects, gpu_tables
from hostenv.document import DocumentError
from hostenv.facts.gpu_code import (
    Container,
    DottedPair,
    GpuCode,
    GpuCodeFacts,
    GpuTargets,
    Image,
    Role,
    TargetGpu,
)

DATA = Path(__file__).parents[1] / "data" / "arch"
TRUTHS = sorted(DATA.glob("truth-*.json"))
SAID = {0: {"runs", "jit"}, 209: {"no-image"}, 222: {"ptx-too-new"}, 300: {"no-image"}, 500: {"no-image"}}
"""cudaError → verdict: 209 no kernel image; 222 PTX too new; 300 and 500 a device link that found no code."""


def targets(*capabilities: str | None, driver: str | None = None, cuda: str | None = None) -> GpuTargets:
    gpus = tuple(
        TargetGpu(name=f"GPU {index}", compute_capability=DottedPair.parse(one) if one else None)
        for index, one in enumerate(capabilities)
    )
    return GpuTargets(gpus=gpus, driver=driver, cuda=DottedPair.parse(cuda) if cuda else None)


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> GpuCodeFacts:
    folder = tmp_path_factory.mktemp("samples")
    with tarfile.open(DATA / "samples.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    described = {path.name: gpucode.read(str(path)) for path in folder.glob("*.so")}
    return GpuCodeFacts.from_dict({"objects": described, "unreadable": {}})


def truths() -> list[Any]:
    cases = []
    for path in TRUTHS:
        document = json.loads(path.read_text())
        for setting, results in document["results"].items():
            cases += [
                pytest.param(document["gpu"], name, launches, id=f"{name}-{setting}")
                for name, launches in results.items()
                if launches
            ]
    return cases


@pytest.mark.parametrize(("gpu", "name", "launches"), truths())
def test_the_verdict_is_what_a_real_gpu_said(
    samples: GpuCodeFacts, gpu: dict[str, str], name: str, launches: dict[str, int]
) -> None:
    host = targets(gpu["compute_capability"], driver=gpu["driver"], cuda=gpu["driver_cuda"])
    entry: Any = gpu_entry(name, samples.objects[name], host)
    assert entry["gpus"][0]["verdict"] in SAID[max(launches.values())]


@pytest.mark.parametrize(("gpu", "name", "launches"), truths())
def test_the_drivers_branch_alone_gives_the_same(
    samples: GpuCodeFacts, gpu: dict[str, str], name: str, launches: dict[str, int]
) -> None:
    entry: Any = gpu_entry(name, samples.objects[name], targets("9.0", driver=gpu["driver"]))
    assert entry["gpus"][0]["verdict"] in SAID[max(launches.values())]


def test_all_samples_have_a_truth(samples: GpuCodeFacts) -> None:
    told = {name for path in TRUTHS for name in json.loads(path.read_text())["results"]["plain"]}
    assert told == set(samples.objects)


CUDA_13 = PtxSupport(newest=DottedPair(9, 0), exact=True)


@pytest.mark.parametrize(
    ("images", "capability", "verdict"),
    [
        # CUDA C++ Programming Guide, binary compatibility; catalogue, traps 6
        ("sm_80", "8.6", "runs"),
        ("sm_80", "8.9", "runs"),
        ("sm_89", "8.6", "no-image"),
        ("sm_90", "10.0", "no-image"),
        ("sm_90", "12.0", "no-image"),
        ("sm_100", "12.0", "no-image"),
        ("sm_100", "10.3", "runs"),
        # the feature set compiler targets of CUDA 12.9: a exactly, f the family
        ("sm_120a", "12.0", "runs"),
        ("sm_120a", "12.1", "no-image"),
        ("sm_120f", "12.1", "runs"),
        ("sm_121f", "12.0", "no-image"),
        ("sm_100a", "10.3", "no-image"),
        ("sm_100f", "10.3", "runs"),
        ("sm_100f", "12.0", "no-image"),
        ("sm_90a", "9.0", "runs"),
        ("compute_75:9.0", "12.1", "jit"),
        ("compute_120:9.0", "9.0", "no-image"),
        ("compute_90a:9.0", "10.0", "no-image"),
        ("compute_100f:9.0", "10.3", "jit"),
        ("compute_100f:9.0", "12.0", "no-image"),
        ("compute_80:9.1", "8.6", "ptx-too-new"),
        ("sm_86 compute_80:9.3", "8.6", "runs"),
        ("sm_86 compute_80:9.3", "8.9", "runs"),
        ("sm_86 compute_80:9.3", "9.0", "ptx-too-new"),
        ("compute_80:9.0 compute_86:9.3", "8.6", "ptx-too-new"),
        ("compute_80:9.0 compute_86:9.3", "8.0", "jit"),
        # integrated GPUs: nothing is promised across; sm_101 became sm_110
        ("sm_80", "8.7", "unknown"),
        ("sm_87", "8.7", "runs"),
        ("sm_87", "8.9", "unknown"),
        ("sm_80 compute_80:9.0", "8.7", "jit"),
        ("sm_101", "11.0", "runs"),
        ("sm_100", "10.1", "no-image"),
        ("lto_90", "9.0", "unknown"),
        ("kind16_90", "9.0", "unknown"),
        ("", "9.0", "no-image"),
    ],
)
def test_the_rules_of_a_container(images: str, capability: str, verdict: str) -> None:
    parsed = [Image.parse(one) for one in images.split()]
    assert container_verdict(parsed, DottedPair.parse(capability), CUDA_13) is CodeVerdict(verdict)


@pytest.mark.parametrize(
    ("driver", "cuda", "newest", "exact"),
    [
        ("580.159.04", "13.0", "9.0", True),
        ("580.65.06", None, "9.0", True),
        ("570.133.20", None, "8.7", True),
        ("585.10", None, "9.0", False),  # not in the table: at least what 580 reads
        ("560.35.03", "12.6", "8.5", True),
        ("570.133.20", "13.1", "9.1", True),  # cuda-compat: libcuda's word counts
        ("999.1", None, "9.2", False),
        ("999.1", "14.0", "9.5", False),
    ],
)
def test_what_ptx_a_driver_reads(driver: str, cuda: str | None, newest: str, *, exact: bool) -> None:
    support = ptx_support(targets(driver=driver, cuda=cuda))
    assert support == PtxSupport(newest=DottedPair.parse(newest), exact=exact)


@pytest.mark.parametrize("driver", [None, "", "nonsense", "340.108"])
def test_an_unknown_driver_makes_ptx_unknown(driver: str | None) -> None:
    assert ptx_support(targets(driver=driver)) is None
    images = [Image.parse("compute_80:9.0")]
    assert container_verdict(images, DottedPair(9, 0), None) is CodeVerdict.UNKNOWN


def code(*containers: tuple[Role, str, int], problem: str | None = None) -> GpuCode:
    return GpuCode(
        containers=tuple(
            Container(role=role, images=tuple(Image.parse(one) for one in images.split()), count=count)
            for role, images, count in containers
        ),
        problem=problem,
    )


def test_an_object_is_its_worst_module_and_says_how_many() -> None:
    mixed = code((Role.MODULE, "sm_90", 30), (Role.MODULE, "sm_80", 5))
    said = object_verdict(mixed, DottedPair(9, 0), CUDA_13)
    assert (said.verdict, said.modules, said.unusable) == (CodeVerdict.NO_IMAGE, 35, 5)
    said = object_verdict(mixed, DottedPair(9, 0), CUDA_13, dispatches=True)
    assert (said.verdict, said.unusable) == (CodeVerdict.RUNS, 5)


@pytest.mark.parametrize(
    ("one", "capability"),
    [
        (code((Role.MODULE, "sm_90", 1), problem="damaged"), "9.0"),
        (code((Role.LOOSE, "sm_75", 1)), "9.0"),
        (code(), "9.0"),
        (code((Role.MODULE, "sm_90", 1)), None),
    ],
)
def test_what_cannot_be_known_is_unknown(one: GpuCode, capability: str | None) -> None:
    asked = DottedPair.parse(capability) if capability else None
    assert object_verdict(one, asked, CUDA_13).verdict is CodeVerdict.UNKNOWN


def test_the_reports_entry() -> None:
    one = code((Role.MODULE, "sm_90a sm_80 compute_80:9.0", 2))
    assert gpu_entry("a.so", one, targets("9.0", None, "12.0", cuda="13.0")) == {
        "cubins": ["sm_80", "sm_90a"],
        "ptx": [{"target": "compute_80", "isa": "9.0"}],
        "gpus": [
            {"gpu": "GPU 0", "compute_capability": "9.0", "verdict": "runs", "modules": 2, "unusable": 0},
            {"gpu": "GPU 1", "compute_capability": None, "verdict": "unknown", "modules": 2, "unusable": 0},
            {"gpu": "GPU 2", "compute_capability": "12.0", "verdict": "jit", "modules": 2, "unusable": 0},
        ],
    }


@pytest.mark.parametrize(
    "image", ["sm_", "sm_90b", "compute_90", "sm_90:9.0", "SM_90", "sm_90a ", "compute_80:9"]
)
def test_an_answer_that_is_not_understood_is_refused(image: str) -> None:
    containers = [{"role": "module", "images": [image], "count": 1}]
    with pytest.raises(DocumentError, match="image"):
        GpuCodeFacts.from_dict(
            {"objects": {"a.so": {"containers": containers, "problem": None}}, "unreadable": {}}
        )


def test_the_tables_can_be_read_and_hold_together() -> None:
    tables = gpu_tables()
    assert max(tables.driver.values()) <= max(tables.ptx.values())
    assert sorted(tables.ptx.values()) == list(tables.ptx.values())
    assert all(known.source for known in gpu_objects().objects)
