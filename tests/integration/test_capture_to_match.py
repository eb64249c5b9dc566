"""From a machine that works to two others, end to end over SSH: capture, sync_patches, match, edits named.

The targets have two patch levels of one minor Python. With ``HOSTENV_WHEELS`` naming a folder that holds a
real wheel of sglang 0.5.15.post1 for this Python (13 MB), it is that one which is patched by hand.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.machine import uv
from kit.pythons import patch_levels
from kit.remotes import PYTHON, Remotes, remote_hosts
from kit.trio import digests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.remotes import RemoteHost
    from kit.repository import Ran, Repository

RELEASE = "0.5.15.post1"
MADE = {
    "sglang/__init__.py": "",
    "sglang/version.py": f'__version__ = "{RELEASE}"\n',
    "sglang/srt/server_args.py": "PORT = 30000\n",
    "sglang/srt/layers/sampler.py": "def sample():\n    return 0\n",
}
TARGETS = ("one", "two")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RemoteHost]]:
    """The reference, and targets with the oldest and the newest patch level of this minor version."""
    levels = list(patch_levels(PYTHON).values())
    if len(levels) < 2:
        pytest.skip(f"needs two patch levels of CPython {PYTHON}; here: {', '.join(levels)}")
    interpreters = {"ref": levels[-1], "one": levels[0], "two": levels[-1]}
    folder = tmp_path_factory.mktemp("hosts")
    with remote_hosts(folder, ["ref", *TARGETS], interpreters) as started:
        yield started


@pytest.fixture(params=["made", "real"])
def remotes(
    request: pytest.FixtureRequest,
    repository: Repository,
    hosts: dict[str, RemoteHost],
    monkeypatch: pytest.MonkeyPatch,
) -> Remotes:
    """Hosts that the index serves sglang and a kernel; the reference has a hand-made environment."""
    if request.param == "made":
        repository.wheel("sglang", RELEASE, MADE)
    else:
        folder = pathlib.Path(os.environ.get("HOSTENV_WHEELS", "/nowhere"))
        real = list(folder.glob(f"sglang-{RELEASE}-cp{PYTHON.replace('.', '')}-*_{platform.machine()}.whl"))
        if not real:
            pytest.skip(f"HOSTENV_WHEELS names no folder that holds sglang {RELEASE} for Python {PYTHON}")
        shutil.copy(real[0], repository.registry.folder)
    repository.wheel(
        "kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'index'\n", "kernel/ops.bin": b"\0index"}
    )
    made = Remotes(repository=repository, hosts=hosts)
    for name, value in made.install().items():
        monkeypatch.setenv(name, value)
    return made


def hand_made(remotes: Remotes) -> pathlib.Path:
    """Make the reference's environment as people do, and return its path."""
    repository = remotes.repository
    venv = repository.folder / "ml-env"
    python = list(patch_levels(PYTHON).values())[-1]
    install = ("pip", "install", "-q", "--no-deps", "--link-mode", "copy", "--python", f"{venv}/bin/python")
    wanted = (f"sglang=={RELEASE}", "kernel==1.0")
    for words in (("venv", "-q", "--python", python, str(venv)), (*install, *wanted)):
        subprocess.run([str(uv.binary()), *words], check=True, env=repository.environment, cwd="/")
    site = site_of(venv)
    with (site / "sglang/srt/server_args.py").open("a") as file:
        file.write("\nPATCHED_BY_HAND = True\n")
    (site / "sglang/srt/ours.py").write_text("OURS = 1\n")
    (site / "sglang/version.py").chmod(0o755)
    (site / "kernel/ops.bin").write_bytes(bytes(range(256)) * 999)
    (site / "kernel/latest.bin").symlink_to("ops.bin")
    (site / "stray.py").write_text("STRAY = 1\n")
    return venv


def site_of(environment: pathlib.Path) -> pathlib.Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def files_of(environment: pathlib.Path) -> dict[str, tuple[int, str]]:
    """Return every file's mode and digest, those aside that tell who installed it and why."""
    found = digests(site_of(environment))
    return {path: each for path, each in found.items() if not path.endswith(("/INSTALLER", "/REQUESTED"))}


def current(remotes: Remotes, host: str) -> pathlib.Path:
    return (remotes.root(host) / "current/env").resolve()


def done(ran: Ran) -> dict[str, Any]:
    assert ran.error is None, ran.error
    assert ran.failure is None, ran.message
    return ran.document


def test_what_works_by_hand_works_on_two_others_and_every_edit_is_named(
    remotes: Remotes, hosts: dict[str, RemoteHost]
) -> None:
    repository = remotes.repository
    venv = hand_made(remotes)
    stub = repository.path / "envspecs/ref.toml"
    stub.write_text(
        f'[host]\nroot = "{remotes.root("ref")}"\nmode = "observe"\n[identity]\n'
        f'machine-id = "{hosts["ref"].machine_id}"\nhost-key = "{hosts["ref"].host_key}"\n'
        f'[capture]\nvenv = "{venv}"\n'
    )
    before = digests(venv)

    captured = done(repository.run("capture", hosts=("ref",)))["hosts"][0]

    assert "all of" in captured["headline"]
    assert stub.read_text().startswith('extends = "classes/ref-captured"\n')
    assert digests(venv) == before
    for name in TARGETS:
        remotes.spec(name, supply="offline = true", more='[reference]\nhost = "ref"\n')
        target = repository.path / f"envspecs/{name}.toml"
        target.write_text(target.read_text().replace("classes/kit", "classes/ref-captured"))

    synced = done(repository.run("sync_patches", hosts=("ref", *TARGETS)))["hosts"]

    versions = {each["host"]: each["interpreter"] for each in synced}
    assert list(versions.values()) == [*list(patch_levels(PYTHON))[:1], *list(patch_levels(PYTHON))[-1:]]
    matched = done(repository.run("match", hosts=("ref", *TARGETS)))
    assert matched["equal"] is True
    for name in TARGETS:
        assert files_of(current(remotes, name)) == files_of(venv)
    assert (
        done(repository.run("sync_patches", hosts=("ref", *TARGETS)))["hosts"][0]["headline"]
        == "nothing to do"
    )

    for name in TARGETS:
        edit(site_of(current(remotes, name)))
    ran = repository.run("match", hosts=("ref", *TARGETS))

    assert ran.failure is not None
    for target in ran.document["targets"]:
        named = {
            each["path"].rpartition("site-packages/")[2]: each["cause"]
            for group in target["distributions"]
            for each in group["differing"]
        }
        assert named == EDITS, target["place"]


EDITS = {
    "sglang/srt/ours.py": "edited",
    "kernel/ops.bin": "edited",
    "sglang/srt/server_args.py": "mode",
    "kernel/latest.bin": "symlink",
    "sglang/added.py": "extra",
    "sglang/version.py": "missing",
}


def edit(site: pathlib.Path) -> None:
    """Edit bytes of a patched file and of an overlaid one, a mode, a link; add a file, remove one."""
    (site / "sglang/srt/ours.py").write_text("OURS = 2\n")
    (site / "kernel/ops.bin").write_bytes(bytes(range(256)) * 998 + bytes(256))
    (site / "sglang/srt/server_args.py").chmod(0o755)
    (site / "kernel/latest.bin").unlink()
    (site / "kernel/latest.bin").symlink_to("__init__.py")
    (site / "sglang/added.py").write_text("")
    (site / "sglang/version.py").unlink()
