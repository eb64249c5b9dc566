"""Calls into kernels against what the kernels register, on sources and built objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hostenv.agent import opschemas, pysource
from hostenv.checks import op_schemas
from hostenv.checks.finding import Finding, Severity
from hostenv.checks.op_signatures import signature
from hostenv.checks.record import Applied
from kit.elf import needs_gcc, shared
from kit.environment import SITE, distribution, make_environment, put
from kit.sites import found, looked

if TYPE_CHECKING:
    import pathlib

    from hostenv.checks.judge import Facts

ALIGN = (
    "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, "
    "Tensor! experts_ids, Tensor! num_tokens_post_pad, Tensor! cumsum_buffer, "
    "bool pad_sorted_token_ids{}) -> ()"
)
"""Measured: sgl-kernel 0.3.21's; 0.4.10's has one argument more (catalogue K57)."""
OLD, NEW = ALIGN.format(""), ALIGN.format(", bool ignore_invalid_expert")
CALL = (
    "import torch\ndef f(a):\n    torch.ops.sgl_kernel.moe_align_block_size(a, 1, 2, a, a, a, a, True, {})\n"
)


@pytest.mark.parametrize(
    ("schema", "positional", "keywords", "refused"),
    [
        ("f(Tensor x, int n=1) -> Tensor", 1, (), False),
        ("f(Tensor x, int n=1) -> Tensor", 2, (), False),
        ("f(Tensor x, int n=1) -> Tensor", 3, (), True),
        ("f(Tensor x, int n=1) -> Tensor", 0, (), True),
        ("f(Tensor x, int n=1) -> Tensor", 0, ("x",), False),
        ("f(Tensor x, int n=1) -> Tensor", 1, ("m",), True),
        ("f(Tensor x, int n=1) -> Tensor", 1, ("x",), True),
        ("f(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)", 2, (), True),
        ("f(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)", 1, ("out",), False),
        ("f(int[2] k=[1, 2], str s='a,b', float e=1e-05) -> (Tensor, Tensor)", 3, (), False),
        ("f(int[2] k=[1, 2], str s='a,b', float e=1e-05) -> (Tensor, Tensor)", 4, (), True),
        ("f() -> int", 0, (), False),
    ],
)
def test_a_call_is_taken_as_pytorchs_grammar_says(
    schema: str, positional: int, keywords: tuple[str, ...], *, refused: bool
) -> None:
    """The expected answers are those of torch._C.parse_schema and a call of an operator of that schema."""
    item = signature(schema)
    assert item
    assert (item.refuses(positional, keywords) is not None) == refused


def test_guarded_calls_are_left_out_and_others_read(tmp_path: pathlib.Path) -> None:
    source = put(
        tmp_path / "a.py",
        "import torch\n"
        "from sgl_kernel import gemm\n"
        "try:\n    torch.ops.sgl_kernel.maybe(1)\nexcept AttributeError:\n    pass\n"
        "if hasattr(torch.ops.sgl_kernel, 'other'):\n    torch.ops.sgl_kernel.other()\n"
        "def f(x, *rest):\n"
        "    y = torch.ops.sgl_kernel.plain(x, n=1)\n"
        "    torch.ops.sgl_kernel.plain.default(x)\n"
        "    torch.ops.sgl_kernel.spread(*rest)\n"
        "    return torch.ops.aten.add(y, 1)\n"
        "op = torch.ops.sgl_kernel.taken\n"
        "torch.library.custom_op('sgl_kernel::mine', f)\n"
        "assert_pkg_version('sglang-kernel', '0.4.10', 'too old')\n",
    )
    said = pysource.read(str(source), ("sgl_kernel",), ("sgl_kernel",))
    assert isinstance(said, dict)
    assert said["calls"] == [
        ["sgl_kernel", "plain", 10, 1, ["n"]],
        ["sgl_kernel", "plain", 11, 1, []],
        ["sgl_kernel", "spread", 12, None, []],
        ["sgl_kernel", "taken", 14, None, []],
    ]
    assert said["defines"] == ["sgl_kernel::mine"]
    assert said["minimums"] == [["sglang-kernel", "0.4.10", 16]]
    assert said["names"] == [["sgl_kernel", "gemm", 2]]


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"x = 1\n", None),
        (b"torch.ops.sgl_kernel.f(\n", "cannot be parsed"),
        (b"torch.ops.sgl_kernel\0", "parsed"),
    ],
)
def test_a_source_that_does_not_parse_is_told(
    tmp_path: pathlib.Path, content: bytes, answer: str | None
) -> None:
    said = pysource.read(str(put(tmp_path / "a.py", content)), ("sgl_kernel",), ("sgl_kernel",))
    assert (said is None) if answer is None else (answer in str(said))


def kernel(tmp_path: pathlib.Path, *schemas: str, version: str = "0.4.10") -> dict[str, str | bytes]:
    """Return a kernel whose object registers these schemas, as a compiler lays them down."""
    texts = "".join(f'const char *s{number} = "{text}";\n' for number, text in enumerate(schemas))
    built = shared(tmp_path / f"build-{version}", "common_ops.abi3.so", texts)
    return distribution(
        "sglang-kernel",
        version,
        {
            "sgl_kernel/__init__.py": "def gemm(): ...\n",
            "sgl_kernel/sm100/common_ops.abi3.so": built.read_bytes(),
        },
    )


def site(
    tmp_path: pathlib.Path,
    source: str,
    kernels: dict[str, str | bytes],
    requires: str = "sglang-kernel==0.4.10",
) -> Facts:
    sglang = distribution("sglang", "0.5.23", {"sglang/moe.py": source}, requires=[requires])
    return looked(make_environment(tmp_path / "venv", {**kernels, **sglang}))


def said(facts: Facts, rule: str) -> list[Finding]:
    return found(facts, op_schemas.RULES, rule)


@needs_gcc
def test_schemas_are_read_from_a_built_object(tmp_path: pathlib.Path) -> None:
    built = shared(tmp_path, "a.so", f'const char *a = "{OLD}", *b = "bare", *c = "x -> y", *d = "f(int)";')
    found_there = opschemas.read(str(built), ["bare", "absent"])
    assert (found_there.schemas, found_there.bare) == ([OLD], ["bare"])


@needs_gcc
def test_a_call_with_arguments_of_another_kernel_is_an_error(tmp_path: pathlib.Path) -> None:
    """sgl-project/sglang#27654; the schemas are those measured in 0.3.21 and 0.4.10."""
    facts = site(tmp_path, CALL.format("True"), kernel(tmp_path, OLD, version="0.3.21"))
    (finding,) = said(facts, "operator-arguments")
    assert (finding.severity, finding.object, finding.kind) == (Severity.ERROR, "sglang/moe.py", "K57")
    assert "sglang/moe.py:3: expected at most 8 positional arguments, got 9" in finding.evidence


