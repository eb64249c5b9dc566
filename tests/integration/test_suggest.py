"""The smallest change for environments that hostenv did not build, and never what the judge would reject."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

from kit.elf import needs_gcc, shared
from kit.environment import distribution, put
from kit.hostfacts import write_saved_facts
from kit.schema import violations
from kit.venv import environment, extension

if TYPE_CHECKING:
    from kit.repository import Ran, Repository

pytestmark = needs_gcc

C10 = "torch/lib/libc10.so"

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs/schema/verify_abi.schema.json").read_text(encoding="utf-8")
)


def crossed(
    root: pathlib.Path, *, torch: str = "2.14.1", cuda: str = "13.0", offers: str | None = None
) -> pathlib.Path:
    """Make an environment with a torch, of a known Python; return its ``site-packages``.

    ``offers``: a symbol that its libc10 defines instead of the usual one.
    """
    site = environment(root, torch, cuda)
    if offers:
        shared(site / "torch/lib", "libc10.so", f"int {offers}(void){{return 1;}}", "-Wl,-soname,libc10.so")
    shutil.rmtree(next(site.glob("torch-*.dist-info")))
    brought = {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    for name, content in distribution("torch", torch, brought).items():
        put(site / name, content)
    version = ".".join(map(str, sys.version_info[:3]))
    home = os.path.dirname(os.path.realpath(sys.executable))  # noqa: PTH120  as a venv writes it
    (root / "pyvenv.cfg").write_text(f"home = {home}\nversion_info = {version}\nimplementation = CPython\n")
    return site


def kernel(site: pathlib.Path, version: str, source: str, *flags: str, name: str = "kern") -> None:
    """Install a kernel whose object is built from ``source``."""
    path = extension(site, "kern/ops.abi3.so", source, *flags)
    for entry, content in distribution(name, version, {"kern/ops.abi3.so": path.read_bytes()}).items():
        put(site / entry, content)


def judged(repository: Repository, root: pathlib.Path, *words: str, driver: str | None = None) -> Ran:
    """Judge an environment for a host with a driver: what is unknown of this one does not matter."""
    saved = write_saved_facts(repository.folder / "h200.json")
    if driver:
        saved.write_text(saved.read_text().replace("580.159.04", driver))
    return repository.run("verify_abi", "--venv", str(root), "--facts", str(saved), *words)


def suggested(
    repository: Repository, root: pathlib.Path, *words: str, driver: str | None = None
) -> list[dict[str, Any]]:
    ran = judged(repository, root, "--suggest", *words, driver=driver)
    assert ran.failure is not None
    assert violations(ran.document, SCHEMA) == []
    found: list[dict[str, Any]] = ran.host["suggestions"]
    return found


def passes(repository: Repository, root: pathlib.Path) -> bool:
    return judged(repository, root).failure is None


def test_a_kernel_for_another_torch_gets_the_references_whole(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    """Catalogue K01; the overlay is simulated on its files, and really laid over it passes.

    What the spec waives is no fault, before and after.
    """
    waiver = 'rule = "object-does-not-load"\nobject = "other/x.so"\nreason = "not used"\nuntil = 2999-01-01\n'
    repository.spec("demo==1.0", more=f"[[checks.allow]]\n{waiver}")
    site, reference = crossed(tmp_path / "venv"), crossed(tmp_path / "reference")
    extension(site, "other/x.so", "int gone(void); int f(void){return gone();}")
    kernel(site, "0.4.10", "int _ZN3c103oldEv(void); int f(void){return _ZN3c103oldEv();}", C10)
    kernel(reference, "0.4.4", "int _ZN3c103newEv(void); int f(void){return _ZN3c103newEv();}", C10)

    (proposal,) = suggested(repository, tmp_path / "venv", "--reference", str(tmp_path / "reference"))

    assert proposal["changes"] == [{"distribution": "kern", "before": "0.4.10", "after": "0.4.4"}]
    assert proposal["not_judged"] == []
    (site / "kern/ops.abi3.so").write_bytes((reference / "kern/ops.abi3.so").read_bytes())
    assert passes(repository, tmp_path / "venv")


def test_what_the_judge_rejects_is_not_proposed(repository: Repository, tmp_path: pathlib.Path) -> None:
    """The reference's kernel has another fault: it was never the reference for this torch."""
    site, reference = crossed(tmp_path / "venv"), crossed(tmp_path / "reference")
    kernel(site, "0.4.10", "int _ZN3c103oldEv(void); int f(void){return _ZN3c103oldEv();}", C10)
    kernel(reference, "0.4.4", "int _ZN3c105olderEv(void); int f(void){return _ZN3c105olderEv();}", C10)
    assert suggested(repository, tmp_path / "venv", "--reference", str(tmp_path / "reference")) == []


def test_a_torch_for_a_cuda_that_the_driver_does_not_serve_is_not_proposed(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    """The reference's torch has the symbol that the kernel lacks; whether it may come, the driver says."""
    site = crossed(tmp_path / "venv", torch="2.14.1", cuda="12.8")
    crossed(tmp_path / "reference", torch="2.14.2", cuda="13.0", offers="_ZN3c103oldEv")
    kernel(site, "0.4.10", "int _ZN3c103oldEv(void); int f(void){return _ZN3c103oldEv();}", C10)
    words = ("--reference", str(tmp_path / "reference"))
    assert suggested(repository, tmp_path / "venv", *words, driver="570.133.20") == []
    (proposal,) = suggested(repository, tmp_path / "venv", *words)
    assert proposal["changes"] == [{"distribution": "torch", "before": "2.14.1", "after": "2.14.2"}]
    assert proposal["not_judged"] == []


def test_a_kernel_under_its_older_name_gives_way_to_the_required_one(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    """The issue's crossed environment: sgl-kernel 0.3.21 (CUDA 12) beside torch 2.11, under SGLang 0.5.15."""
    site = crossed(tmp_path / "venv", torch="2.11.0")
    kernel(site, "0.3.21", "int gone(void); int f(void){return gone();}", name="sgl-kernel")
    app = distribution("sglang", "0.5.15", {"sglang/a.py": ""}, requires=["sglang-kernel==0.4.4"])
    for name, content in app.items():
        put(site / name, content)
    repository.wheel("torch", "2.11.0", {"torch/a.py": ""})
    repository.wheel("sglang", "0.5.15", {"sglang/a.py": ""}, requires=["sglang-kernel==0.4.4"])
    for version in ("0.4.4", "0.4.10"):
        repository.wheel("sglang-kernel", version, {"kern/a.py": ""})

    (proposal,) = suggested(repository, tmp_path / "venv")

    assert proposal["spec"] == ['constraints = ["sglang-kernel==0.4.4"]', 'excludes = ["sgl-kernel"]']
