"""A new build's binaries are judged before anything is staged or switched to it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from kit.elf import needs_gcc, shared
from kit.trio import Trio

if TYPE_CHECKING:
    from kit.remotes import Remotes
    from kit.repository import Ran, Repository

pytestmark = needs_gcc

MODULE = "needy/_native.so"
NEEDY = "int gone(void); int f(void) { return gone(); }"
SOUND = "int f(void) { return 1; }"
WAIVER = '[checks]\nallow = [{{ rule = "{}", object = "{}", reason = "opened later", until = 2099-12-31 }}]'


def library(folder: pathlib.Path, source: str) -> bytes:
    """Return an object; one that lacks a symbol is made so that the loader itself refuses it."""
    made = shared(folder, "native.so", source, "-Wl,-z,now")
    program = f"import ctypes; ctypes.CDLL({str(made)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ("undefined symbol: gone" in done.stderr) == (source == NEEDY), done.stderr
    return made.read_bytes()


def wheel(repository: Repository, content: bytes, version: str = "1.0") -> None:
    repository.wheel("needy", version, {"needy/__init__.py": "", MODULE: content}, tag="py3-none-any")


def errors(ran: Ran) -> list[dict[str, Any]]:
    return [each for each in ran.host["checks"]["findings"] if each["severity"] == "error"]


def refused(ran: Ran) -> dict[str, Any]:
    """Check that the object, and nothing else, kept a build from its switch; return the finding."""
    assert ran.document["outcome"] == "checks", ran.message
    (error,) = errors(ran)
    assert error["object"] == MODULE
    assert "gone" in error["message"]
    assert pathlib.Path(ran.host["path"]).is_dir()
    return error


def test_an_object_that_cannot_load_is_not_switched_to_until_it_is_waived(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    old = repository.build().host["build"]
    wheel(repository, library(tmp_path, NEEDY))
    repository.spec("demo==1.0", "needy==1.0")

    for words in ((), ("--stage",), ()):
        ran = repository.run("build_env", *words)
        error = refused(ran)
        assert repository.current.name == old
        assert not (repository.root / "staged").exists()
    assert repository.run("switch").document["outcome"] == "refused"

    repository.spec("demo==1.0", "needy==1.0", more=WAIVER.format(error["rule"], MODULE))
    waived = repository.build().host

    assert repository.current.name == waived["build"] == ran.host["build"]
    receipt = json.loads((repository.root / "current/receipt.json").read_text())
    assert receipt["waived"] == [{"rule": error["rule"], "object": MODULE, "until": "2099-12-31"}]
    assert repository.build().host["headline"] == "nothing to do"
    repository.spec("demo==1.0", "needy==1.0", more=WAIVER.format("another-rule", MODULE))
    refused(repository.run("build_env"))


def test_a_sound_object_is_judged_and_its_build_is_as_verify_abi_finds_it(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    wheel(repository, library(tmp_path, SOUND))
    repository.spec("needy==1.0")

    built = repository.build().host

    assert [each for each in built["checks"]["findings"] if each["object"] == MODULE] == []
    verified = repository.run("verify_abi").host["checks"]
    alike = [
        {(each["rule"], each["object"]) for each in checks["findings"] if each["severity"] != "unknown"}
        for checks in (built["checks"], verified)
    ]
    assert alike[0] == alike[1]
    assert len({(each["rule"], each["object"]) for each in built["checks"]["findings"]}) == len(
        built["checks"]["findings"]
    )


def test_what_an_overlay_brings_is_judged_too(repository: Repository, tmp_path: pathlib.Path) -> None:
    trio = Trio(repository=repository)
    wheel(repository, library(tmp_path, SOUND))
    trio.specs("demo==1.0", "needy==1.0")
    trio.done("build_env", "ref")
    trio.done("build_env", "one")
    before = trio.current("one")
    (trio.site("ref") / MODULE).write_bytes(library(tmp_path, NEEDY))
    trio.done("overlay", "ref", "ours", "needy")
    trio.specs("demo==1.0", "needy==1.0", more='[[overlays]]\nname = "ours"\n', hosts=("one",))

    ran = trio.run("build_env", "one")

    refused(ran)
    assert trio.current("one") == before


def test_a_host_behind_ssh_is_judged_there(remotes: Remotes, tmp_path: pathlib.Path) -> None:
    repository = remotes.repository
    wheel(repository, library(tmp_path, NEEDY))
    remotes.share("needy==1.0")
    remotes.spec("a")
    assert repository.run("lock", hosts=["a"]).failure is None
    refused(repository.run("build_env", hosts=["a"]))
    assert not (remotes.root("a") / "current").exists()