@needs_gcc
def test_the_same_call_of_its_own_kernel_is_no_fault(tmp_path: pathlib.Path) -> None:
    facts = site(tmp_path, CALL.format("True"), kernel(tmp_path, NEW))
    assert said(facts, "operator-arguments") == said(facts, "operator-missing") == []


GONE = "import torch\nx = torch.ops.sgl_kernel.awq_dequantize(1)\n"


@needs_gcc
def test_an_operator_that_another_kernel_has_not_is_an_error(tmp_path: pathlib.Path) -> None:
    """vllm-project/vllm#5454's form: '_OpNamespace' has no attribute; 0.4 has no awq_dequantize."""
    facts = site(tmp_path, GONE, kernel(tmp_path, NEW), "sglang-kernel==0.4.4")
    (finding,) = said(facts, "operator-missing")
    assert finding.severity is Severity.ERROR
    assert "sglang/moe.py:2 calls awq_dequantize" in finding.evidence


@needs_gcc
def test_an_operator_of_another_platform_is_no_fault_of_what_belongs_together(
    tmp_path: pathlib.Path,
) -> None:
    assert said(site(tmp_path, GONE, kernel(tmp_path, NEW)), "operator-missing") == []


@needs_gcc
def test_a_patched_source_is_held_to_what_it_calls(tmp_path: pathlib.Path) -> None:
    facts = site(tmp_path, GONE, kernel(tmp_path, NEW)).but(Applied(files={"sglang/moe.py": "0" * 64}))
    assert [each.object for each in said(facts, "operator-missing")] == ["sglang/moe.py"]


