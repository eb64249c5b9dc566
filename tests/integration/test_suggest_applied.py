"""Proposals carried out as an operator would: lines pasted, commands run; then nothing is wrong any more."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.machine import uv
from kit.elf import needs_gcc, shared
from kit.environment import put
from kit.hostfacts import write_saved_facts
from kit.remotes import Remotes, remote_hosts
from kit.repository import listing
from kit.schema import violations
from kit.trio import Trio
from kit.venv import environment, extension

if TYPE_CHECKING:
    from kit.repository import Ran, Repository

pytestmark = needs_gcc

C10 = "torch/lib/libc10.so"
SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs/schema/verify_abi.schema.json").read_text(encoding="utf-8")
)
NEW = "int _ZN3c103newEv(void); int f(void){return _ZN3c103newEv();}"
OLD = "int _ZN3c103oldEv(void); int f(void){return _ZN3c103oldEv();}"


@pytest.fixture
def trio(repository: Repository) -> Trio:
    """Hosts whose index has a torch that is built of small objects."""
    site = environment(repository.folder / "made")
    kept = ("torch/", "nvidia/")
    paths = {str(path.relative_to(site)): path for path in site.rglob("*") if path.is_file()}
    files = {name: path.read_bytes() for name, path in paths.items() if name.startswith(kept)}
    repository.wheel("torch", "2.14.1", {**files})
    return Trio(repository=repository)


def kernel(trio: Trio, version: str, source: str, *flags: str, requires: tuple[str, ...] = ()) -> None:
    """Put a kernel on the index, its object built from ``source`` beside that torch."""
    site = next((trio.repository.folder / "made").glob("lib/python3*/site-packages"))
    path = shared(site, f"{version}.so", source, "-Wl,--no-as-needed", *flags)
    plain = shared(site, "libnccl.so.2", "int ncclInit(void){return 1;}").read_bytes()
    files: dict[str, str | bytes] = {"kern/ops.abi3.so": path.read_bytes(), "kern/libnccl.so.2": plain}
    trio.repository.wheel("kern", version, files, requires=requires)


def judged(trio: Trio, *words: str) -> Ran:
    """Judge an environment for a host with a driver: what is unknown of this one does not matter."""
    saved = write_saved_facts(trio.repository.folder / "h200.json")
    return trio.run("verify_abi", *words, "--facts", str(saved))


def suggested(trio: Trio, host: str, *words: str) -> list[dict[str, Any]]:
    ran = judged(trio, host, "--suggest", *words)
    assert ran.failure is not None
    assert violations(ran.document, SCHEMA) == []
    found: list[dict[str, Any]] = ran.host["suggestions"]
    return found


def carry_out(trio: Trio, host: str, proposal: dict[str, Any]) -> None:
    """Paste the lines into the host's spec, and run the commands."""
    path = trio.repository.path / f"envspecs/{host}.toml"
    text = path.read_text()
    for line in proposal["spec"]:
        key = line.partition(" = ")[0]
        assert key not in tomllib.loads(text)["env"] or re.search(rf"(?m)^{key} = .*$", text)
        text = re.sub(rf"(?m)^{key} = .*\n", "", text).replace("[env]\n", f"[env]\n{line}\n")
    path.write_text("\n".join([text, *proposal["overlays"], ""]))
    for command in proposal["commands"]:
        nox, option, session, dashes, *words = shlex.split(command)
        assert (nox, option, dashes) == ("nox", "-s", "--")
        trio.done(session, *words)


def test_a_kernel_for_another_torch_gets_that_of_a_host_where_it_works(trio: Trio) -> None:
    """Catalogue K01: kernels of which no METADATA says for which torch they are."""
    kernel(trio, "0.4.4", NEW, C10)
    kernel(trio, "0.4.10", OLD, C10)
    trio.spec("ref", "torch==2.14.1", "kern==0.4.4")
    trio.spec("one", "torch==2.14.1", "kern==0.4.10")
    trio.repository.build_waived("one")
    require_refusals(trio)
    trio.done("build_env", "ref")
    assert {each["host"]: differing(each) for each in judged(trio, "one", "ref").document["hosts"]} == {
        "one": ["libnccl.so.2"],
        "ref": ["libnccl.so.2"],
    }

    proposal = suggested(trio, "one", "--reference", "ref")[0]

    assert proposal["changes"] == [{"distribution": "kern", "before": "0.4.10", "after": "0.4.4"}]
    assert proposal["not_judged"] == []
    assert proposal["overlays"] == ["[[overlays]]", 'name = "kern-of-ref"']
    assert proposal["commands"] == ["nox -s overlay -- ref kern-of-ref kern", "nox -s build_env -- one"]
    carry_out(trio, "one", proposal)
    ran = judged(trio, "one", "ref")
    assert ran.failure is None
    require_that_overlays_stay(trio)
    assert [differing(each) for each in ran.document["hosts"]] == [[], []]
    assert (trio.site("one") / "kern/ops.abi3.so").read_bytes() == (
        trio.site("ref") / "kern/ops.abi3.so"
    ).read_bytes()


