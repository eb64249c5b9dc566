"""``current`` whose generation no longer leads to the build that its receipt names: told, and made anew."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from kit.repository import Repository


def lead_env(env: pathlib.Path, where: str) -> None:
    """Let a generation's ``env`` be missing, lead out of the root, or to another build than its own."""
    build = pathlib.Path(env.resolve())
    env.unlink()
    if where == "another build":
        other = build.with_name("f" * len(build.name))
        other.mkdir()
        (other / "pyvenv.cfg").write_text("home = /usr/bin\n")
        env.symlink_to(pathlib.Path("../../builds", other.name))
    elif where != "missing":
        env.symlink_to(where)


def test_what_no_longer_leads_to_its_build_is_told_by_all_and_mended_by_a_build(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.spec("demo")
    build = repository.build().host["build"]
    for number, where in enumerate(("missing", "/etc", "another build"), 1):
        env = repository.root / f"generations/{number}/env"
        lead_env(env, where)
        words = f"{env} is missing" if where == "missing" else f"not to build {build} as its receipt says"

        for session in ("verify_abi", "match", "status", "builds"):
            capsys.readouterr()
            ran = repository.run(session)
            assert words in " ".join(capsys.readouterr().out.split()) + str(ran.error), (session, where)
            if session in {"status", "builds"}:
                assert words in ran.document["hosts"][0]["astray"]

        mended = repository.build().host

        assert (mended["generation"], mended["build"]) == (number + 1, build)
        assert repository.current.name == build
        receipt = json.loads((repository.root / "current/receipt.json").read_text())
        assert receipt["previous"] is None, "what was broken is nothing to go back to"
    assert repository.build().host["headline"] == "nothing to do"
    assert repository.run("verify_abi").failure is None


def test_mending_keeps_a_hold(repository: Repository) -> None:
    repository.wheel("demo", "2.0", {"demo/__init__.py": 'VERSION = "2.0"\n'})
    for version in ("1.0", "2.0"):
        repository.spec(f"demo=={version}")
        repository.build()
    held = repository.run("rollback", "--why", "2.0 crashes").host["build"]
    (repository.root / "generations/3/env").unlink()

    waits = repository.build().host
    assert f"switch -- local --build {held}` mends it" in waits["notes"][0]
    repository.spec("demo==1.0")
    mended = repository.build().host

    assert (mended["generation"], mended["build"]) == (4, held)
    assert json.loads((repository.root / "hold.json").read_text())["why"] == "2.0 crashes"
