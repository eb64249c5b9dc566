"""The shipped DDTree module where it will run from: patched into a build by the shipped series."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hostenv import commands
from kit.ddtree import CASES, MODULE_PATH, SERIES, cases, check_invariants, ddtree_module
from kit.repository import PROJECT

if TYPE_CHECKING:
    import pathlib

    from kit.repository import Repository

RELEASE = SERIES.name.partition("-")[2]

SHIPPED = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/speculative/__init__.py": "",
    "sglang/srt/speculative/dflash_worker.py": "# as shipped\n",
}
"""What a wheel of that release has around the module, which is new in the series."""


def hold_to_invariants(path: pathlib.Path) -> None:
    """Check I1 to I11 on the file at ``path``, by brute force; I10 on a one-hot block."""
    ddtree = ddtree_module(path)
    for case in cases():
        check_invariants(ddtree, case)
    assert sum(1 for _ in cases()) == CASES
    logits = np.full((5, 9), -np.inf)
    greedy = [3, 0, 8, 0, 1]
    logits[np.arange(5), greedy] = 0.0
    tree = ddtree.build_tree(logits, budget=64, root_token=2)
    assert (tree.tokens.tolist(), tree.is_chain) == ([2, *greedy], True), "I10"


def test_the_module_in_a_build_holds_its_invariants(repository: Repository) -> None:
    shutil.copytree(SERIES, repository.path / "patches" / SERIES.name)
    repository.wheel("sglang", RELEASE, SHIPPED)
    repository.spec(f"sglang=={RELEASE}", env=f'patches = ["{SERIES.name}"]')

    built = repository.build().host

    assert [each for each in built["checks"]["findings"] if not each["object"].startswith("/")] == []
    assert (repository.site() / "sglang/srt/speculative/dflash_worker.py").read_text() == "# as shipped\n"
    hold_to_invariants(repository.site() / MODULE_PATH)


@pytest.mark.network
def test_the_module_in_the_real_local_environment_holds_its_invariants(
    tmp_path: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    """Build ``local`` from real wheels, 270 MB of them, with its root in a folder of the test."""
    if "network" not in str(pytestconfig.getoption("markexpr")):
        pytest.skip("downloads 270 MB: nox -s tests -- -m network")
    for name in ("envspecs", "patches"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    spec, root = tmp_path / "envspecs/local.toml", tmp_path / "root"
    wanted = 'root = "~/.local/share/hostenv"'
    assert wanted in spec.read_text()
    spec.write_text(spec.read_text().replace(wanted, f"root = {json.dumps(str(root))}"))

    assert commands.run("build_env", ["local"], tmp_path) is None

    environment = root / "current/env"
    (site,) = environment.glob("lib/python3*/site-packages")
    hold_to_invariants(site / MODULE_PATH)
    program = "import importlib.metadata as m, numpy, safetensors, tokenizers; print(m.version('sglang'))"
    done = subprocess.run(
        [environment / "bin/python", "-B", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == RELEASE
    shutil.rmtree(root)  # pytest keeps the folders of its last runs, and this is a gigabyte