def require_that_overlays_stay(trio: Trio) -> None:
    """Require that nothing is proposed for a distribution that an overlay of the spec brings already."""
    object_ = trio.site("one") / "kern/ops.abi3.so"
    whole = object_.read_bytes()
    object_.write_bytes(whole[:64])
    assert suggested(trio, "one", "--reference", "ref") == []
    object_.write_bytes(whole)


def require_refusals(trio: Trio) -> None:
    """Require that words which name no reference are refused, and one without a build says what to type."""
    for words, told in (
        (("--suggest", "--reference", "nosuch"), "nosuch"),
        (("--suggest", "--reference", "@all"), "names 3 hosts, not one"),
        (("--suggest", "--reference", "./venv"), "must be absolute"),
        (("--suggest", "--reference", "ref:"), "names no path"),
        (("--reference", "ref"), "add --suggest"),
        (("--suggest", "--reference", "ref"), "nox -s build_env -- ref builds one; ref:PATH names"),
    ):
        ran = judged(trio, "one", *words)
        assert told in f"{ran.message} {ran.error}", words
        assert violations(ran.document, SCHEMA) == []


def differing(host: dict[str, Any]) -> list[str]:
    """Return what is said of libnccl across hosts (catalogue K20)."""
    return [each["object"] for each in host["checks"]["findings"] if each["rule"] == "nccl-differs"]


def test_a_library_for_the_other_cuda_gets_its_release_for_this_torch(trio: Trio) -> None:
    """Catalogue K05; the index also has a newer kernel, for a torch that is not wanted."""
    site = next((trio.repository.folder / "made").glob("lib/python3*/site-packages"))
    cudart = shared(site, "libcudart.so.12", "int cudaOld(void){return 0;}", "-Wl,-soname,libcudart.so.12")
    kernel(trio, "0.3.21", "int cudaOld(void); int f(void){return cudaOld();}", str(cudart))
    trio.spec("one", "torch==2.14.1", "kern==0.3.21", env='constraints = ["helper<2"]')
    refused = trio.run("build_env", "one")
    assert refused.document["outcome"] == "checks"
    stays = refused.host["path"]
    assert not (trio.root("one") / "current").exists()
    kernel(trio, "0.4.10", NEW, C10, requires=("torch==2.14.1",))
    kernel(trio, "0.5.0", NEW, C10, requires=("torch==2.15.0",))

    (proposal,) = suggested(trio, "one", "--venv", stays)

    assert proposal["spec"] == ['requires = ["torch==2.14.1", "kern==0.4.10"]']
    assert proposal["not_judged"] == ["2 objects: judged when the wheels are there"]
    carry_out(trio, "one", proposal)
    assert judged(trio, "one").failure is None


def test_wheels_in_the_wheelhouse_are_judged_by_their_symbols(trio: Trio) -> None:
    """The newest is in the wheelhouse and wrong; an older one, of which METADATA tells no more, is right."""
    kernel(trio, "0.4.4", NEW, C10)
    kernel(trio, "0.4.10", OLD, C10)
    kernel(trio, "0.5.0", OLD, C10)
    for version in ("0.4.4", "0.5.0", "0.4.10"):
        trio.spec("one", "torch==2.14.1", f"kern=={version}")
        trio.done("lock", "one")
        trio.done("fetch", "one")
    trio.repository.build_waived("one")
    before = listing(trio.root("one"))

    (proposal,) = suggested(trio, "one")

    assert changed(proposal) == ("0.4.10", "0.4.4")
    assert "kern: judged by the wheel" in proposal["source"]
    assert proposal["not_judged"] == []
    assert listing(trio.root("one"), skipped=_judgement(trio)) == {
        path: each for path, each in before.items() if path not in _judgement(trio)
    }

    for wheel in (trio.root("one") / "wheelhouse").glob("*/kern-0.4.4-*"):
        wheel.rename(trio.repository.folder / wheel.name)
    (unseen,) = suggested(trio, "one")  # the newest is known to be wrong, nothing speaks against an older one
    assert changed(unseen) == ("0.4.10", "0.4.4")
    assert unseen["not_judged"] == ["2 objects: judged when the wheels are there"]

    carry_out(trio, "one", proposal)
    assert judged(trio, "one").failure is None


