"""Whatever a host's files and processes say: an answer or a reason, never a crash, and no secret."""

from __future__ import annotations

import contextlib
import pathlib
import string
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostenv.agent.probe import container, disks, driver, identity, sockets, system, units
from hostenv.agent.probe.fact import UnknownError
from hostenv.agent.probe.masking import masked
from hostenv.agent.probe.process import Process
from hostenv.agent.probe.smi import gpus_of, parse_capabilities, parse_log
from hostenv.agent.probe.tree import Tree

DATA = pathlib.Path(__file__).parents[1] / "data" / "h200"
HIDDEN = "zx81neverneverland"
anything = st.text(max_size=300)
in_place = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


@given(anything)
def test_tables_of_sockets(text: str) -> None:
    sockets.parse(f"header\n{text}")


@given(st.lists(st.text(string.hexdigits + ": \x00", max_size=60), min_size=10, max_size=12))
def test_lines_of_sockets(fields: list[str]) -> None:
    fields[3] = "0A"
    sockets.parse("header\n" + " ".join(fields))


@given(anything)
def test_control_groups(text: str) -> None:
    container.of_cgroup(text)


@given(anything)
def test_the_line_of_a_process(text: str) -> None:
    with contextlib.suppress(ValueError):
        Process(1, text)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_name_of_a_process(name: str) -> None:
    rest = " ".join(["S", *["1"] * 30])
    assert Process(1, f"1 ({name}) {rest}").name == name


@given(anything)
def test_logs_of_nvidia_smi(text: str) -> None:
    with contextlib.suppress(UnknownError):
        gpus_of(parse_log(text), {"unknown": "x", "how": "y"})
    with contextlib.suppress(UnknownError):
        parse_capabilities(text)


@given(st.data())
def test_a_damaged_log_of_nvidia_smi(data: st.DataObject) -> None:
    text = (DATA / "nvidia-smi-two-processes.xml").read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 400)))
    with contextlib.suppress(UnknownError):
        gpus_of(parse_log(text[:start] + text[end:]), {"unknown": "x", "how": "y"})


@in_place
@given(st.binary(max_size=300))
def test_files_of_the_kernel_and_the_system(tmp_path: pathlib.Path, content: bytes) -> None:
    for name in (
        "etc/machine-id",
        "etc/os-release",
        "etc/ssh/ssh_host_rsa_key.pub",
        "etc/systemd/system/sglang.service",
        "models/a/config.json",
        "models/a/model.safetensors.index.json",
        "proc/cpuinfo",
        "proc/driver/nvidia/gpus/0000:00:06.0/information",
        "proc/driver/nvidia/version",
        "proc/meminfo",
        "proc/self/mountinfo",
        "proc/sys/kernel/random/boot_id",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tree = Tree(str(tmp_path))
    for answer in (identity.read(tree), system.read(tree), driver.read(tree)):
        assert all("value" in fact or fact["unknown"] for fact in answer.values())
    units.units(tree, ["*"])
    units.models(tree, ["/models/a", "/models/b"])
    disks.read(tree, ["/models"])


SECRET_PLACES = st.sampled_from(
    [
        ["--api-key", HIDDEN],
        [f"--api-key={HIDDEN}"],
        [f"HF_TOKEN={HIDDEN}"],
        ["env", f"OPENAI_API_KEY={HIDDEN}", "python"],
        [f"https://user:{HIDDEN}@host/"],
        ["sh", "-c", f"python x.py --api-key {HIDDEN} --port 1"],
        ["curl", "-H", f"Authorization: Bearer {HIDDEN}"],
        [f'{{"hf_token": "{HIDDEN}"}}'],
    ]
)


@given(st.lists(anything, max_size=4), SECRET_PLACES, st.lists(anything, max_size=4))
def test_a_secret_is_masked_wherever_it_stands(
    before: list[str], secret: list[str], after: list[str]
) -> None:
    told = masked([*before, *secret, *after])
    # an option before it may take the secret's own option for its value, and hide that instead
    if before and before[-1].startswith("-"):
        return
    assert HIDDEN not in " ".join(told)


@pytest.mark.parametrize("piece", ["a", "-", "a-", "token", "x://", "--key ", "token= "])
def test_masking_is_quick_on_long_words(piece: str) -> None:
    begun = time.monotonic()
    masked([piece * 1_000_000])
    assert time.monotonic() - begun < 30