@needs_gcc
def test_an_operator_registered_by_name_only_counts(tmp_path: pathlib.Path) -> None:
    files = kernel(tmp_path, NEW, "awq_dequantize")
    assert said(site(tmp_path, GONE, files, "sglang-kernel==0.4.4"), "operator-missing") == []


@needs_gcc
@pytest.mark.parametrize(("version", "fault"), [("0.3.21", True), ("0.4.10", False), ("0.4.11", False)])
def test_a_minimum_that_stands_in_code_is_judged(
    tmp_path: pathlib.Path, version: str, *, fault: bool
) -> None:
    """verl-project/verl#1832, sgl-project/sglang#11242: less than the minimum required version."""
    source = 'assert_pkg_version("sglang-kernel", "0.4.10", "reinstall")\n'
    (facts) = site(tmp_path, source, kernel(tmp_path, NEW, version=version), "sglang-kernel")
    assert len(said(facts, "kernel-too-old")) == fault


@needs_gcc
def test_a_name_that_another_kernel_has_not_is_an_error(tmp_path: pathlib.Path) -> None:
    """sgl-project/sglang#14327: cannot import name."""
    source = "from sgl_kernel import gemm, fused_marlin_moe\n"
    facts = site(tmp_path, source, kernel(tmp_path, NEW), "sglang-kernel==0.4.4")
    (finding,) = said(facts, "kernel-name-missing")
    assert any("import fused_marlin_moe" in line for line in finding.evidence)
    assert said(site(tmp_path / "b", source, kernel(tmp_path, NEW)), "kernel-name-missing") == []


@needs_gcc
def test_a_source_that_cannot_be_read_is_unknown_and_the_others_go_on(tmp_path: pathlib.Path) -> None:
    facts = site(tmp_path, "torch.ops.sgl_kernel.f(\n", kernel(tmp_path, NEW))
    (finding,) = said(facts, "operator-missing")
    assert (finding.severity, finding.object) == (Severity.UNKNOWN, "sglang/moe.py")
    assert (tmp_path / "venv" / SITE / "sglang/moe.py").exists()


def test_lines_are_counted_as_python_counts_them(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "a.py"
    place.write_bytes(b"import torch\rx = 1\r\ny = 2\n\x0cfrom  sgl_kernel  import gemm\r")
    said = pysource.read(str(place), ("sgl_kernel",), ("sgl_kernel",))
    assert isinstance(said, dict)
    assert said["names"] == [["sgl_kernel", "gemm", 4]]


def test_names_that_only_begin_alike_are_not_looked_into(tmp_path: pathlib.Path) -> None:
    place = put(tmp_path / "a.py", "from sgl_kernel_npu import gemm\nx = torch.ops.sgl_kernel_npu.f(1\n")
    assert pysource.read(str(place), ("sgl_kernel",), ("sgl_kernel",)) is None


def test_a_pipe_in_the_place_of_a_source_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "a.py")
    said = pysource.read(str(tmp_path / "a.py"), ("sgl_kernel",), ("sgl_kernel",))
    assert said == "cannot be read: is no regular file"
    assert pysource.exports(str(tmp_path / "a.py")) is None