def changed(proposal: dict[str, Any]) -> tuple[str, str]:
    """Return the two versions of the one distribution that a proposal changes."""
    (change,) = proposal["changes"]
    assert change["distribution"] == "kern"
    return change["before"], change["after"]


def _judgement(trio: Trio) -> tuple[str, ...]:
    """Return what verify_abi keeps in a build: its own answer, and the folder whose time that changes."""
    kept = trio.current("one").relative_to(trio.root("one")) / ".hostenv"
    return (str(kept), str(kept / "objects"))


def test_the_reference_may_be_behind_ssh_and_nothing_is_written_there(
    trio: Trio, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment made by hand on another machine; the spec's own range keeps the index's answer out."""
    kernel(trio, "0.4.10", OLD, C10)
    trio.spec("one", "torch==2.14.1", "kern>=0.4.10,<0.5")
    trio.repository.build_waived("one")
    kernel(trio, "0.5.0", NEW, C10)
    reference = environment(tmp_path / "reference")
    built = extension(reference, "kern/ops.abi3.so", NEW, C10)
    put(reference / "kern-0.4.12.dist-info/METADATA", "Metadata-Version: 2.1\nName: kern\nVersion: 0.4.12\n")
    put(reference / "kern-0.4.12.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp310-abi3-linux_x86_64\n")
    rows = [
        f"kern/ops.abi3.so,,{built.stat().st_size}",
        *(f"kern-0.4.12.dist-info/{name},," for name in ("METADATA", "WHEEL", "RECORD")),
    ]
    put(reference / "kern-0.4.12.dist-info/RECORD", "\n".join([*rows, ""]))
    with remote_hosts(tmp_path / "hosts", ["works"]) as hosts:
        remotes = Remotes(repository=trio.repository, hosts=hosts)
        for name, value in remotes.install().items():
            monkeypatch.setenv(name, value)
        remotes.share("demo==1.0")
        remotes.spec("works", more='[capture]\nvenv = "/nowhere"\n')
        before = listing(tmp_path / "reference"), listing(hosts["works"].home)

        (proposal,) = suggested(trio, "one", "--reference", f"works:{tmp_path / 'reference'}")

        assert (listing(tmp_path / "reference"), listing(hosts["works"].home)) == before
        assert proposal["commands"][0] == (
            f"nox -s overlay -- works kern-of-works kern --venv {tmp_path / 'reference'}"
        )
        assert proposal["spec"] == []
        carry_out(trio, "one", proposal)
        assert judged(trio, "one").failure is None


def test_a_library_of_two_owners_loses_the_one_that_nobody_requires(trio: Trio) -> None:
    """Catalogue K09: two owners of libnccl.so.2, made and mended by uv."""
    nccl = "nvidia/nccl/lib/libnccl.so.2"
    for number in ("12", "13"):
        made = shared(
            trio.repository.folder / number, "libnccl.so.2", f"int ncclInit(void){{return {number};}}"
        )
        trio.repository.wheel(f"nvidia-nccl-cu{number}", "2.28.9", {nccl: made.read_bytes()})
    trio.repository.wheel("app", "1.0", {"app.py": ""}, requires=["nvidia-nccl-cu13==2.28.9"])
    venv = trio.repository.folder / "venv"
    trio.spec("one", "demo==1.0")

    def run(*words: str) -> None:
        program = uv.binary()
        subprocess.run([program, *words], check=True, capture_output=True, cwd=trio.repository.folder)

    run("venv", "--no-project", str(venv))
    run("pip", "install", "--python", str(venv), "app")
    run("pip", "install", "--python", str(venv), "nvidia-nccl-cu12")

    (proposal,) = suggested(trio, "one", "--venv", str(venv))

    assert proposal["changes"] == [{"distribution": "nvidia-nccl-cu12", "before": "2.28.9", "after": None}]
    assert proposal["spec"] == ['excludes = ["nvidia-nccl-cu12"]']
    assert proposal["commands"] == []
    run("pip", "uninstall", "--python", str(venv), "nvidia-nccl-cu12")
    run("pip", "install", "--python", str(venv), "--reinstall", "nvidia-nccl-cu13")
    assert judged(trio, "one", "--venv", str(venv)).failure is None
